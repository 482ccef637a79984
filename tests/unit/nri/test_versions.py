"""What a runtime's introduction tells (interfaces.md 1.11, 1.12)."""

from __future__ import annotations

import pytest

from nodecpu.nri.plugin import SUBSCRIBED
from nodecpu.nri.versions import Release, event_mask, runtime_version
from nodecpu.proto import nri_pb2

CONTAINERD = "containerd"
CRIO = "cri-o"


@pytest.mark.parametrize(
    ("name", "version", "told", "nri"),
    [
        (CONTAINERD, "v1.7.0", "", (0, 3, 0)),
        (CONTAINERD, "v1.7.6", "", (0, 3, 0)),
        (CONTAINERD, "v1.7.7", "", (0, 4, 0)),
        (CONTAINERD, "1.7.13", "", (0, 4, 0)),
        (CONTAINERD, "1.7.15", "", (0, 6, 0)),
        (CONTAINERD, "1.7.24~ds1", "", (0, 6, 1)),
        (CONTAINERD, "1.7.26", "", (0, 8, 0)),
        (CONTAINERD, "1.7.99", "", (0, 8, 0)),
        (CONTAINERD, "2.0.0", "", (0, 8, 0)),
        (CONTAINERD, "2.1.9+unknown", "", (0, 8, 0)),
        (CONTAINERD, "v2.1.5-k3s1", "", (0, 8, 0)),
        (CONTAINERD, "2.2.0", "", (0, 10, 0)),
        (CONTAINERD, "2.2.7", "", (0, 11, 0)),
        (CONTAINERD, "2.3.4", "", (0, 12, 0)),
        (CONTAINERD, "2.3.4", "v0.12.0", (0, 12, 0)),
        (CONTAINERD, "v2.4.0-beta.0-70-g301026e58", "v0.12.2", (0, 12, 2)),
        (CRIO, "1.26.1", "", (0, 2, 0)),
        (CRIO, "1.26.2", "", (0, 3, 0)),
        (CRIO, "1.29.1", "", (0, 5, 0)),
        (CRIO, "1.30.4", "", (0, 6, 0)),
        (CRIO, "1.31.0", "", (0, 6, 1)),
        (CRIO, "1.33.2", "", (0, 9, 0)),
        (CRIO, "1.34.1", "", (0, 10, 0)),
        (CRIO, "1.36.0", "", (0, 11, 0)),
        (CRIO, "1.37.0", "v0.12.0", (0, 12, 0)),
    ],
)
def test_nri_release_is_told_or_looked_up(name: str, version: str, told: str, nri: Release) -> None:
    assert runtime_version(name, version, told).nri == nri


@pytest.mark.parametrize(
    ("name", "version", "told"),
    [
        (CONTAINERD, "", ""),
        (CONTAINERD, "main", "(devel)"),
        (CONTAINERD, "9.9.9", "0.0.0-unknown"),
        (CONTAINERD, "1.6.38", ""),
        (CRIO, "1.25.0", ""),
        (CRIO, "1.37.0", ""),
        ("other", "2.3.0", ""),
    ],
)
def test_unknown_runtime_counts_as_the_oldest(name: str, version: str, told: str) -> None:
    runtime = runtime_version(name, version, told)
    assert runtime.nri is None
    assert not runtime.safe_unsolicited


@pytest.mark.parametrize(
    ("version", "told", "safe"),
    [
        ("2.3.4", "v0.12.0", False),
        ("2.3.4", "v0.12.1", True),
        ("2.3.4", "v0.12.1+dirty", True),
        ("2.3.4", "v0.12.1-rc.0", False),
        ("2.3.4", "v0.12.1-0.20260701101112-0123456789ab", False),
        ("2.3.4", "v0.13.0-0.20260901101112-0123456789ab", False),
        ("2.3.4", "v0.13.0", True),
        ("2.3.4", "v1.0.0", True),
        ("2.4.0", "", True),
        ("2.4.0-beta.0", "", False),
        ("2.3.4", "", False),
    ],
)
def test_unasked_updates_need_the_deadlock_fix(version: str, told: str, *, safe: bool) -> None:
    """E1: a prerelease may lack the fix, an unknown one is affected."""
    assert runtime_version(CONTAINERD, version, told).safe_unsolicited is safe


@pytest.mark.parametrize(
    ("name", "version", "shows"),
    [
        (CONTAINERD, "2.2.7", False),
        (CONTAINERD, "2.3.0-rc.1", False),
        (CONTAINERD, "2.3.0", True),
        (CONTAINERD, "v2.4.0-beta.0-70-g301026e58", True),
        (CONTAINERD, "?", False),
        (CRIO, "1.37.0", False),
        (CRIO, "2.3.0", False),
    ],
)
def test_cdi_names_are_shown_by_new_containerd_only(name: str, version: str, *, shows: bool) -> None:
    assert runtime_version(name, version, "").shows_cdi is shows


@pytest.mark.parametrize("nri", [None, (0, 3, 0), (0, 9, 9), (0, 10, 0), (0, 12, 2)])
def test_subscription_is_what_the_service_uses_on_every_release(nri: Release | None) -> None:
    assert event_mask(nri, SUBSCRIBED) == 0x7FF


@pytest.mark.parametrize(
    ("nri", "mask"), [(None, 0x7FF), ((0, 9, 9), 0x7FF), ((0, 10, 0), 0x3FFF), ((1, 0, 0), 0x3FFF)]
)
def test_bits_that_a_release_does_not_know_are_left_out(nri: Release | None, mask: int) -> None:
    """A runtime drops a plugin that asks for an event it does not know."""
    assert event_mask(nri, nri_pb2.Event.values()) == mask


def test_validation_is_not_subscribed() -> None:
    """With it every creation fails while we are away."""
    assert nri_pb2.VALIDATE_CONTAINER_ADJUSTMENT not in SUBSCRIBED


def test_empty_subscription_is_refused_since_it_would_mean_everything() -> None:
    with pytest.raises(ValueError, match="needs an event"):
        event_mask((0, 9, 0), [nri_pb2.UPDATE_POD_SANDBOX])
