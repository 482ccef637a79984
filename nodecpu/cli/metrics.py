"""``nodecpu metrics``: which metrics there are, or what they are now."""

from __future__ import annotations

import argparse
import sys

from nodecpu.cli.output import ask, put, put_json
from nodecpu.cli.render.text import aligned
from nodecpu.metrics import COMPATIBLE, FAMILIES, render


def run(args: argparse.Namespace) -> int:
    """List the metrics with their help, or print the daemon's in Prometheus' text format."""
    if args.values:
        sys.stdout.write(render(ask(args), compatible=args.compatible).decode())
        return 0
    families = (*FAMILIES, *(COMPATIBLE if args.compatible else ()))
    if args.json:
        put_json([{"name": f.full_name, "type": f.kind, "label": f.label, "help": f.help} for f in families])
    else:
        put(aligned(("METRIC", "TYPE", "LABEL", "HELP"), [(f.full_name, f.kind, f.label, f.help) for f in families]))
    return 0
