"""The daemon on a real containerd: registered by NRI, injected by CDI, pinned by the kernel, restarted on both sides.

Every test fails, and is not skipped, when NRI is off. The machine needs two CPUs: a claim takes one of them.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable

import pytest

from nodecpu.admin.state import NodeState
from nodecpu.cpuset import CpuSet
from tests.containerd.cgroups import WriteWatch
from tests.containerd.node import Node, memory, online, opened_node
from tests.containerd.torment import PATIENCE_S, Torment
from tests.lab_plugin import Plugin, connected

pytestmark = pytest.mark.containerd

NRI_PLUGIN = "io.containerd.nri.v1.nri"
REPAIR_S = 5.0
"""How long a correction may take before the test gives up; not a measure of speed."""


def play(story: Callable[[Node], Awaitable[None]], *, period_s: float = 1.0) -> None:
    """Run a story on a node whose daemon has started and has published; it audits cpusets once a period."""

    async def run() -> None:
        async with opened_node(period_s=period_s) as node:
            assert node.containerd.plugins()[NRI_PLUGIN] == "ok", "NRI is off"
            await node.start_daemon()
            await node.until(lambda: bool(node.cluster.slices()), "slices, which wait for the runtime's registration")
            await story(node)

    try:
        asyncio.run(run())
    except BaseExceptionGroup as group:
        if len(group.exceptions) == 1:  # the task group's wrapping hides what the story says
            raise group.exceptions[0] from None
        raise


def test_daemon_registers_by_nri_and_publishes_what_it_can_give() -> None:
    """D1, D5: publication waits for the runtime's synchronisation; one CPU stays for shared containers."""

    async def story(node: Node) -> None:
        assert 'plugin "90-nodecpu"' in node.containerd.log.read_text().replace("\\", "")
        assert sum(node.cluster.capacities().values()) == len(online()) - 1

    play(story)


def test_claim_container_is_pinned_to_its_claim_and_the_other_one_is_kept_off() -> None:
    """C11, G2, G9, L1, M1: containerd injects the CDI device, the kernel enforces both cpusets."""

    async def story(node: Node) -> None:
        before = await node.run("before")
        assert node.cpus(before) == online()
        claim = await node.prepare("one", 1)
        holder = await node.run("holder", claim)
        after = await node.run("after")
        assert node.environment(holder)[f"DRA_CPUSET_{claim.uid}"] == str(claim.cpus)
        assert node.cpus(holder) == claim.cpus
        assert node.cgroups.mems(holder.cgroup) == memory()
        assert node.cpus(after) == online() - claim.cpus
        await node.until_cpus(before, online() - claim.cpus, timeout_s=REPAIR_S)

    play(story)


def test_containers_read_what_they_got_and_what_became_of_it() -> None:
    """X1: the file is mounted by NRI's adjustment, and is rewritten where the container sees it."""

    async def story(node: Node) -> None:
        shared = await node.run("shared")
        assert node.told(shared)["SHARED_CPUS"] == str(online())
        claim = await node.prepare("one", 1)
        holder = await node.run("holder", claim)
        assert node.told(holder)["CLAIMED_CPUS"] == str(claim.cpus)
        assert node.told(holder)["CLAIM_1"].split()[0] == claim.uid
        await node.until(lambda: node.told(shared)["SHARED_CPUS"] == str(online() - claim.cpus), "the file's new text")

    play(story)


def test_a_variable_that_a_pod_sets_itself_gains_nothing() -> None:
    """L1: right CPUs or malformed, it runs with everybody else."""

    async def story(node: Node) -> None:
        claim = await node.prepare("one", 1)
        holder = await node.run("holder", claim)
        right = await node.run_forged("right", ((f"DRA_CPUSET_{claim.uid}", str(claim.cpus)),))
        wrong = await node.run_forged("wrong", ((f"DRA_CPUSET_{claim.uid}", "0-4095,x"),))
        others = online() - claim.cpus
        assert [node.cpus(one) for one in (holder, right, wrong)] == [claim.cpus, others, others]

    play(story)


def test_unprepare_gives_the_cpus_back_to_the_others() -> None:
    """C12, R6: after the holder has gone and the claim is unprepared; all of it over one link to the runtime."""

    async def story(node: Node) -> None:
        links = connections(node)
        claim = await node.prepare("one", 1)
        holder = await node.run("holder", claim)
        other = await node.run("other")
        await node.stop(holder)
        await node.unprepare(claim)
        await node.until_cpus(other, online(), timeout_s=REPAIR_S)
        assert list(node.containerd.cdi_dir.iterdir()) == []
        assert connections(node) == links

    play(story)


def test_containerd_restart_is_survived_and_what_went_wrong_meanwhile_is_repaired() -> None:
    """R2, R4: the daemon reconnects by itself; a cpuset that somebody widened while nobody watched is put right."""

    async def story(node: Node) -> None:
        claim = await node.prepare("one", 1)
        holder = await node.run("holder", claim)
        other = await node.run("other")
        await asyncio.to_thread(node.containerd.stop)
        node.cgroups.cpus_file(other.cgroup).write_text(str(online()))
        assert node.cpus(other) == online()
        await asyncio.to_thread(node.containerd.start)
        await node.until_cpus(other, online() - claim.cpus, timeout_s=REPAIR_S)
        assert node.cpus(holder) == claim.cpus
        later = await node.run("later")
        assert node.cpus(later) == online() - claim.cpus

    play(story)


