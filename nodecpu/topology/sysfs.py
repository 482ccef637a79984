"""Reads the machine from sysfs (thin shell; T1, T2, T4).

One job: ``read_topology``. Only ``cpu/online`` has to be there; any other file may be missing, empty or odd and then
means the plain thing: one package, one die, no threads, no caches, one node.

Groups come from the kernel's lists, never from numbers, and one list is read per group, not per CPU: the list of a
group's lowest CPU serves them all. That is also what makes a level a partition where the lists contradict each other:

- lists are cut to the online CPUs and to those that no earlier group of the level has: of two lists that overlap, the
  one of the lower CPU holds (of NUMA nodes the lower node);
- a list that leaves out its own CPU is odd, and the older name, then the mask, is asked;
- a core is cut to its package, a die or cluster level that would cut a core is not believed for that package;
- ids that are negative, missing or repeated where they have to be unique are replaced by the number of the group's
  lowest CPU, or the next that is free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nodecpu.cpuset import NO_CPUS, CpuSet, union
from nodecpu.errors import HostError
from nodecpu.topology.files import KernelFiles
from nodecpu.topology.memory import read_nodes
from nodecpu.topology.model import CoreType, Cpu, Group, NumaNode, Topology
from nodecpu.topology.pcie import read_pcie_roots

_CPUS: Final = "sys/devices/system/cpu"
_ONLINE: Final = f"{_CPUS}/online"
_NO_CLUSTER: Final = 65535
"""Source: Linux arch/x86/kernel/cpu/common.c, BAD_APICID as the cluster's id."""

_PERFORMANCE_LISTS: Final = ("sys/devices/cpu_core/cpus",)
_EFFICIENT_LISTS: Final = ("sys/devices/cpu_atom/cpus", "sys/devices/cpu_lowpower/cpus")
_EFFICIENT_PERCENT: Final = 80
"""A core with at most this share of the strongest core's capacity or top frequency is an efficient one.

Favoured cores of one kind differ by some percent (4.3 and 4.5 GHz recorded), kinds by a quarter and more (3.9 and 5.2).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Names:
    """The files that list a CPU's companions at one level, newest name first; then the older form, masks."""

    lists: tuple[str, ...]
    masks: tuple[str, ...]


# Source: Linux Documentation/admin-guide/cputopology.rst
_PACKAGE: Final = _Names(lists=("package_cpus_list", "core_siblings_list"), masks=("package_cpus", "core_siblings"))
_DIE: Final = _Names(lists=("die_cpus_list",), masks=("die_cpus",))
_CLUSTER: Final = _Names(lists=("cluster_cpus_list",), masks=("cluster_cpus",))
_CORE: Final = _Names(lists=("core_cpus_list", "thread_siblings_list"), masks=("core_cpus", "thread_siblings"))
_CACHE: Final = _Names(lists=("shared_cpu_list",), masks=("shared_cpu_map",))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Speed:
    """What is known of a core's clock and capacity; shared by its threads."""

    capacity: int | None = None
    base_khz: int | None = None
    max_khz: int | None = None
    epp: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Package:
    """One package with its parts; dies and cores partition it, clusters may be none."""

    group: Group
    dies: tuple[Group, ...]
    clusters: tuple[Group, ...]
    cores: tuple[Group, ...]
    speeds: Mapping[int, _Speed]
    """Keyed by the cores' lowest CPU."""


def read_topology(root: Path) -> Topology:
    """Return the machine whose ``sys`` is below ``root``.

    Raises HostError if the list of online CPUs cannot be read or is empty.
    """
    with KernelFiles(root) as files:
        return topology_of(files)


def read_boot_id(root: Path) -> str:
    """Return the kernel's boot id, empty if there is none."""
    with KernelFiles(root) as files:
        return files.text("proc/sys/kernel/random/boot_id") or ""


def read_online(root: Path) -> CpuSet:
    """Return the CPUs that are online now, below ``root``; raises HostError if that cannot be read."""
    with KernelFiles(root) as files:
        return _online(files)


