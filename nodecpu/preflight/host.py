"""The host itself: what sysfs tells, cgroups, directories and their modes (shell, read-only; E2)."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from nodecpu.arrangement import Arrangement, arrange, not_reserved, reserved_hint
from nodecpu.config import Config
from nodecpu.cpuset import CpuSet
from nodecpu.enforce.cgroups import Cgroups
from nodecpu.errors import NodeCpuError
from nodecpu.preflight.files import read_text
from nodecpu.preflight.finding import Finding, failed, ok, unknown, warning
from nodecpu.startup import node_name, rules_of
from nodecpu.store.database import LINK_HINT
from nodecpu.topology.sysfs import read_topology

_MASK_CPUS: Final = 1024
"""What a mask of fixed size holds. Source: sched_setaffinity(2), cpu_set_t; runc#5023, crun#2229."""

_OF_A_FIXED_MASK: Final = CpuSet(range(_MASK_CPUS))
_MANY_DEVICES: Final = 256
"""Source: kubernetes#131730, where hundreds of devices on a node take a scheduler seconds."""

_LITTLE_BYTES: Final = 1 << 20
"""A database with its log needs some hundred KiB."""

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def arranged_host(config: Config) -> tuple[Arrangement | None, Finding]:
    """Return the machine as the configuration arranges it, and whether that can be done."""
    try:
        topology = read_topology(config.paths.root)
        arranged = arrange(config, topology, Cgroups(config.paths.cgroup).kubepods(), node=node_name(config))
    except NodeCpuError as err:
        return None, failed("CPUs", err.message, err.hint)
    usable = arranged.usable
    seen = f"{len(usable.all)} usable of {len(topology.online)} online, {len(usable.reserved)} reserved"
    if not usable.grantable:
        return arranged, failed("CPUs", f"{seen}: none can be given to claims", "lower policy.reserved")
    kept = rules_of(config).unpublished(usable.reserved)
    if not usable.isolated and len(usable.sharable) <= kept:
        remedy = "let policy.available have more CPUs, or lower policy.min_shared"
        return arranged, failed("CPUs", f"{seen}, {kept} kept for shared containers: none is left for claims", remedy)
    if lacking := not_reserved(config, usable):
        return arranged, warning("CPUs", f"{seen}; {lacking}", reserved_hint(usable))
    return arranged, ok("CPUs", seen)


def size_findings(cpus: CpuSet, devices: int) -> Iterator[Finding]:
    """Yield what goes wrong with large machines: ``cpus`` are the usable ones, ``devices`` what is published."""
    if beyond := cpus - _OF_A_FIXED_MASK:
        yield warning(
            "CPU numbers",
            f"some runc from 1.3.1 on and some crun let a new container run on CPUs up to {_MASK_CPUS - 1} alone,"
            f" whatever its cpuset: {beyond} are left out",
            "look at Cpus_allowed_list in /proc/PID/status of a container that has some of them; where they are"
            " missing, take another version of the OCI runtime",
        )
    if devices > _MANY_DEVICES:
        yield warning(
            "devices",
            f"{devices} devices: a scheduler may need seconds for each pod that has a claim",
            'dra.grouping = "numa", or whatever else gives fewer',
        )


def roots_findings(arranged: Arrangement) -> Iterator[Finding]:
    """Yield a warning where a device is near more PCIe roots than it can tell (D2)."""
    if not arranged.untold_roots:
        return
    name, roots = next(iter(arranged.untold_roots.items()))
    others = len(arranged.untold_roots) - 1
    yield warning(
        "PCIe roots",
        f"{name} has no room for {len(roots)} of the PCIe roots near it, from {roots[0]} on"
        + (f"; so have {others} others" if others else "")
        + ": claims do not get CPUs beside what is on those",
        "match such claims by resource.kubernetes.io/numaNode",
    )


