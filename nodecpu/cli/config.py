"""``nodecpu config``: check, show, init."""

from __future__ import annotations

import argparse
import sys
import tomllib
from pathlib import Path

from nodecpu.cli.output import put_json
from nodecpu.config import load, render_toml
from nodecpu.config_docs import sample_toml


def run(args: argparse.Namespace) -> int:
    """Do one of the three; a wrong file raises with all its mistakes."""
    if args.action == "init":
        sys.stdout.write(sample_toml())
        return 0
    file: Path = args.file
    config = load(file)
    if args.action == "check":
        sys.stderr.write(f"{file} is right\n")
    elif args.json:
        put_json(tomllib.loads(render_toml(config)))
    else:
        sys.stdout.write(render_toml(config))
    return 0
