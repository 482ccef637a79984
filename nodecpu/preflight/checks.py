"""All that is looked at, in order (shell; E2): for ``nodecpu check`` and for the daemon itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nodecpu.config import Config
from nodecpu.nri.versions import RuntimeVersion
from nodecpu.preflight.finding import Finding
from nodecpu.preflight.host import arranged_host, host_findings, roots_findings, size_findings
from nodecpu.preflight.kubelet import directory_finding, kubelet_findings, read_kubelet
from nodecpu.preflight.others import others_finding
from nodecpu.preflight.runtime import (
    Run,
    link_finding,
    nri_finding,
    read_runtimes,
    run_program,
    runtime_findings,
    version_of,
)
from nodecpu.startup import named


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeLink:
    """The daemon's link to the runtime: whether it is up, and what was at its other end (None: nothing yet)."""

    is_up: bool
    state: str
    version: RuntimeVersion | None


def local_findings(
    config: Config, link: RuntimeLink | None, run: Run = run_program, *, running_as: str = ""
) -> Iterator[Finding]:
    """Yield what is right and wrong on this host. ``link`` None: there is no daemon, so the runtime is asked itself.

    ``running_as`` is the node's name by which a running daemon goes.
    """
    root = config.paths.root
    arranged, machine = arranged_host(config)
    yield machine
    if arranged is not None:
        yield from size_findings(arranged.usable.all, len(arranged.devices))
        yield from roots_findings(arranged)
    yield from host_findings(config)
    runtimes = read_runtimes(root)
    if link is None:
        version = version_of(run)
        yield nri_finding(config.nri.socket, runtimes, version)
    else:
        version = link.version
        yield link_finding(config.nri.socket, runtimes, version, "" if link.is_up else link.state)
    yield from runtime_findings(runtimes, version, config.paths.cdi)
    yield others_finding(root)
    kubelet = read_kubelet(root, config.paths.kubelet)
    yield directory_finding(kubelet, config.paths.kubelet)
    yield from kubelet_findings(
        kubelet,
        node=named(config),
        running_as=running_as,
        reserved=None if arranged is None else arranged.usable.reserved,
        pin_memory=config.policy.pin_memory,
    )