def topology_of(files: KernelFiles) -> Topology:
    """Return the machine that ``files`` describe; see read_topology."""
    online = _online(files)
    packages = _read_packages(files, online)
    l2, l3 = _read_caches(files, online)
    nodes = read_nodes(files, online, [p.group.cpus for p in packages])
    return Topology(
        online=online,
        isolated=online & (files.cpus(f"{_CPUS}/isolated") or NO_CPUS),
        cpus=_cpus(packages, l3, nodes, _core_types(files, online, packages)),
        packages=tuple(p.group for p in packages),
        dies=_sorted(g for p in packages for g in p.dies),
        clusters=_sorted(g for p in packages for g in p.clusters),
        cores=_sorted(g for p in packages for g in p.cores),
        l2=l2,
        l3=l3,
        numa=nodes,
        pcie_roots=read_pcie_roots(files, nodes),
    )


def _online(files: KernelFiles) -> CpuSet:
    text = files.required(_ONLINE)
    try:
        online = CpuSet.parse(text)
    except ValueError as err:
        raise HostError(f"{files.root / _ONLINE} is not a list of CPUs: {err}", hint="check paths.root") from err
    if not online:
        raise HostError(f"{files.root / _ONLINE} names no CPU", hint="check paths.root")
    return online


def _read_packages(files: KernelFiles, online: CpuSet) -> tuple[_Package, ...]:
    groups = _partition(files, online, _PACKAGE)
    ids = _unique_ids([files.number(f"{_CPUS}/cpu{g.first()}/topology/physical_package_id") for g in groups], groups)
    return tuple(_read_package(files, package, cpus) for package, cpus in zip(ids, groups, strict=True))


def _read_package(files: KernelFiles, package: int, cpus: CpuSet) -> _Package:
    cores = _partition(files, cpus, _CORE, alone=True)
    dies = _named_groups(files, cpus, cores, _DIE, "die_id") or [(0, cpus)]
    clusters = _named_groups(files, cpus, cores, _CLUSTER, "cluster_id")
    return _Package(
        group=Group(id=package, label=str(package), cpus=cpus),
        dies=tuple(Group(id=die, label=f"{package}/{die}", cpus=part) for die, part in dies),
        clusters=tuple(Group(id=i, label=f"{package}/{i}", cpus=part) for i, part in clusters),
        cores=tuple(core for die, part in dies for core in _read_cores(files, f"{package}/{die}", part, cores)),
        speeds=_read_speeds(files, cores),
    )


def _read_cores(files: KernelFiles, die_label: str, die: CpuSet, cores: Iterable[CpuSet]) -> Iterable[Group]:
    groups = [core for core in cores if core <= die]
    found = [files.number(f"{_CPUS}/cpu{core.first()}/topology/core_id") for core in groups]
    for i, core in zip(_unique_ids(found, groups), groups, strict=True):
        yield Group(id=i, label=f"{die_label}/{i}", cpus=core)


def _named_groups(
    files: KernelFiles, package: CpuSet, cores: Sequence[CpuSet], names: _Names, id_name: str
) -> list[tuple[int, CpuSet]]:
    """Return ids and CPUs of a package's dies or clusters; none if it has no such level or one that cuts a core."""
    if _valid(files.number(f"{_CPUS}/cpu{package.first()}/topology/{id_name}")) is None:
        return []  # without an id the lists are mere place holders: ARM prints each CPU as a die of its own
    groups = _partition(files, package, names)
    group_of = {cpu: group for group in groups for cpu in group}
    if not all(core <= group_of[core.first()] for core in cores):
        return []
    found = [files.number(f"{_CPUS}/cpu{g.first()}/topology/{id_name}") for g in groups]
    return list(zip(_unique_ids(found, groups), groups, strict=True))


