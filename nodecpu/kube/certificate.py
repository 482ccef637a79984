"""What credentials tell of themselves (pure): until when they are good, and for whom. Nothing is verified here.

Certificates are read by the few lines of DER that are needed; secrets are never part of an error. Source: RFC 5280 4.1,
RFC 7519 4.1.4.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import msgspec

_BEGIN: Final = b"-----BEGIN CERTIFICATE-----"
_END: Final = b"-----END CERTIFICATE-----"
_COMMON_NAME: Final = bytes.fromhex("0603550403")
"""The object identifier 2.5.4.3."""

_VERSION: Final = 0xA0
_UTC_TIME: Final = 0x17
_MAX_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A certificate's end in Unix seconds, and its subject's common name (empty if it has none)."""

    expires_at: float
    common_name: str


class _Claims(msgspec.Struct, frozen=True, kw_only=True):
    exp: float | None = None


def read_certificate(pem: bytes) -> Certificate | None:
    """Return the first certificate of a PEM text, None if there is none that can be read."""
    _, _, rest = pem[:_MAX_BYTES].partition(_BEGIN)
    body, found, _ = rest.partition(_END)
    if not found:
        return None
    try:
        return _certificate(base64.b64decode(b"".join(body.split()), validate=True))
    except (ValueError, IndexError, StopIteration, binascii.Error):
        return None


def token_expiry(token: str) -> float | None:
    """Return the end of a JSON web token in Unix seconds, None for other tokens and those without an end."""
    parts = token.strip().split(".")
    if len(parts) != 3 or len(token) > _MAX_BYTES:
        return None
    try:
        payload = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        return msgspec.json.decode(payload, type=_Claims).exp
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return None


def _certificate(der: bytes) -> Certificate:
    _, whole = next(_values(der))
    _, signed = next(_values(whole))
    fields = list(_values(signed))
    if fields[0][0] == _VERSION:
        fields = fields[1:]
    _serial, _algorithm, _issuer, (_, validity), (_, subject) = fields[:5]
    tag, until = list(_values(validity))[1]
    return Certificate(expires_at=_time(tag, until.decode("ascii")), common_name=_common_name(subject))


def _common_name(subject: bytes) -> str:
    for _, names in _values(subject):
        for _, pair in _values(names):
            if pair.startswith(_COMMON_NAME):
                return list(_values(pair))[1][1].decode()
    return ""


def _time(tag: int, text: str) -> float:
    form = "%y%m%d%H%M%SZ" if tag == _UTC_TIME else "%Y%m%d%H%M%SZ"
    return datetime.strptime(text, form).replace(tzinfo=UTC).timestamp()


def _values(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tag and content of each value in a row; ValueError or IndexError for what is cut short."""
    position = 0
    while position < len(data):
        tag, length = data[position], data[position + 1]
        position += 2
        if length & 0x80:
            size = length & 0x7F
            if not 1 <= size <= 4:
                raise ValueError("length")
            length = int.from_bytes(data[position : position + size], "big")
            position += size
        if position + length > len(data):
            raise ValueError("cut short")
        yield tag, data[position : position + length]
        position += length
