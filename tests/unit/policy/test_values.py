"""The form that values have, whatever they say: nothing changes them, nothing is added to them, every part is named."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

import nodecpu

PACKAGE = Path(nodecpu.__file__).parent
PURE = (
    *(f"nodecpu.policy.{path.stem}" for path in sorted((PACKAGE / "policy").glob("[a-z]*.py"))),
    *(f"nodecpu.dra.{name}" for name in ("claims", "devices", "opaque")),
)
WORKING = {"_Census"}
"""Not values: what a single function counts with."""


def values(module: str) -> Iterator[type]:
    for one in vars(importlib.import_module(module)).values():
        if isinstance(one, type) and is_dataclass(one) and one.__module__ == module:
            yield one


def test_every_module_of_the_policy_is_looked_at() -> None:
    """A check of values that finds none would hold of anything."""
    found = [value.__name__ for module in PURE for value in values(module)]
    assert len(found) > 30
    assert {"ClaimGrant", "ContainerGrant", "AllocatedClaim", "Change", "Placement", "Device"} <= set(found)


@pytest.mark.parametrize("module", PURE)
def test_values_are_frozen_closed_and_built_by_name(module: str) -> None:
    """Architecture: decisions are made of values, which compare by content and cannot be changed behind one's back."""
    for value in values(module):
        assert "__slots__" in vars(value), value
        if value.__name__ in WORKING:
            continue
        assert value.__dataclass_params__.frozen, value  # type: ignore[attr-defined]  # no public way to ask
        assert all(field.kw_only for field in fields(value)), value


SOMETHING = {("Told", "may_own"): True, ("Device", "step"): 1}
"""Defaults that are something."""


def test_what_is_not_said_is_nothing() -> None:
    """A part that is left out says no, or nought; the rules apart, whose defaults are the configuration's."""
    found = {
        (value.__name__, part.name): part.default
        for module in PURE
        for value in values(module)
        for part in fields(value)
        if isinstance(part.default, bool | int) and value.__name__ != "Rules"
    }
    assert found == dict.fromkeys(found, 0) | SOMETHING
