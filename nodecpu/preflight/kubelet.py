"""How the kubelet of this node is set up, as far as that concerns us (shell, read-only; E2, U94).

A policy is told by the state file that the kubelet keeps (it refuses to start under another one), by its flags and by
its configuration. The flags are those of the running kubelet; a process of a pod is never taken for it, whatever it
calls itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nodecpu.cpuset import CpuSet
from nodecpu.preflight.files import Values, merged, processes, read_json, read_text, read_yaml, text
from nodecpu.preflight.finding import Finding, failed, ok, unknown, warning
from nodecpu.preflight.nodename import NodeName

_NONE: Final = "none"
_FLAGS: Final = "flags"

_SWITCH: Final = (
    "{set}, drain the node, stop the kubelet, remove {state}, start it again; claims and the static policy cannot both"
    " own the CPUs"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubelet:
    """What was found. Policies in small letters by where they stand; the other texts are empty if not told."""

    cpu: Mapping[str, str]
    memory: Mapping[str, str]
    reserved: str = ""
    node: str = ""
    config_file: str = ""
    root: str = ""


def policies(directory: Path) -> Kubelet:
    """Return the policies by the state files, else by the configuration: few reads, for the daemon's start."""
    cpu, memory = _by_state(directory, "cpu"), _by_state(directory, "memory")
    if not cpu or not memory:
        config = read_yaml(directory / "config.yaml") or {}
        cpu, memory = cpu or _by_config(config, "cpu"), memory or _by_config(config, "memory")
    return Kubelet(cpu=cpu, memory=memory)


def read_kubelet(root: Path, directory: Path) -> Kubelet:
    """Return all that state files, the running kubelet's flags, its configuration and its drop-ins tell."""
    flags = _flags(root / "proc")
    named = flags.get("config", "")
    file = root / named.lstrip("/") if named else directory / "config.yaml"
    config = read_yaml(file)
    dropins = flags.get("config-dir", "")
    for path in sorted((root / dropins.lstrip("/")).glob("*.conf")) if dropins else ():
        config = merged(config or {}, read_yaml(path) or {})
    known = config or {}
    return Kubelet(
        cpu={**_by_config(known, "cpu"), **_by_flags(flags, "cpu"), **_by_state(directory, "cpu")},
        memory={**_by_config(known, "memory"), **_by_flags(flags, "memory"), **_by_state(directory, "memory")},
        reserved=flags.get("reserved-cpus", "") or text(known, "reservedSystemCPUs"),
        node=flags.get("hostname-override", ""),
        config_file=str(file) if config is not None else "",
        root=flags.get("root-dir", ""),
    )


def in_the_way(kubelet: Kubelet, *, pin_memory: bool) -> str:
    """Return why we must not pin: which of the kubelet's managers does; empty if none does."""
    if where := _static(kubelet.cpu):
        return f"the kubelet's CPU manager is static, by its {where}"
    if pin_memory and (where := _static(kubelet.memory)):
        return f"the kubelet's memory manager is static, by its {where}"
    return ""


def directory_finding(kubelet: Kubelet, directory: Path) -> Finding:
    """Return whether the running kubelet looks for plugins where we show ourselves (U82)."""
    check = "kubelet directory"
    # One may be a link to the other, on a larger disk.
    if kubelet.root and os.path.realpath(kubelet.root) != os.path.realpath(directory):
        seen = f"the kubelet's --root-dir is {kubelet.root}, we are below {directory}: it never sees us"
        return failed(check, seen, f'set paths.kubelet = "{kubelet.root}", and restart')
    if not kubelet.root and not directory.is_dir():
        remedy = "set paths.kubelet to the kubelet's root directory, unless the kubelet is not installed yet"
        return unknown(check, f"{directory} is not there", remedy)
    return ok(check, str(directory))


def kubelet_findings(
    kubelet: Kubelet, *, node: NodeName, running_as: str = "", reserved: CpuSet | None, pin_memory: bool
) -> Iterator[Finding]:
    """Yield what is right and wrong with the kubelet for a node of that name and reserved CPUs (None: not known).

    ``running_as`` is the name that a running daemon took at its start.
    """
    yield _manager("kubelet CPU manager", "cpu", kubelet.cpu, kubelet)
    memory = _manager("kubelet memory manager", "memory", kubelet.memory, kubelet)
    if not pin_memory and _static(kubelet.memory):
        memory = ok(memory.check, f"{memory.seen}; policy.pin_memory is off")
    yield memory
    yield _node_name(kubelet.node.lower(), node, running_as)
    yield _reserved(kubelet.reserved, reserved)


