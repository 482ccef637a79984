"""Grants and pods as stored rows (edge schema): JSON that a person can read with the sqlite3 tool.

Fields may be added with a default; a change of meaning is a migration. Decoding is strict in types.
"""

from __future__ import annotations

from typing import TypeVar

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


_ENCODER = msgspec.json.Encoder(enc_hook=_encode)


def to_row(value: ClaimGrant | ContainerGrant | PodSpec) -> bytes:
    """Return a value as it is stored."""
    return _ENCODER.encode(value)


def from_row(kind: type[Row], key: str, row: bytes) -> Row:
    """Return the value of a stored row; raises StateError naming the row's key."""
    try:
        return msgspec.json.decode(row, type=kind, dec_hook=_decode)
    except (msgspec.MsgspecError, ValueError) as err:
        raise StateError(
            f"stored row {key} cannot be read: {err}", hint="it was written by another version or changed by hand"
        ) from err
