"""``nodecpu explain``: why something runs where it runs, why it was refused, or what would become of it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

import msgspec

from nodecpu.admin.client import try_objects
from nodecpu.cli.output import ask, put, put_json, socket_of
from nodecpu.cli.render.explain import explained, explanation_lines, trial_lines
from nodecpu.errors import HostError

MAX_FILE_BYTES: Final = 1 << 19
"""Less than the daemon takes, with room for JSON being longer than YAML."""

_WANTED: Final = "give claims and pods as YAML or JSON, such as `kubectl get resourceclaim NAME -o yaml` prints"


def run(args: argparse.Namespace) -> int:
    """Explain what is in the books, or try what is in a file: 1 if any of that would be refused."""
    if args.file is not None:
        rows = try_objects(socket_of(args), read_objects(args.file))
        if args.json:
            put_json(rows)
        else:
            put(trial_lines(rows))
        return 0 if all(row.fits for row in rows) else 1
    found = explained(ask(args), args.what)
    if args.json:
        put_json(found)
    else:
        put(explanation_lines(found))
    return 0


def read_objects(path: Path) -> tuple[bytes, ...]:
    """Return the objects of a YAML or JSON file (``-``: standard input) as JSON; HostError if it cannot be read."""
    import yaml  # type: ignore[import-untyped]  # noqa: PLC0415 - slow, and for this alone

    try:
        data = sys.stdin.buffer.read(MAX_FILE_BYTES + 1) if str(path) == "-" else path.read_bytes()
        if len(data) > MAX_FILE_BYTES:
            raise HostError(f"{path} is larger than {MAX_FILE_BYTES} bytes", hint="try fewer objects at once")
        documents = [one for one in yaml.safe_load_all(data) if one is not None]
        made = tuple(msgspec.json.encode(one) for one in documents)
    except OSError as error:
        raise HostError(f"{path} cannot be read: {error.strerror or error}", hint=_WANTED) from error
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        text = " ".join(str(error).split())
        raise HostError(f"{path} is no YAML or JSON: {text[:200]}", hint=_WANTED) from error
    if sum(len(one) for one in made) > MAX_FILE_BYTES:
        raise HostError(f"{path} becomes larger than {MAX_FILE_BYTES} bytes", hint="try fewer objects at once")
    return made
