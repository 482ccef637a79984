"""Metrics: counted as plain numbers, told in Prometheus' format, without names of what runs here."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import yaml  # type: ignore[import-untyped]  # its stubs are no dependency of ours
from prometheus_client.parser import text_string_to_metric_families

from nodecpu.admin.state import LinkState
from nodecpu.enforce.causes import Cause
from nodecpu.errors import NodeCpuError, StateError
from nodecpu.ids import ClaimUID
from nodecpu.measured import MeasuredClaims
from nodecpu.metrics import COMPATIBLE, FAMILIES, Counters, metrics_markdown, render
from nodecpu.policy.plan import PreparedDevice
from tests.node import Node, claim, scene_in_memory
from tests.support import ROOT
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


class Kubelet:
    """Stands where the claims are decided: succeeds for one UID, fails for others."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def prepare(self, uid: ClaimUID, namespace: str, name: str, *, budget_s: float) -> tuple[PreparedDevice, ...]:
        return await self._node.claims.prepare(uid, namespace, name, budget_s=0)

    async def unprepare(self, uid: ClaimUID) -> None:
        if uid == "bad":
            raise StateError("the disk is full")
        await self._node.claims.unprepare(uid)


async def _measure(node: Node) -> None:
    node.synchronize()
    clock = iter([0.0, 0.02, 5.0, 5.3, 9.0, 109.0])
    claims = MeasuredClaims(Kubelet(node), node.service.books, node.counters, clock=lambda: next(clock))
    good, bad = claim(1, ("cpudevnuma000", 3)), claim(2, ("cpudevnuma000", 99))
    node.api.claims |= {("shop", good.name): good, ("shop", bad.name): bad}
    await claims.prepare(good.uid, "shop", good.name, budget_s=5)
    await claims.prepare(good.uid, "shop", good.name, budget_s=5)  # the same answer: nothing is given anew
    with pytest.raises(NodeCpuError):
        await claims.prepare(bad.uid, "shop", bad.name, budget_s=5)
    await claims.unprepare(good.uid)
    with pytest.raises(StateError):
        await claims.unprepare(ClaimUID("bad"))
    await node.crash()


def test_the_kubelets_calls_are_measured_and_told_by_both_names() -> None:
    """C6: a repeated prepare counts as one more success, and gives nothing anew."""
    scene, directory = scene_in_memory()
    with directory:
        node = scene.boot()
        asyncio.run(_measure(node))
    text = render(msgspec.structs.replace(n4c16(), counters=node.counters.state()), compatible=True)
    found = samples(text)
    for ours, theirs in (("nodecpu_prepares_total", "dra_cpu_prepare_claims_total"),):
        assert (found[ours, "success"], found[ours, "error"]) == (2, 1)
        assert (found[theirs, "success"], found[theirs, "error"]) == (2, 1)
    assert (found["nodecpu_unprepares_total", "success"], found["nodecpu_unprepares_total", "error"]) == (1, 1)
    buckets = [found["nodecpu_prepare_duration_seconds_bucket", bound] for bound in ("0.025", "0.25", "0.5", "30.0")]
    assert buckets == [1, 1, 2, 2]
    assert found["nodecpu_prepare_duration_seconds_bucket", "+Inf"] == 3
    assert found["nodecpu_prepare_duration_seconds_count", ""] == 3
    assert found["nodecpu_claim_cpus_bucket", "4.0"] == 1
    assert found["nodecpu_claim_cpus_sum", ""] == 3
    assert found["dra_cpu_allocated_cpus", ""] == 5


def test_names_of_the_other_driver_are_there_only_when_wanted() -> None:
    assert b"dra_cpu_" not in render(n4c16())
    theirs = {family.full_name for family in COMPATIBLE}
    assert theirs == {
        "dra_cpu_allocated_cpus",
        "dra_cpu_available_cpus",
        "dra_cpu_reserved_cpus",
        "dra_cpu_resource_claims_active",
        "dra_cpu_prepare_claims_total",
        "dra_cpu_unprepare_claims_total",
        "dra_cpu_prepare_claim_duration_seconds",
        "dra_cpu_claim_allocated_cpus",
    }


