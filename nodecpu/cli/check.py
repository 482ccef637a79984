"""``nodecpu check``: looks at everything around the daemon that has to be right."""

from __future__ import annotations

import argparse
import asyncio
from functools import partial
from pathlib import Path

from nodecpu.admin.client import fetch_state
from nodecpu.admin.state import LinkState, NodeState
from nodecpu.admin.view import finding_states
from nodecpu.cli import DEFAULT_CONFIG
from nodecpu.cli.output import put, put_json, takes_colour
from nodecpu.cli.render.findings import finding_lines
from nodecpu.config import Config, load
from nodecpu.errors import NodeCpuError
from nodecpu.nri.versions import runtime_version
from nodecpu.preflight.checks import RuntimeLink, local_findings
from nodecpu.preflight.finding import Finding, Grade, failed, ok
from nodecpu.startup import node_name


def run(args: argparse.Namespace) -> int:
    """Print what was found, with the remedy for what is wrong: 1 if anything is."""
    config = configuration(args.config)
    state, daemon = _daemon(args, config)
    link, running_as = (None, "") if state is None else (link_of(state.links.runtime), state.node)
    found = [daemon, *local_findings(config, link, running_as=running_as)]
    if config.kube.enabled and not args.offline:
        found += asyncio.run(_cluster(config))
    if state is not None:
        found += _told(state)
    if args.json:
        put_json(finding_states(found))
    else:
        put(finding_lines(found, colour=takes_colour()))
    return 1 if any(one.grade is Grade.FAILED for one in found) else 0


def configuration(path: Path | None) -> Config:
    """Return the configuration that the daemon goes by: of a file, else of the usual one, else the defaults."""
    if path is None and not DEFAULT_CONFIG.exists():
        return Config()
    return load(path or DEFAULT_CONFIG)


def _daemon(args: argparse.Namespace, config: Config) -> tuple[NodeState | None, Finding]:
    try:
        state = fetch_state(args.socket or config.paths.run / "admin.sock")
    except NodeCpuError as err:
        absent = ok if args.preflight else partial(failed, remedy=err.hint)
        return None, absent("daemon", err.message)
    if state.aside:
        return state, failed("daemon", f"stands aside, nothing is pinned: {state.aside}", "see below")
    return state, ok("daemon", f"runs, version {state.version}")


def link_of(link: LinkState) -> RuntimeLink:
    """Return the daemon's link to the runtime as the checks take it."""
    version = runtime_version(link.name, link.version, "") if link.name else None
    text = ", ".join(filter(None, (link.state, link.reason)))
    return RuntimeLink(is_up=link.state == "connected", state=text, version=version)


async def _cluster(config: Config) -> tuple[Finding, ...]:
    from nodecpu.kube.client import KubeClient  # noqa: PLC0415 - slow, and not always wanted
    from nodecpu.preflight.cluster import cluster_findings  # noqa: PLC0415 - see above

    api = KubeClient(config.kube.kubeconfig, timeout_s=config.kube.server_timeout_s)
    try:
        return await cluster_findings(
            api,
            node=node_name(config),
            kubeconfig=config.kube.kubeconfig,
            topology=config.kube.node_topology,
            skew_s=lambda: api.clock_skew_s,
        )
    finally:
        api.close()


def _told(state: NodeState) -> list[Finding]:
    """Return what only the daemon can know: how the kubelet took its registration, and the last looks of its own."""
    kubelet = state.links.kubelet
    words = ", ".join(filter(None, (kubelet.state, kubelet.reason)))
    found = [
        ok("registration", "the kubelet has registered the driver")
        if kubelet.state == "connected"
        else failed("registration", words, "see that the kubelet runs, and that paths.kubelet is its root directory")
    ]
    return found + [
        Finding(check=one.check, grade=Grade(one.grade), seen=one.seen, remedy=one.remedy)
        for one in state.preflight
        if one.check in ("feature gates", "state")
    ]
