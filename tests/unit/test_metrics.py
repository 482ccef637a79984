"""Metrics: counted as plain numbers, told in Prometheus' format, without names of what runs here."""

from __future__ import annotations

import subprocess
import sys

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from nodecpu.metrics import Counters, render
from tests.unit.nodestates import n4c16


def samples(text: bytes) -> dict[tuple[str, str], float]:
    """Return each sample by name and the value of its one label."""
    families = text_string_to_metric_families(text.decode())
    return {(s.name, "".join(s.labels.values())): s.value for family in families for s in family.samples}


def test_counts_come_out_under_their_names() -> None:
    counters = Counters()
    counters.forged_claims += 2
    counters.repairs["drift"] += 1
    counters.refusals["no-capacity"] += 3
    found = samples(render(msgspec.structs.replace(n4c16(), counters=counters.state())))
    assert found["nodecpu_forged_claims_total", ""] == 2
    assert found["nodecpu_late_containers_total", ""] == 0
    assert found["nodecpu_nri_reconnects_total", ""] == 0
    assert found["nodecpu_repairs_total", "drift"] == 1
    assert found["nodecpu_refusals_total", "no-capacity"] == 3


def test_cpus_by_use_add_up_to_the_usable_ones() -> None:
    found = samples(render(n4c16()))
    uses = {label: value for (name, label), value in found.items() if name == "nodecpu_cpus"}
    assert uses == {"reserved": 1, "isolated_free": 0, "claimed": 5, "exclusive": 2, "shared": 8}
    assert found["nodecpu_claims", "released"] == 1
    assert found["nodecpu_containers", "shared"] == 1
    assert found["nodecpu_link_up", "runtime"] == 1
    assert found["nodecpu_link_up", "api"] == 0


def test_no_label_names_a_pod_claim_or_container() -> None:
    text = render(n4c16())
    assert not any(name in text for name in (b"web", b"shop", b"batch", b"log-0", b"uid"))


def test_counting_does_not_load_the_client_library() -> None:
    code = "import sys, nodecpu.metrics; sys.exit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