def test_every_declared_metric_is_told_with_its_help_and_kind() -> None:
    api = msgspec.structs.replace(n4c16().links.api, credentials_expire_at=1e9)
    links = msgspec.structs.replace(n4c16().links, api=api)
    state = msgspec.structs.replace(n4c16(), links=links, counters=Counters().state())
    text = render(state, compatible=True).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    for family in (*FAMILIES, *COMPATIBLE):
        assert (families[family.name].type, families[family.name].documentation) == (family.kind, family.help)


def test_what_alerts_go_by_is_there_before_anything_has_happened() -> None:
    counters = Counters(now=lambda: 1e9)
    found = samples(render(msgspec.structs.replace(n4c16(), counters=counters.state()), compatible=True))
    for name in ("nodecpu_prepares", "nodecpu_unprepares", "dra_cpu_prepare_claims", "dra_cpu_unprepare_claims"):
        assert (found[f"{name}_total", "success"], found[f"{name}_total", "error"]) == (0, 0)
    assert {label for name, label in found if name == "nodecpu_drifts_total"} == {one.value for one in Cause}
    assert found["nodecpu_repairs_total", "drift"] == 0
    assert found["nodecpu_start_time_seconds", ""] == 1e9


def test_start_that_the_daemon_does_not_tell_is_not_told_as_1970() -> None:
    assert n4c16().counters.started_at == 0
    assert b"\nnodecpu_start_time_seconds " not in render(n4c16())


def test_whether_devices_are_published_is_told_where_there_is_an_api_server() -> None:
    assert samples(render(n4c16()))["nodecpu_published", ""] == 0
    assert samples(render(msgspec.structs.replace(n4c16(), published=True)))["nodecpu_published", ""] == 1
    links = msgspec.structs.replace(n4c16().links, api=LinkState(state="off"))
    assert b"nodecpu_published " not in render(msgspec.structs.replace(n4c16(), links=links))


def test_drift_is_a_gauge_of_the_moment() -> None:
    moved = tuple(
        msgspec.structs.replace(one, confirmed="0-15") if one.pod == "db-0" else one for one in n4c16().containers
    )
    found = samples(render(msgspec.structs.replace(n4c16(), containers=moved, aside="static")))
    assert (found["nodecpu_containers_adrift", ""], found["nodecpu_aside", ""]) == (1, 1)


def test_the_page_is_what_is_declared() -> None:
    assert (ROOT / "docs/reference/metrics.md").read_text() == metrics_markdown()


def test_alerts_go_by_metrics_that_there_are() -> None:
    rules = (ROOT / "packaging/alerts/nodecpu.rules.yml").read_text()
    known = {family.full_name for family in FAMILIES}
    used = set(re.findall(r"\bnodecpu_[a-z_]+", rules))
    assert used
    assert used <= known


def test_every_alert_has_a_test_in_which_it_fires() -> None:
    alerts = ROOT / "packaging/alerts"
    rules, tests = (yaml.safe_load((alerts / f"nodecpu.rules.{end}").read_text()) for end in ("yml", "test.yml"))
    declared = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    fired = {one["alertname"] for test in tests["tests"] for one in test["alert_rule_test"] if one.get("exp_alerts")}
    assert fired == declared


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
def test_alert_rules_fire_as_their_own_tests_say() -> None:
    alerts = ROOT / "packaging/alerts"
    for command in (("check", "rules", "nodecpu.rules.yml"), ("test", "rules", "nodecpu.rules.test.yml")):
        done = subprocess.run(["promtool", *command], cwd=alerts, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def dashboard() -> list[str]:
    """Return the queries of the Grafana dashboard."""
    board = json.loads((ROOT / "packaging/grafana/nodecpu.json").read_text())
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]]


def test_dashboard_goes_by_metrics_that_there_are() -> None:
    known = {family.full_name for family in FAMILIES}
    known |= {f"{family.name}_bucket" for family in FAMILIES if family.kind == "histogram"}
    assert {name for query in dashboard() for name in re.findall(r"\bnodecpu_[a-z_]+", query)} <= known


def test_dashboard_asks_only_for_the_nodes_that_were_chosen() -> None:
    for query in dashboard():
        assert len(re.findall(r"\bnodecpu_[a-z_]+", query)) == query.count('instance=~"$instance"')


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
def test_dashboards_queries_are_right_in_form(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": query.replace("$__rate_interval", "5m")}
        for number, query in enumerate(dashboard())
    ]
    file = tmp_path / "rules.json"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    done = subprocess.run(["promtool", "check", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
