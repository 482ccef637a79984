"""Kubernetes quantities as exact whole numbers (pure).

A quantity is held as billionths (nano-units), the finest step Kubernetes keeps: anything finer is rounded up, as there.
"""

from __future__ import annotations

import re
from typing import Final

NANO: Final = 10**9
"""Billionths in one unit."""

_MAX_TEXT: Final = 64
_MAX_EXPONENT: Final = 18
_MAX_NANO: Final = (2**63 - 1) * NANO  # Source: apimachinery resource.Quantity: values above int64 are capped

_FORM: Final = re.compile(
    r"([+-]?)(?=\.?[0-9])([0-9]*)(?:\.([0-9]*))?(?:([KMGTPE]i|[numkMGTPE]|)|[eE]([+-]?[0-9]{1,3}))", re.ASCII
)
_POWER_OF_TEN: Final = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_POWER_OF_TWO: Final = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def parse_quantity(text: str) -> int:
    """Return the quantity in billionths, rounded up (towards positive) where it is finer.

    Raises ValueError, with the text, for other forms and for values beyond what Kubernetes keeps (63 bits of units).
    Source: apimachinery resource.Quantity.
    """
    found = _FORM.fullmatch(text) if len(text) <= _MAX_TEXT else None
    if found is None:
        raise ValueError(f"not a quantity: {text[:_MAX_TEXT]!r}")
    sign, whole, fraction, suffix, exponent = found.groups(default="")
    power = int(exponent) if exponent else _POWER_OF_TEN.get(suffix, 0)
    if abs(power) > _MAX_EXPONENT:
        raise ValueError(f"quantity out of range: {text!r}")
    scaled = int(f"{whole}{fraction}") << _POWER_OF_TWO.get(suffix, 0)
    if sign == "-":
        scaled = -scaled
    tens = power - len(fraction) + 9
    factor: int = 10 ** abs(tens)
    nano = scaled * factor if tens >= 0 else -(-scaled // factor)
    if abs(nano) > _MAX_NANO:
        raise ValueError(f"quantity out of range: {text!r}")
    return nano


def parse_milli(text: str) -> int:
    """Return the quantity in thousandths, rounded up; raises as parse_quantity."""
    return -(-parse_quantity(text) // 10**6)


def parse_units(text: str) -> int:
    """Return the quantity in whole units, rounded up; raises as parse_quantity."""
    return -(-parse_quantity(text) // NANO)
