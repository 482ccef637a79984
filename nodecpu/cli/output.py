"""What verbs share: asking the daemon, writing data and words."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from nodecpu.admin.client import fetch_state
from nodecpu.admin.state import NodeState
from nodecpu.cli import DEFAULT_CONFIG
from nodecpu.config import Config, load
from nodecpu.errors import ConfigError, HostError

if TYPE_CHECKING:
    from rich.text import Text


def ask(args: argparse.Namespace) -> NodeState:
    """Return the daemon's state, from the socket that the arguments tell."""
    return fetch_state(socket_of(args))


def socket_of(args: argparse.Namespace) -> Path:
    """Return the daemon's socket: the one that the arguments tell, or their configuration, or else the usual one.

    A usual configuration that is wrong, or that we may not read, says nothing: the daemon may run on an older one.
    """
    socket: Path | None = args.socket
    if socket is None:
        socket = (usual() if args.config is None else load(args.config)).paths.run / "admin.sock"
    return socket


def usual(path: Path = DEFAULT_CONFIG) -> Config:
    """Return the configuration in the usual file, or the defaults where that tells nothing."""
    try:
        return load(path)
    except ConfigError:
        return Config()


def put(lines: Iterable[str]) -> None:
    """Write lines of data."""
    sys.stdout.writelines(f"{line}\n" for line in lines)


def put_json(value: object) -> None:
    """Write data as indented JSON."""
    put([msgspec.json.format(msgspec.json.encode(value), indent=2).decode()])


def put_picture(picture: Text) -> None:
    """Write a picture, in colour on a terminal."""
    if not sys.stdout.isatty():
        put([picture.plain])
        return
    from rich.console import Console  # noqa: PLC0415 - slow, and for terminals only

    Console(highlight=False).print(picture, soft_wrap=True)


def write_picture(path: Path, text: str) -> None:
    """Write a picture to a file, ``-`` for standard output; HostError if that cannot be done."""
    if str(path) == "-":
        sys.stdout.write(text)
        return
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise HostError(f"{path} cannot be written: {error.strerror or error}") from error


def takes_colour() -> bool:
    """Return whether standard output is a terminal that is to have colours. Source: no-color.org."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def width() -> int:
    """Return the columns there are to fill; 100 where nobody tells."""
    return shutil.get_terminal_size((100, 24)).columns


def speaks_unicode() -> bool:
    """Return whether standard output takes box-drawing characters."""
    return (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")