def _partition(files: KernelFiles, cpus: CpuSet, names: _Names, *, alone: bool = False) -> list[CpuSet]:
    """Return the groups that the companions' lists make of ``cpus``, by lowest CPU.

    CPUs without any list stay ``alone``, or make up one group together.
    """
    groups: list[CpuSet] = []
    rest: list[CpuSet] = []
    left = cpus
    while left:
        cpu = left.first()
        listed = _companions(files, cpu, f"{_CPUS}/cpu{cpu}/topology", names)
        group = left & listed if listed else CpuSet((cpu,))
        (groups if listed or alone else rest).append(group)
        left -= group
    if rest:
        groups.append(union(rest))
    return sorted(groups, key=CpuSet.first)


def _companions(files: KernelFiles, cpu: int, directory: str, names: _Names) -> CpuSet | None:
    for name in names.lists:
        listed = files.cpus(f"{directory}/{name}")
        if listed is not None and cpu in listed:
            return listed
    for name in names.masks:
        listed = files.cpu_mask(f"{directory}/{name}")
        if listed is not None and cpu in listed:
            return listed
    return None


def _valid(number: int | None) -> int | None:
    return None if number is None or number < 0 or number == _NO_CLUSTER else number


def _unique_ids(found: Sequence[int | None], groups: Sequence[CpuSet]) -> list[int]:
    """Return an id for each group: the one found if it is valid and new, else a free number near its lowest CPU."""
    ids = [_valid(number) for number in found]
    taken: set[int] = set()
    for position, number in enumerate(ids):
        if number in taken:
            ids[position] = None
        elif number is not None:
            taken.add(number)
    whole: list[int] = []
    for number, group in zip(ids, groups, strict=True):
        free = group.first() if number is None else number
        while number is None and free in taken:
            free += 1
        taken.add(free)
        whole.append(free)
    return whole


def _read_caches(files: KernelFiles, online: CpuSet) -> tuple[tuple[Group, ...], tuple[Group, ...]]:
    """Return the second- and third-level caches; a CPU without one is in no group of that level."""
    left = {2: online, 3: online}
    found: dict[int, list[tuple[int | None, CpuSet]]] = {2: [], 3: []}
    for cpu in online:
        wanted = [level for level in left if cpu in left[level]]
        if not wanted:
            continue
        for level, cache in _cache_dirs(files, cpu, wanted).items():
            shared = _companions(files, cpu, cache, _CACHE)
            if shared:
                found[level].append((files.number(f"{cache}/id"), left[level] & shared))
                left[level] -= shared
    return _caches(found[2]), _caches(found[3])


def _cache_dirs(files: KernelFiles, cpu: int, wanted: Iterable[int]) -> dict[int, str]:
    """Return the directory of a CPU's cache by level; the usual index is tried before all are looked through."""
    base = f"{_CPUS}/cpu{cpu}/cache"
    dirs: dict[int, str] = {}
    missing: list[int] = []
    for level in wanted:
        usual = f"{base}/index{level}"  # index0 and index1 are the first level's two
        if files.number(f"{usual}/level") == level:
            dirs[level] = usual
        else:
            missing.append(level)
    if missing:
        for name in files.names(base):
            found = files.number(f"{base}/{name}/level") if name.startswith("index") else None
            if found is not None and found in missing:
                dirs.setdefault(found, f"{base}/{name}")
    return dirs


def _caches(found: Sequence[tuple[int | None, CpuSet]]) -> tuple[Group, ...]:
    groups = [cpus for _, cpus in found]
    ids = _unique_ids([number for number, _ in found], groups)
    return _sorted(Group(id=i, label=str(i), cpus=cpus) for i, cpus in zip(ids, groups, strict=True))


