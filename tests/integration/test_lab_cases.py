"""The lab's scenarios against the real daemon: each case of the main job, over real sockets."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from nodecpu.lab.run import load_scenario, perform, scenario_files
from tests.support import need_root, shared_data

pytestmark = pytest.mark.lab

RECORDED = ("amd-48c-sparse-numa", "arm-phone-8c", "intel-hybrid-6p8e-20c", "server-2s-4n-80c")
OTHER_RUNTIMES = ("containerd-2.1", "cri-o-1.37")
ON_EVERY_RUNTIME = (
    "besteffort-gives-way-to-claims",
    "forged-variables-gain-nothing",
    "killed-between-prepare-and-creation",
    "second-pod-shares-a-prepared-claim",
)


@pytest.mark.parametrize("name", scenario_files())
def test_scenario_comes_out_as_it_should(name: str) -> None:
    scenario = load_scenario(name)
    if scenario.real:
        need_root()
    asyncio.run(perform(scenario, None, machine=scenario.machine))


@pytest.mark.parametrize("runtime", OTHER_RUNTIMES)
@pytest.mark.parametrize("name", ON_EVERY_RUNTIME)
def test_scenario_comes_out_the_same_on_other_runtimes(name: str, runtime: str) -> None:
    scenario = replace(load_scenario(name), runtime=runtime)
    asyncio.run(perform(scenario, None, machine=scenario.machine))


def test_scenario_comes_out_the_same_with_cgroupfs_names() -> None:
    scenario = replace(load_scenario("besteffort-gives-way-to-claims"), cgroup_driver="cgroupfs")
    asyncio.run(perform(scenario, None, machine=scenario.machine))


@pytest.mark.parametrize(
    "machine", ["2 sockets, 8 nodes, 4 cores, 2 threads, memory-only 2 hbm", "6 cores, cpu-step 3"]
)
def test_any_generated_machine_serves(machine: str) -> None:
    asyncio.run(perform(load_scenario("on-any-machine"), None, machine=machine))


@pytest.mark.parametrize("machine", RECORDED)
def test_any_recorded_machine_serves(machine: str) -> None:
    archive = shared_data("sysfs", f"{machine}.tar.xz")
    asyncio.run(perform(load_scenario("on-any-machine"), None, machine=str(archive)))
