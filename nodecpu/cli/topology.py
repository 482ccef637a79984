"""``nodecpu topology``."""

from __future__ import annotations

import argparse
import os

from nodecpu import __version__
from nodecpu.admin.machine import machine_of
from nodecpu.admin.state import Links, LinkState, NodeState, UsableState
from nodecpu.cli.output import ask, put_json, put_picture, speaks_unicode, width, write_picture
from nodecpu.cli.render.node import draw_node
from nodecpu.cli.render.owners import owners_of
from nodecpu.cli.render.svg import draw_svg
from nodecpu.errors import LinkError
from nodecpu.topology.model import Topology
from nodecpu.topology.sysfs import read_topology


def run(args: argparse.Namespace) -> int:
    """Draw the node on the terminal or as SVG, or print its tree and owners as JSON."""
    state = _asked(args) if args.root is None else _untouched(read_topology(args.root))
    if args.svg is not None:
        write_picture(args.svg, draw_svg(state))
    elif args.json:
        owners = [{"mark": o.mark, "owner": o.text, "cpus": str(o.cpus), "note": o.note} for o in owners_of(state).all]
        put_json({"node": state.node, "machine": state.machine, "owners": owners})
    else:
        put_picture(draw_node(state, width(), unicode=speaks_unicode()))
    return 0


def _asked(args: argparse.Namespace) -> NodeState:
    """Return the daemon's state; LinkError tells besides how the machine is drawn without a daemon."""
    try:
        return ask(args)
    except LinkError as error:
        raise LinkError(error.message, hint=f"{error.hint}; with --root / the machine is drawn without it") from error


def _untouched(topology: Topology) -> NodeState:
    """Return the state of a machine on which nobody was given anything."""
    off = LinkState(state="off")
    return NodeState(
        version=__version__,
        node=os.uname().nodename,
        links=Links(runtime=off, kubelet=off, api=off),
        machine=machine_of(topology),
        usable=UsableState(isolated=str(topology.isolated), sharable=str(topology.online - topology.isolated)),
    )
