"""The form of what is decoded from a claim: nothing changes it, every part of it is named."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator

import msgspec
import pytest

MODULES = ("nodecpu.dra.claims", "nodecpu.dra.opaque")


def structs(module: str) -> Iterator[type[msgspec.Struct]]:
    for one in vars(importlib.import_module(module)).values():
        if isinstance(one, type) and issubclass(one, msgspec.Struct) and one.__module__ == module:
            yield one


@pytest.mark.parametrize("module", MODULES)
def test_decoded_values_are_frozen_and_built_by_name(module: str) -> None:
    """Architecture: values compare by content and cannot be changed behind one's back."""
    found = list(structs(module))
    assert found
    for struct in found:
        assert struct.__struct_config__.frozen, struct
        kinds = {parameter.kind for parameter in inspect.signature(struct).parameters.values()}
        assert kinds == {inspect.Parameter.KEYWORD_ONLY}, struct
