"""Every recorded machine is read, and its groups are those that lscpu and lstopo see (T1 to T4)."""

from __future__ import annotations

import re
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from nodecpu.cpuset import CpuSet
from nodecpu.topology.model import CoreType, MemoryKind
from nodecpu.topology.sysfs import read_topology
from tests.integration import oracles
from tests.support import shared_data
from tests.unit.topology.builder import MEMORY_DIR
from tests.unit.topology.invariants import check_topology

MACHINES: Final = (
    "amd-48c-sparse-numa",
    "amd-epyc-7451-96c",
    "arm-128c-clusters",
    "arm-phone-8c",
    "desktop-20c",
    "gpu-memory-nodes",
    "hetero-cpu-numa",
    "intel-4s2c2t-offlines",
    "intel-asymmetric-caches",
    "intel-hybrid-6p8e-20c",
    "memory-side-caches",
    "offline-cpu0-node0",
    "s390-lpar",
    "server-2s-112c",
    "server-2s-4n-80c",
    "vm-vbox",
)

_SKIPPED: Final = re.compile(
    r"/(cpuidle|power|thermal_throttle|microcode|hotplug|stats|hugepages|memory\d+|vmstat|numastat|uevent|acpi_cppc"
    r"|\w+_policy|\w+_associativity|number_of_sets|coherency_line_size|physical_line_partition)(/|$)"
)
"""Nobody asks for these here; without them unpacking takes half the time."""