def test_nothing_moves_when_the_daemon_is_killed_and_started_again() -> None:
    """R1, L4: no cpuset is written, and what was prepared before is served after."""

    async def story(node: Node) -> None:
        claim = await node.prepare("one", 1)
        holder = await node.run("holder", claim)
        other = await node.run("other")
        files = [node.cgroups.cpus_file(started.cgroup) for started in (holder, other)]
        with WriteWatch(files) as watch:
            await node.kill_daemon()
            await restart(node)
            second = await node.run("second-holder", claim)
            assert not watch.written()
            files[0].write_text(str(claim.cpus))
            assert watch.written(), "the watch sees nothing at all"
        assert [node.cpus(started) for started in (holder, second, other)] == [
            claim.cpus,
            claim.cpus,
            online() - claim.cpus,
        ]

    play(story)


def test_containers_created_while_the_daemon_is_away_are_corrected() -> None:
    """R4, G9: the runtime goes on without its plugin, so the container starts on all CPUs."""

    async def story(node: Node) -> None:
        claim = await node.prepare("one", 1)
        holder = await node.run("holder", claim)
        await node.kill_daemon()
        meanwhile = await node.run("meanwhile")
        assert node.cpus(meanwhile) == online()
        await restart(node)
        await node.until_cpus(meanwhile, online() - claim.cpus, timeout_s=REPAIR_S)
        assert node.cpus(holder) == claim.cpus

    play(story)


def test_daemon_killed_during_a_graceful_stop_of_60_s_blocks_no_creation() -> None:
    """R6, G9: it registers when the stop is over, and then corrects what was created meanwhile.

    Source: containerd#14083. The container's only process takes no notice of SIGTERM, and is killed once the other
    container was created.
    """

    async def story(node: Node) -> None:
        claim = await node.prepare("one", 1)
        holder = await node.run("holder", claim)
        slow = await node.run("slow")
        async with asyncio.TaskGroup() as tasks:
            stop = tasks.create_task(node.stop_gracefully(slow, grace_s=60))
            await node.until_state(lambda state: state.terminating == ("shop/slow/main",), "word of the pod's deletion")
            with WriteWatch([node.cgroups.cpus_file(holder.cgroup)]) as watch:
                await node.kill_daemon()
                await node.start_daemon()
                meanwhile = await node.run("meanwhile")
                assert not stop.done(), "the creation waited for the end of the stop"
                link = (await node.state()).links.runtime
                assert (link.state, "shop/slow/main" in link.reason) == ("held off", True)
                assert await node.prepare_again(claim) == claim.cdi_ids
                for pid in node.pids(slow):
                    os.kill(pid, signal.SIGKILL)
                await node.until_cpus(meanwhile, online() - claim.cpus, timeout_s=REPAIR_S)
                assert not watch.written()
        state = await node.state()
        assert (state.links.runtime.state, state.counters.late_containers) == ("connected", 1)

    play(story)


def test_what_a_later_plugins_refusal_discards_is_not_taken_for_done() -> None:
    """R7: our answer to a creation also narrows a shared container; the plugin after ours refuses the creation.

    containerd discards all answers then. Nothing but a later reply can narrow it: the audit's period is too long.
    """

    async def story(node: Node) -> None:
        before = await node.run("before")
        claim = await node.prepare("one", 1)
        later = Plugin(index="95")
        later.refuse.add("CreateContainer")
        async with connected(later, node.containerd.nri_socket):
            assert "refused by plugin" in await node.run_in_vain("vetoed", claim)
            await node.until_state(lambda state: told(state) == {before.container_id: node.cpus(before)}, "truth")
            holder = await node.run("holder", claim)
            await node.until_cpus(before, online() - claim.cpus, timeout_s=REPAIR_S)
            assert node.cpus(holder) == claim.cpus
            confirmed = {before.container_id: online() - claim.cpus, holder.container_id: claim.cpus}
            await node.until_state(lambda state: told(state) == confirmed, "confirmation")

    play(story, period_s=3600)


def told(state: NodeState) -> dict[str, CpuSet]:
    """Return what the daemon says that the kernel has said of each container."""
    return {row.id: CpuSet.parse(row.confirmed or "") for row in state.containers}


async def restart(node: Node) -> None:
    """Start the daemon again and wait until the runtime has synchronised it."""
    seen = connections(node)
    await node.start_daemon()
    await node.until(lambda: connections(node) > seen, "registration with the runtime")


def connections(node: Node) -> int:
    """Return how often containerd says that a plugin has connected."""
    return node.containerd.log.read_text().count("90-nodecpu")


def test_the_machine_has_the_two_cpus_that_the_stories_need() -> None:
    assert len(online()) >= 2
    assert isinstance(online(), CpuSet)


def test_limit_throttles_neither_the_holder_nor_its_pod() -> None:
    """G14: with cgroup v1 the kernel lets no container have more than its pod, so the pod is raised first."""

    async def story(node: Node) -> None:
        claim = await node.prepare("one", 1)
        holder = await node.run("holder", claim, limit="1m")
        assert node.cpus(holder) == claim.cpus
        assert node.cgroups.quota_us(holder.cgroup) == -1
        assert node.cgroups.quota_us(holder.running.pod.cgroup) == 100_000
        shared = await node.run("shared", limit="200m")
        assert node.cgroups.quota_us(shared.cgroup) == 20_000
        assert node.cgroups.quota_us(shared.running.pod.cgroup) == 20_000

    play(story)


def test_kills_of_both_sides_under_load_cost_no_holder_a_cpu() -> None:
    """R1, R4, G9: a short form of ``python -m tests.containerd``, sampled from the cgroups all along."""

    async def story(node: Node) -> None:
        figures = await Torment(node, within_s=PATIENCE_S).run(runtime_kills=1, daemon_kills=2)
        assert (figures.runtime_kills, figures.daemon_kills) == (1, 2)
        assert figures.samples > 0
        assert figures.pods > 0

    play(story)