def host_findings(config: Config) -> Iterator[Finding]:
    """Yield what is right and wrong with cgroups and directories."""
    paths = config.paths
    yield _controller(paths.cgroup)
    yield _private("state directory", paths.state)
    yield _private("run directory", paths.run)
    yield _made_in("CDI files", paths.cdi)
    for name in ("plugins", "plugins_registry"):
        yield _made_in(f"kubelet's {name}", paths.kubelet / name)
    if config.kube.enabled:
        yield _secret("kubeconfig", config.kube.kubeconfig)


def _controller(root: Path) -> Finding:
    """Return whether containers can have cpusets. Source: kernel cgroup-v2, "Enabling and Disabling"."""
    check = "cpuset controller"
    controllers = read_text(root / "cgroup.controllers")
    if controllers is None:
        if (root / "cpuset").is_dir():
            return ok(check, f"cgroup v1, {root / 'cpuset'}")
        return failed(check, f"{root}: no cgroup hierarchy", "mount cgroups there, or set paths.cgroup")
    if "cpuset" not in controllers.split():
        return failed(check, f"{root}: the kernel offers no cpuset", "boot without cgroup_disable=cpuset")
    kubepods = next((root / name for name in ("kubepods.slice", "kubepods") if (root / name).is_dir()), None)
    for directory in (root, *((kubepods,) if kubepods else ())):
        if "cpuset" not in (read_text(directory / "cgroup.subtree_control") or "").split():
            return failed(
                check,
                f"{directory}/cgroup.subtree_control has no cpuset",
                "restart the kubelet, which enables it; with systemd see that no unit disables the controller"
                " (DisableControllers=)",
            )
    return ok(check, f"cgroup v2, enabled{f' in {kubepods.name}' if kubepods else '; no pods yet'}")


def _private(check: str, path: Path) -> Finding:
    """Return whether a directory of ours is ours alone."""
    try:
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode):
            made = "remove it; a directory is made at the next start"
            remedy = LINK_HINT if stat.S_ISLNK(found.st_mode) else made  # what we know may be where it leads
            return failed(check, f"{path} is a link or file, no directory", remedy)
        room = os.statvfs(path)
    except FileNotFoundError:
        return ok(check, f"{path} is not there yet, it is made at the start")
    except OSError as error:
        return unknown(check, f"{path}: {error.strerror or error}", "run this as root")
    if room.f_bavail * room.f_frsize < _LITTLE_BYTES or not os.access(path, os.W_OK | os.X_OK):
        return failed(
            check, f"{path} takes no files", "is its file system full or read-only? make room, mount it writable"
        )
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid != os.geteuid() or mode & _OTHERS_WRITE:
        return failed(check, f"{path}: mode {mode:04o}, owner {found.st_uid}", f"chown root: {path}; chmod 0700 {path}")
    return ok(check, f"{path}: mode {mode:04o}")


def _made_in(check: str, path: Path) -> Finding:
    """Return whether a directory that others made, or may still make, takes files of ours and of nobody else."""
    there = next(one for one in (path, *path.parents) if one.exists())
    try:
        mode = stat.S_IMODE(there.stat().st_mode)
    except OSError as error:
        return unknown(check, f"{there}: {error.strerror or error}", "run this as root")
    if not there.is_dir():
        return failed(check, f"{there} is no directory", f"remove {there}, or configure another path")
    if not os.access(there, os.W_OK | os.X_OK):
        return failed(check, f"{there} cannot be written to", "run as root; is the file system read-only?")
    if there == path and mode & stat.S_IWOTH:
        return failed(check, f"{path}: mode {mode:04o}, everybody may write", f"chmod o-w {path}")
    return ok(check, f"{path}" if there == path else f"{path} is not there yet")


def _secret(check: str, path: Path) -> Finding:
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError as error:
        return failed(check, f"{path}: {error.strerror or error}", "put the credentials there, or set kube.kubeconfig")
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        return warning(check, f"{path}: mode {mode:04o}, others may read it", f"chmod 0600 {path}")
    return ok(check, f"{path}: mode {mode:04o}")
