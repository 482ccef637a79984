"""Other programs that give away CPUs of this node (shell, read-only; E2, U76): two of a kind fight for each cpuset."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from nodecpu.preflight.files import processes
from nodecpu.preflight.finding import Finding, failed, ok

_OTHERS: Final = {
    "dracpu": "dra-driver-cpu",
    "nri-resource-policy-balloons": "nri-plugins with the policy balloons",
    "nri-resource-policy-template": "nri-plugins with the policy template",
    "nri-resource-policy-topology-aware": "nri-plugins with the policy topology-aware",
    "koordlet": "koordinator",
    "cpusetter": "CPU-Pooler",
}
"""By their programs' names. Source: the Dockerfiles of kubernetes-sigs/dra-driver-cpu, containers/nri-plugins,
koordinator-sh/koordinator and nokia/CPU-Pooler.
"""


def others_finding(root: Path) -> Finding:
    """Return whether another program that sets cpusets of containers runs on this host."""
    check = "other CPU managers"
    found = {
        f"{_OTHERS[program]} (process {process.name})"
        for process, argv in processes(root / "proc")
        if (program := Path(argv[0]).name) in _OTHERS
    }
    if found:
        remedy = "keep it from this node, a DaemonSet by a node selector or a taint, or leave this node to it"
        return failed(check, f"{', '.join(sorted(found))}: both would set the cpusets of the same containers", remedy)
    return ok(check, "none that is known")
