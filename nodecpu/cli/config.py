"""``nodecpu config``: check, show, diff, init."""

from __future__ import annotations

import argparse
import sys
import tomllib
from pathlib import Path

from nodecpu.cli.output import put, put_json
from nodecpu.config import Config, load, render_origins, render_toml
from nodecpu.config_docs import sample_toml
from nodecpu.errors import ConfigError


def run(args: argparse.Namespace) -> int:
    """Do one of the four; a wrong file raises with all its mistakes."""
    if args.action == "init":
        sys.stdout.write(sample_toml())
        return 0
    file: Path = args.file
    if args.action == "check" and args.json:
        return _mistakes(file)
    config = load(file)
    if args.action == "diff":
        return _diff(config if args.other is not None else Config(), load(args.other) if args.other else config, args)
    if args.action == "check":
        sys.stderr.write(f"{file} is right\n")
    elif args.json:
        put_json(tomllib.loads(render_toml(config)))
    else:
        sys.stdout.write(render_origins(config, file))
    return 0


def _mistakes(file: Path) -> int:
    """Print every mistake, none for a right file, as JSON; return the exit code that it has without."""
    try:
        load(file)
    except ConfigError as error:
        put_json({"file": str(file), "mistakes": error.problems or (str(error),)})
        return error.exit_code
    put_json({"file": str(file), "mistakes": ()})
    return 0


def _diff(old: Config, new: Config, args: argparse.Namespace) -> int:
    """Print what differs, and whether a reload applies it."""
    changes = old.changes(new)
    if args.json:
        put_json([{"key": c.key, "old": c.old, "new": c.new, "reloadable": c.reloadable} for c in changes])
    else:
        put(f"{c.key}: {c.old} -> {c.new}{'' if c.reloadable else ', needs a restart'}" for c in changes)
    return 0