Unpack = Callable[[str], Path]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Groups that only we have, and groups that only the oracle has, with the reason."""

    reason: str
    ours: tuple[str, ...] = ()
    theirs: tuple[str, ...] = ()


DIFFERENCES: Final[Mapping[tuple[str, str, str], Difference]] = {
    ("lscpu", "arm-phone-8c", "cores"): Difference(
        reason="lscpu puts CPUs with equal core_id into one core; the sibling lists say that each is a core of its own",
        ours=("0", "1", "3", "4", "5", "6", "7"),
        theirs=("0,3,5,7", "1,4,6"),
    ),
    ("lscpu", "arm-phone-8c", "packages"): Difference(
        reason="lscpu takes ARM's packages for clusters of one socket; the kernel lists three packages, as lstopo says",
        ours=("0-2", "3-6", "7"),
        theirs=("0-7",),
    ),
    ("lscpu", "intel-asymmetric-caches", "l2"): Difference(
        reason="lscpu prints the caches that a CPU has from the first column on, so one without L1 has its L2 there",
        ours=("1,5", "2,6"),
        theirs=("6",),
    ),
    ("lscpu", "hetero-cpu-numa", "nodes"): Difference(
        reason="CPUs 4-7 are in no node; we place them with their package's first node, lscpu leaves them out",
        ours=("0-7",),
        theirs=("0-3",),
    ),
    ("lstopo", "hetero-cpu-numa", "nodes"): Difference(
        reason="as for lscpu; of nodes that overlap (20-23, 16-23, 12-23) lstopo drops two, we give each the rest",
        ours=("0-7", "12-15", "16-19"),
        theirs=("0-3",),
    ),
    ("lscpu", "offline-cpu0-node0", "nodes"): Difference(
        reason="the even CPUs' node is offline; we place them with the only node there is, lscpu leaves them out",
        ours=("4-20",),
        theirs=("5,7,9,11,13,15,17,19",),
    ),
    ("lstopo", "offline-cpu0-node0", "nodes"): Difference(
        reason="as for lscpu",
        ours=("4-20",),
        theirs=("5,7,9,11,13,15,17,19",),
    ),
}

UNKNOWN_TO_LSCPU: Final = {
    ("arm-phone-8c", "nodes"): "there is no NUMA directory: one node for us, none for lscpu",
    ("s390-lpar", "nodes"): "there is no NUMA directory: one node for us, none for lscpu",
}
"""Levels of which lscpu knows nothing although we have groups; clusters and dies it never prints."""


@pytest.fixture(scope="session")
def unpack() -> Iterator[Unpack]:
    """Yield a function that unpacks a recorded machine once per session, completed as the programs need it."""
    with tempfile.TemporaryDirectory(dir=MEMORY_DIR) as top:

        def root_of(name: str) -> Path:
            root = Path(top, name)
            if not root.exists():
                with tarfile.open(shared_data("sysfs", f"{name}.tar.xz")) as archive:
                    archive.extractall(root, filter=_wanted)
                _complete(root)
            return root

        yield root_of


def _wanted(member: tarfile.TarInfo, destination: str) -> tarfile.TarInfo | None:
    return None if _SKIPPED.search(member.name) else tarfile.data_filter(member, destination)


def _complete(root: Path) -> None:
    """Add what some recordings left out and every kernel has: the lists of CPUs, and the list of processors in proc."""
    base = root / "sys/devices/system/cpu"
    if not (base / "online").exists():
        there = [path for path in base.glob("cpu[0-9]*") if path.is_dir()]
        (base / "possible").write_text(f"{CpuSet(int(path.name[3:]) for path in there)}\n")
        online = CpuSet(int(path.name[3:]) for path in there if (path / "topology").exists())
        (base / "online").write_text(f"{online}\n")
    cpuinfo = root / "proc/cpuinfo"
    if not cpuinfo.exists():
        cpuinfo.parent.mkdir(exist_ok=True)
        online = CpuSet.parse((base / "online").read_text())
        cpuinfo.write_text("".join(f"processor\t: {cpu}\nvendor_id\t: any\n\n" for cpu in online))


def test_every_recorded_machine_has_its_test() -> None:
    archives = shared_data("sysfs").glob("*.tar.xz")
    assert sorted(path.name.removesuffix(".tar.xz") for path in archives) == list(MACHINES)


@pytest.mark.parametrize("name", MACHINES)
def test_recorded_machine_is_read_into_a_sound_topology(name: str, unpack: Unpack) -> None:
    """T1, T2, T3: levels partition the online CPUs, labels are unique, nodes have homes and memory."""
    check_topology(read_topology(unpack(name)))


@pytest.mark.parametrize("name", MACHINES)
def test_groups_agree_with_lscpu(name: str, unpack: Unpack) -> None:
    """T2, T4."""
    root = unpack(name)
    theirs = oracles.lscpu(root)
    _compare("lscpu", name, oracles.ours(read_topology(root)), theirs)
    unknown = {level for level in ("cpus", "cores", "packages", "nodes") if not theirs[level]}
    assert unknown == {level for machine, level in UNKNOWN_TO_LSCPU if machine == name}


@pytest.mark.parametrize("name", MACHINES)
def test_groups_agree_with_lstopo(name: str, unpack: Unpack) -> None:
    """T2, T4."""
    root = unpack(name)
    theirs = oracles.lstopo(root)
    ours = oracles.ours(read_topology(root))
    assert {"cpus", "cores", "packages", "nodes"} <= theirs.keys()
    assert {level for level in ("l2", "l3") if ours[level]} <= theirs.keys()
    _compare("lstopo", name, ours, theirs)


def _compare(oracle: str, name: str, ours: oracles.Groups, theirs: oracles.Groups) -> None:
    for level in theirs:
        if not theirs[level]:
            continue
        expected = DIFFERENCES.get((oracle, name, level), Difference(reason="none"))
        assert ours[level] - theirs[level] == frozenset(map(CpuSet.parse, expected.ours)), level
        assert theirs[level] - ours[level] == frozenset(map(CpuSet.parse, expected.theirs)), level


@pytest.mark.parametrize(
    ("name", "performance", "efficient"),
    [
        pytest.param("intel-hybrid-6p8e-20c", "0-11", "12-19", id="by top frequency"),
        pytest.param(
            "server-2s-4n-80c", "0-15,20-35,40-55,60-75", "16-19,36-39,56-59,76-79", id="by the kernel's lists"
        ),
        pytest.param("arm-phone-8c", "3-7", "0-2", id="by capacity"),
        pytest.param("hetero-cpu-numa", "12-23", "0-11", id="by capacity of whole packages"),
        pytest.param("desktop-20c", "", "", id="favoured cores are not another kind"),
        pytest.param("server-2s-112c", "", "", id="uniform server"),
    ],
)
def test_core_types_of_recorded_machines(name: str, performance: str, efficient: str, unpack: Unpack) -> None:
    """T4."""
    cpus = read_topology(unpack(name)).cpus.values()
    found = {kind: CpuSet(cpu.id for cpu in cpus if cpu.core_type is kind) for kind in CoreType}
    assert str(found[CoreType.PERFORMANCE]) == performance
    assert str(found[CoreType.EFFICIENT]) == efficient


def test_memory_only_nodes_serve_the_nearest_cpu_node(unpack: Unpack) -> None:
    """T3: nodes 4 and 5 hold memory of unknown kind, 17 away from nodes 0 and 2."""
    topology = read_topology(unpack("server-2s-112c"))
    assert [(n.id, n.home, n.kind) for n in topology.numa if not n.cpus] == [
        (4, 0, MemoryKind.OTHER),
        (5, 2, MemoryKind.OTHER),
    ]
    assert str(topology.isolated) == "4-7,60-63"


def test_packages_without_an_id_get_one_each(unpack: Unpack) -> None:
    """T2: an s390 partition gives every package -1 and repeats core ids; the lists tell seven packages."""
    topology = read_topology(unpack("s390-lpar"))
    assert [str(package.cpus) for package in topology.packages] == ["1-2", "3-5", "8-10", "11-14", "15", "16-18", "19"]
    assert len({(cpu.package, cpu.die, cpu.core) for cpu in topology.cpus.values()}) == 17
