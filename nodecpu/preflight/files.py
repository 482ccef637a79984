"""Other programs' configuration files as plain values (shell, read-only): bounded, never an exception."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

MAX_BYTES: Final = 1 << 20

Values = Mapping[str, object]
NOTHING: Final[Values] = {}


def read_text(path: Path) -> str | None:
    """Return a file's text; None if there is none that can be read."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES).decode(errors="replace")
    except OSError:
        return None


def read_json(path: Path) -> Values | None:
    """Return a JSON object; None for anything else."""
    return _object(path, json.loads)


def read_toml(path: Path) -> Values | None:
    """Return a TOML file; None for anything else."""
    return _object(path, tomllib.loads)


def read_yaml(path: Path) -> Values | None:
    """Return a YAML mapping; None for anything else."""
    import yaml  # type: ignore[import-untyped]  # noqa: PLC0415 - slow, and seldom needed

    return _object(path, yaml.safe_load)


def _object(path: Path, parse: object) -> Values | None:
    assert callable(parse)
    text = read_text(path)
    if text is None:
        return None
    try:
        found: object = parse(text)
    except Exception:  # noqa: BLE001 - whatever a parser raises: the file is not ours, and not what we took it for
        return None
    return found if isinstance(found, dict) else None


def part(values: Values, *keys: str) -> Values:
    """Return the table at a path of keys; empty where there is none."""
    for key in keys:
        inner = values.get(key)
        if not isinstance(inner, dict):
            return NOTHING
        values = inner
    return values


def text(values: Values, key: str) -> str:
    """Return a text; empty where there is none."""
    value = values.get(key)
    return value if isinstance(value, str) else ""


def texts(values: Values, key: str) -> tuple[str, ...] | None:
    """Return a list of texts; None where there is none."""
    value = values.get(key)
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, list) else None


def merged(first: Values, later: Values) -> Values:
    """Return a configuration with a later file laid over it, table by table."""
    result = dict(first)
    for key, value in later.items():
        old = result.get(key)
        result[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result


def processes(proc: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield the directory and the command line of each process that may be seen, in the order of their numbers."""
    try:
        pids = sorted((one for one in proc.iterdir() if one.name.isdigit()), key=lambda one: int(one.name))
    except OSError:
        return
    for process in pids:
        yield process, (read_text(process / "cmdline") or "").split("\0")
