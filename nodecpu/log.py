"""Lines for the journal: a constant sentence, then key=value (shell: standard error).

One list of keys, in the order they are printed. A value never breaks its line and never looks like another key, whoever
chose it: pod and container names come from outside. ``op`` is carried by the context and ties together the lines of one
inbound call. Outside the journal the lines are the same without the level prefix.
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, TextIO, TypedDict, Unpack

from nodecpu.errors import NodeCpuError


class Fields(TypedDict, total=False):
    """Every key a line may carry. None leaves the key out."""

    op: str | None
    claim: str | None
    claim_uid: str | None
    pod: str | None
    pod_uid: str | None
    sandbox_id: str | None
    container: str | None
    container_id: str | None
    cpus: object
    mems: object
    numa: object
    device: str | None
    pool: str | None
    runtime: str | None
    version: object
    state: str | None
    count: int | None
    ms: float | None
    path: object
    err: object
    hint: str | None


KEYS: Final = tuple(Fields.__annotations__)

MAX_VALUE: Final = 4000
"""Characters of one value: the journal splits lines far above this."""

_JSON: Final = json.JSONEncoder(ensure_ascii=False).encode
_PLAIN: Final = re.compile(r'[^\s"=\\]+')
_ATTRIBUTE: Final = "nodecpu_fields"
_PRIORITIES: Final = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))

_op: ContextVar[str] = ContextVar("op", default="")


@contextmanager
def operation(op: str = "") -> Iterator[str]:
    """Give all lines logged within, in tasks started within too, the same ``op``; a new random one unless given."""
    op = op or secrets.token_hex(3)
    token = _op.set(op)
    try:
        yield op
    finally:
        _op.reset(token)


def kv(logger: logging.Logger, level: int, sentence: str, **fields: Unpack[Fields]) -> None:
    """Log a constant sentence with values. An error given as ``err`` brings its hint along. TypeError: unknown key."""
    if not fields.keys() <= Fields.__annotations__.keys():
        unknown = sorted(fields.keys() - Fields.__annotations__.keys())
        raise TypeError(f"not a key of log lines: {', '.join(unknown)}")
    if logger.isEnabledFor(level):
        # Not by ``logger.log``: it looks up who called, which no line tells, and that takes as long as all the rest.
        record = logging.LogRecord(logger.name, level, "", 0, sentence, (), None)
        setattr(record, _ATTRIBUTE, {"op": _op.get() or None, **fields})
        logger.handle(record)


def setup(level: str, stream: TextIO | None = None) -> None:
    """Send log lines of ``level`` (debug, info, warning, error) and graver to a stream, standard error by default.

    Libraries are heard from warning on. May be called again: the last call counts.
    """
    stream = stream or sys.stderr
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter(prefixed=_is_journal(stream)))
    root = logging.getLogger()
    for old in [h for h in root.handlers if isinstance(h.formatter, LineFormatter)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    set_level(level)


def set_level(level: str) -> None:
    """Change the level while running."""
    logging.getLogger("nodecpu").setLevel(level.upper())


class LineFormatter(logging.Formatter):
    """Writes a record as one line; a traceback follows on lines of its own, each indented."""

    def __init__(self, *, prefixed: bool) -> None:
        super().__init__()
        self._prefixed = prefixed

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        fields: Mapping[str, object] = getattr(record, _ATTRIBUTE, {})
        lines = [line(record.getMessage(), fields)]
        if record.exc_info:
            lines += ("  " + _printable(part) for part in self.formatException(record.exc_info).splitlines())
        if not self._prefixed:
            return "\n".join(lines)
        priority = next((number for level, number in _PRIORITIES if record.levelno >= level), 7)
        return "\n".join(f"<{priority}>{part}" for part in lines)


def line(sentence: str, fields: Mapping[str, object]) -> str:
    """Return a sentence and its values as one line, keys in the order of the list."""
    error = fields.get("err")
    if isinstance(error, NodeCpuError):
        fields = {"hint": error.hint or None, **fields, "err": error.message}
    elif isinstance(error, BaseException):
        fields = {**fields, "err": f"{type(error).__name__}: {error}"}
    pairs = [f"{key}={_quoted(str(value))}" for key in KEYS if (value := fields.get(key)) is not None]
    return " ".join((_printable(sentence), *pairs))


def _quoted(text: str) -> str:
    """Return a value as it is, or as a JSON string where it could be misread."""
    if len(text) > MAX_VALUE:
        text = text[: MAX_VALUE - 3] + "..."
    if text.isprintable() and _PLAIN.fullmatch(text):
        return text
    return _printable(_JSON(text))


def _printable(text: str) -> str:
    """Return the text with everything that could move a cursor or end a line escaped as in JSON."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in text)


def _is_journal(stream: TextIO) -> bool:
    """Return whether the stream is the one systemd connected to the journal (Source: systemd.exec(5))."""
    try:
        device, inode = (int(part) for part in os.environ.get("JOURNAL_STREAM", "").split(":"))
        found = os.fstat(stream.fileno())
    except (ValueError, OSError):
        return False
    return (found.st_dev, found.st_ino) == (device, inode)
