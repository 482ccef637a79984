"""What devices and mounts are close to, by a made-up sysfs, and what becomes of it (S, A, G7)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from nodecpu.attraction import attraction
from nodecpu.cpuset import CpuSet
from nodecpu.errors import BadRequest
from nodecpu.ids import ContainerID, SandboxID
from nodecpu.locality import MAX_LOOKED_AT, MAX_MOUNTS, Locality, Wanted, patterns
from nodecpu.policy.annotations import HintSource, Preferences
from nodecpu.policy.facts import Container, DeviceNode
from nodecpu.policy.pull import Hint, Pull
from nodecpu.policy.rules import Rules
from tests.unit.policy.given import claim, create, prepare, sandbox
from tests.unit.policy.machines import N4C16, books, build_topology

MOUNTINFO = """\
21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 21 259:0 / /data rw,relatime shared:2 - xfs /dev/nvme0n1 rw
31 21 0:25 / /data/with\\040space rw,relatime - tmpfs tmpfs rw
odd line
"""


@pytest.fixture
def locality(tmp_path: Path) -> Locality:
    """Return n4c16 with a GPU on node 2, an NVMe disk on node 1, a disk that says -1, and a virtual device."""
    for place, link, node in (
        ("pci0000:80/0000:81:00.0/drm/card0", "char/226:0", (1, "2")),
        ("pci0000:40/0000:41:00.0/nvme/nvme0/nvme0n1", "block/259:0", (1, "1")),
        ("pci0000:00/0000:00:1f.2/ata1/block/sda/sda1", "block/8:1", (1, "-1")),
        ("virtual/mem/null", "char/1:3", (0, "")),
        ("pci0000:80/0000:81:00.1/sound", "char/116:1", (1, "two")),
    ):
        directory = tmp_path / "sys" / "devices" / place
        directory.mkdir(parents=True)
        depth, text = node
        if text:
            parts = place.split("/")
            (tmp_path / "sys" / "devices" / "/".join(parts[: depth + 1]) / "numa_node").write_text(text + "\n")
        target = tmp_path / "sys" / "dev" / link
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(directory)
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "self" / "mountinfo").write_text(MOUNTINFO)
    return Locality(tmp_path, build_topology(N4C16))


def container(devices: Sequence[tuple[str, str, int, int]] = (), mounts: Sequence[str] = ()) -> Container:
    nodes = tuple(DeviceNode(path=path, kind=kind, major=major, minor=minor) for path, kind, major, minor in devices)
    return Container(id=ContainerID("c"), sandbox_id=SandboxID("s"), name="app", devices=nodes, mounts=tuple(mounts))


GPU = ("/dev/dri/card0", "c", 226, 0)
DISK = ("/dev/nvme0n1", "b", 259, 0)
NULL = ("/dev/null", "c", 1, 3)
ALL = frozenset(HintSource)


def test_device_is_close_to_the_node_of_what_it_is_attached_to(locality: Locality) -> None:
    """S."""
    hints = locality.hints(container([GPU, NULL, DISK]), Wanted(sources=ALL))
    assert hints == (
        Hint(source="/dev/dri/card0", cpus=CpuSet.parse("8-11")),
        Hint(source="/dev/nvme0n1", cpus=CpuSet.parse("4-7")),
    )


def test_what_is_not_told_is_no_hint(locality: Locality) -> None:
    """S: a node of -1, none at all, a malformed one, a device that is not there."""
    odd = [("/dev/sda1", "b", 8, 1), NULL, ("/dev/snd", "c", 116, 1), ("/dev/gone", "c", 500, 1)]
    assert locality.hints(container(odd), Wanted(sources=ALL)) == ()


def test_mount_is_close_to_the_disk_of_its_innermost_mount_point(locality: Locality) -> None:
    """S: the files themselves are not touched."""
    mounts = ["/data/set", "/data", "/database", "/data/with space/x", "/etc/hosts"]
    hints = locality.hints(container(mounts=mounts), Wanted(sources=ALL))
    assert [hint.source for hint in hints] == ["/data/set", "/data"]
    assert {str(hint.cpus) for hint in hints} == {"4-7"}


def test_mount_point_is_a_path_not_a_pattern_and_the_latest_of_one_point_counts(
    locality: Locality, tmp_path: Path
) -> None:
    """S: a name with characters of a pattern is above what is below it, and nothing else."""
    later = "40 21 8:1 / /data/s* rw - ext4 /dev/sda1 rw\n41 21 8:1 / /x/y rw - ext4 /dev/sda1 rw\n"
    with (tmp_path / "proc" / "self" / "mountinfo").open("a") as file:
        file.write(f"{later}42 21 259:0 / /x/y rw - xfs /dev/nvme0n1 rw\n")
    mounts = ["/data/sets/a", "/data/s*/a", "/x/y/", "/x//y", "/x/y", "data", "data/set"]
    hints = locality.hints(container(mounts=mounts), Wanted(sources=ALL))
    assert [hint.source for hint in hints] == ["/data/sets/a", "/x/y/", "/x/y"]


def test_only_wanted_sources_and_paths_count(locality: Locality) -> None:
    """A: allow and deny lists."""
    both = container([GPU, DISK], ["/data"])

    def sources(**wanted: object) -> list[str]:
        return [hint.source for hint in locality.hints(both, Wanted(**({"sources": ALL} | wanted)))]  # type: ignore[arg-type]  # by name

    assert sources(sources=frozenset({HintSource.MOUNTS})) == ["/data"]
    assert sources(sources=frozenset()) == []
    assert sources(deny=("/dev",)) == ["/data"]
    assert sources(allow=("/dev/dri",)) == ["/dev/dri/card0"]
    assert sources(allow=("/dev/dri",), deny=("/dev", "/data")) == ["/dev/dri/card0"]
    assert sources(deny=("/dev/nv*",)) == ["/dev/dri/card0", "/data"]


@pytest.mark.parametrize("text", ["/a, /b", "- /a\n- /b", "/a\n\n /b ", "/a,/b,"])
def test_lists_of_paths_are_read_in_every_form(text: str) -> None:
    """A."""
    assert patterns(text) == ("/a", "/b")
    assert patterns(None) == ()


@pytest.mark.parametrize("text", [",".join(["/a"] * 65), ",".join(["/a*"] * 33), "/" + "*" * 64, "/" + "a" * 1024])
def test_patterns_are_few_and_short(text: str) -> None:
    """S: who writes annotations holds nobody up."""
    with pytest.raises(ValueError, match="at most 64 are read"):
        patterns(text)


def test_patterns_as_many_as_there_may_be() -> None:
    assert len(patterns(",".join(["/a"] * 64))) == 64
    assert len(patterns(",".join(["/a*"] * 32))) == 32
    assert patterns("/" + "a" * 1023) == ("/" + "a" * 1023,)


def test_container_that_is_given_all_devices_is_close_to_none(locality: Locality) -> None:
    """S."""
    assert locality.hints(container([GPU] * (MAX_LOOKED_AT + 1)), Wanted(sources=ALL)) == ()


def test_container_with_hundreds_of_mounts_is_close_to_none_of_them(locality: Locality) -> None:
    """S: its creation must not wait for that."""
    paths = [f"/data/{number}" for number in range(MAX_MOUNTS)]
    assert len(locality.hints(container((), paths), Wanted(sources=ALL))) == MAX_MOUNTS
    assert locality.hints(container((), [*paths, "/data"]), Wanted(sources=ALL)) == ()


def pull(locality: Locality, preferences: Preferences, words: frozenset[str] = frozenset({"devices"})) -> Pull:
    rules = Rules(hint_sources=words)
    made = container([GPU], ["/data"])
    return attraction(rules, books().ledger, lambda uid: None, sandbox(), made, preferences, locality).pull


def test_annotations_decide_over_the_configuration(locality: Locality) -> None:
    """A."""
    assert [hint.source for hint in pull(locality, Preferences()).hints] == ["/dev/dri/card0"]
    assert pull(locality, Preferences(), frozenset()).hints == ()
    assert pull(locality, Preferences(hints=frozenset())).hints == ()
    mounts = Preferences(hints=frozenset({HintSource.MOUNTS}), strict_hints=True, pick_by_hints=True)
    found = pull(locality, mounts)
    assert ([hint.source for hint in found.hints], found.strict, found.picks) == (["/data"], True, True)


def test_claimed_cpus_have_to_satisfy_strict_hints() -> None:
    """G7: otherwise creation fails, and the CPUs and the hint are named."""
    node = books()
    near, far = prepare(node, claim(1, (2, 2))), prepare(node, claim(2, (1, 2)))
    strict = Pull(hints=(Hint(source="/dev/dri/card0", cpus=CpuSet.parse("8-11")),), strict=True)
    assert create(node, "a", claims=[near], pull=strict).claimed == near.cpus
    words = r"claimed CPUs 4-5 are not all close to /dev/dri/card0 \(8-11\)"
    with pytest.raises(BadRequest, match=words):
        create(node, "b", claims=[far], pull=strict)
    loose = Pull(hints=strict.hints)
    assert create(node, "c", claims=[far], pull=loose).claimed == far.cpus


def test_exclusive_cpus_are_picked_among_those_of_the_hints() -> None:
    """A: pick-resources-by-hints, where they suffice."""
    node = books()
    hints = (Hint(source="nic", cpus=CpuSet.parse("6-9")),)
    picked = create(node, "a", mcpu=6000, pull=Pull(hints=hints, picks=True))
    assert len(picked.exclusive) == 6
    two = create(books(), "b", mcpu=2000, pull=Pull(hints=(Hint(source="nic", cpus=CpuSet.parse("6-7")),), picks=True))
    assert str(two.exclusive) == "6-7"
    loose = create(books(), "c", mcpu=2000, pull=Pull(hints=(Hint(source="nic", cpus=CpuSet.parse("6-7")),)))
    assert str(loose.exclusive) == "4-5"  # the pool of the hints, and CPUs as without them
