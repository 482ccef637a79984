"""Grants and pods as stored rows (edge schema): JSON that a person can read with the sqlite3 tool.

Fields may be added with a default; a change of meaning is a migration. Decoding is strict in types.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from nodecpu.cpuset import CpuSet, NodeSet
from nodecpu.errors import StateError
from nodecpu.policy.facts import PodSpec
from nodecpu.policy.grants import ClaimGrant, ContainerGrant

Row = TypeVar("Row", ClaimGrant, ContainerGrant, PodSpec)


def _encode(value: object) -> object:
    if isinstance(value, CpuSet | NodeSet):
        return str(value)
    raise TypeError(f"not a stored type: {type(value).__name__}")


def _decode(wanted: type[object], value: object) -> object:
    if wanted in (CpuSet, NodeSet) and isinstance(value, str):
        return CpuSet.parse(value) if wanted is CpuSet else NodeSet.parse(value)
    raise TypeError(f"not a stored type: {wanted.__name__}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows(Generic[Row]):
    """Rows that can be read, the keys of those that cannot, and why the first of these cannot."""

    good: tuple[Row, ...]
    bad: tuple[str, ...] = ()
    failure: StateError | None = None


_ENCODER = msgspec.json.Encoder(enc_hook=_encode)


def to_row(value: ClaimGrant | ContainerGrant | PodSpec) -> bytes:
    """Return a value as it is stored."""
    return _ENCODER.encode(value)


def from_row(kind: type[Row], key: str, row: bytes) -> Row:
    """Return the value of a stored row; raises StateError naming the row's key."""
    try:
        return msgspec.json.decode(row, type=kind, dec_hook=_decode)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as err:  # TypeError: a number, say
        raise StateError(
            f"stored row {key} cannot be read: {err}", hint="it was written by another version or changed by hand"
        ) from err


def readable(kind: type[Row], word: str, rows: Iterable[tuple[str, bytes]]) -> Rows[Row]:
    """Return what can be read of stored rows; ``word`` is what messages call one."""
    good: list[Row] = []
    bad: list[str] = []
    failure: StateError | None = None
    for key, row in rows:
        try:
            good.append(from_row(kind, f"{word} {key}", row))
        except StateError as err:
            bad.append(key)
            failure = failure or err
    return Rows(good=tuple(good), bad=tuple(bad), failure=failure)