def _node_name(flag: str, node: NodeName, running_as: str) -> Finding:
    check, ours = "node name", f"{node.name}, by {node.source}"
    if flag and flag != node.name and not node.is_proven:
        return failed(check, f"the kubelet registers as {flag}, we as {ours}", f'set [node] name = "{flag}"')
    if running_as and running_as != node.name:
        seen = f"{ours}; the daemon has run as {running_as} since its start"
        return failed(check, seen, "restart it: nodecpu restart")
    return ok(check, ours)


def _manager(check: str, what: str, told: Mapping[str, str], kubelet: Kubelet) -> Finding:
    if where := _static(told):
        file = kubelet.config_file or "the kubelet's configuration"
        change = f"set {what}ManagerPolicy: {_NONE if what == 'cpu' else 'None'} in {file}"
        if told.get(_FLAGS, _NONE) != _NONE:
            change += f", take --{what}-manager-policy, which overrides it, from the kubelet's flags"
        remedy = _SWITCH.format(set=change, state=f"{what}_manager_state")
        return failed(check, f"static, by its {where}: nothing is pinned meanwhile", remedy)
    if not told:
        return unknown(check, "neither state file, nor flags, nor configuration tell", "see that it is not static")
    return ok(check, f"{_NONE}, by its {', '.join(sorted(told))}")


def _reserved(told: str, ours: CpuSet | None) -> Finding:
    check = "reserved CPUs"
    try:
        theirs = CpuSet.parse(told)
    except ValueError:
        return unknown(check, f"the kubelet's reservedSystemCPUs {told[:64]!r} are no list of CPUs")
    if ours is None:
        return unknown(check, f"the kubelet reserves {theirs or 'none by number'}; ours are not known")
    if theirs == ours:
        return ok(check, f"{ours}, as the kubelet's" if ours else "none, as the kubelet's")
    if not theirs:
        return ok(check, f"{ours}; the kubelet reserves by amount, if at all")
    return warning(
        check,
        f"the kubelet reserves {theirs}, we {ours or 'none'}",
        f'set policy.reserved = "cpuset:{theirs}", or reservedSystemCPUs: {str(ours)!r} in the kubelet',
    )


def _static(told: Mapping[str, str]) -> str:
    """Return where a policy other than none stands; empty if nowhere."""
    return " and ".join(sorted(where for where, policy in told.items() if policy != _NONE))


def _by_state(directory: Path, what: str) -> Mapping[str, str]:
    """Source: kubelet pkg/kubelet/cm/cpumanager/state, memorymanager/state: the checkpoint's policyName."""
    policy = text(read_json(directory / f"{what}_manager_state") or {}, "policyName")
    return {"state file": policy.lower()} if policy else {}


def _by_config(config: Values, what: str) -> Mapping[str, str]:
    """Return the policy by a configuration; one that says nothing means none. Source: kubelet config v1beta1."""
    if not config:
        return {}
    return {"configuration": (text(config, f"{what}ManagerPolicy") or _NONE).lower()}


def _by_flags(flags: Mapping[str, str], what: str) -> Mapping[str, str]:
    policy = flags.get(f"{what}-manager-policy", "")
    return {_FLAGS: policy.lower()} if policy else {}


def _flags(proc: Path) -> Mapping[str, str]:
    """Return the flags of the running kubelet by name; empty if none runs."""
    for process, argv in processes(proc):
        if Path(argv[0]).name == "kubelet" and "kubepods" not in (read_text(process / "cgroup") or "kubepods"):
            return _parsed(argv[1:])
    return {}


def _parsed(argv: list[str]) -> Mapping[str, str]:
    """Return ``--name=value`` and ``--name value`` by name."""
    found: dict[str, str] = {}
    for word, following in zip(argv, [*argv[1:], ""], strict=True):
        if word.startswith("-"):
            name, equals, value = word.lstrip("-").partition("=")
            found[name] = value if equals else "" if following.startswith("-") else following
    return found