def _read_speeds(files: KernelFiles, cores: Sequence[CpuSet]) -> dict[int, _Speed]:
    """Return the cores' speeds by lowest CPU; a file that the package's first CPU lacks is not asked of the others."""
    first = cores[0].first()

    def numbers(name: str) -> Callable[[int], int | None]:
        there = files.number(f"{_CPUS}/cpu{first}/{name}") is not None
        return lambda cpu: files.number(f"{_CPUS}/cpu{cpu}/{name}") if there else None

    capacity, base = numbers("cpu_capacity"), numbers("cpufreq/base_frequency")
    top = numbers("cpufreq/cpuinfo_max_freq")
    has_epp = files.text(f"{_CPUS}/cpu{first}/cpufreq/energy_performance_preference") is not None
    return {
        cpu: _Speed(
            capacity=capacity(cpu),
            base_khz=base(cpu),
            max_khz=top(cpu),
            epp=files.text(f"{_CPUS}/cpu{cpu}/cpufreq/energy_performance_preference") if has_epp else None,
        )
        for cpu in (core.first() for core in cores)
    }


def _core_types(files: KernelFiles, online: CpuSet, packages: Sequence[_Package]) -> Mapping[CoreType, CpuSet]:
    """Return the CPUs of performance and efficient cores, by the kernel's lists, else by what the cores can do (T4)."""
    performance = _listed(files, _PERFORMANCE_LISTS) & online
    efficient = (_listed(files, _EFFICIENT_LISTS) & online) - performance
    if not performance and not efficient:
        efficient = _weaker_cores(packages)
        performance = online - efficient
    if not performance or not efficient:
        return {}
    return {CoreType.PERFORMANCE: performance, CoreType.EFFICIENT: efficient}


def _listed(files: KernelFiles, paths: Iterable[str]) -> CpuSet:
    return union(files.cpus(path) or NO_CPUS for path in paths)


def _weaker_cores(packages: Sequence[_Package]) -> CpuSet:
    """Return the CPUs of clearly weaker cores, by the first figure that all cores have.

    The top frequency goes before the base frequency: servers with a raised base frequency for some cores (SST-BF) have
    one kind of core all the same.
    """
    cores = [(core.cpus, p.speeds[core.cpus.first()]) for p in packages for core in p.cores]
    for figures in (
        [(cpus, speed.capacity or 0) for cpus, speed in cores],
        [(cpus, speed.max_khz or 0) for cpus, speed in cores],
        [(cpus, speed.base_khz or 0) for cpus, speed in cores],
    ):
        if all(figure for _, figure in figures):
            limit = max(figure for _, figure in figures) * _EFFICIENT_PERCENT
            return union(cpus for cpus, figure in figures if figure * 100 <= limit)
    return NO_CPUS


def _cpus(
    packages: Sequence[_Package], l3: Sequence[Group], nodes: Sequence[NumaNode], types: Mapping[CoreType, CpuSet]
) -> dict[int, Cpu]:
    l3_ids = {cpu: group.id for group in l3 for cpu in group.cpus}
    numa = {cpu: node.id for node in nodes for cpu in node.cpus}
    core_types = {cpu: kind for kind, cpus in types.items() for cpu in cpus}
    cpus: dict[int, Cpu] = {}
    for package in packages:
        dies = {cpu: group.id for group in package.dies for cpu in group.cpus}
        clusters = {cpu: group.id for group in package.clusters for cpu in group.cpus}
        for core in package.cores:
            speed = package.speeds[core.cpus.first()]
            for cpu in core.cpus:
                cpus[cpu] = Cpu(
                    id=cpu,
                    package=package.group.id,
                    die=dies[cpu],
                    core=core.id,
                    cluster=clusters.get(cpu),
                    l3_id=l3_ids.get(cpu),
                    numa=numa[cpu],
                    core_type=core_types.get(cpu, CoreType.STANDARD),
                    capacity=speed.capacity,
                    base_khz=speed.base_khz,
                    max_khz=speed.max_khz,
                    epp=speed.epp,
                )
    return dict(sorted(cpus.items()))


def _sorted(groups: Iterable[Group]) -> tuple[Group, ...]:
    return tuple(sorted(groups, key=lambda group: group.cpus.first()))
