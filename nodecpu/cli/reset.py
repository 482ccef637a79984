"""``nodecpu reset``: gives shared containers room again when the daemon is stopped for good."""

from __future__ import annotations

import argparse
from collections import Counter

from nodecpu.cli.check import configuration
from nodecpu.cli.output import put, put_json
from nodecpu.cli.render.text import clean, counted
from nodecpu.enforce.systemd import Systemd
from nodecpu.reset import Outcome, reset


def run(args: argparse.Namespace) -> int:
    """Widen shared containers, or tell which would be: 1 if one could not be."""
    config = configuration(args.config)
    report = reset(config, Systemd(), everything=args.everything, try_only=args.dry_run)
    if args.json:
        outcomes = {name: outcome.value for name, outcome in sorted(report.outcomes.items())}
        put_json({"cpus": str(report.cpus), "containers": outcomes})
    else:
        lines = [f"{name}: {outcome.value}" for name, outcome in sorted(report.outcomes.items())]
        counts = Counter(report.outcomes.values())
        told = ", ".join(f"{counts[outcome]} {outcome.value}" for outcome in Outcome if counts[outcome])
        would = "would run" if args.dry_run else "run"
        put([*map(clean, lines), f"shared containers {would} on CPUs {report.cpus}; {told or counted(0, 'container')}"])
    return 1 if Outcome.FAILED in report.outcomes.values() else 0
