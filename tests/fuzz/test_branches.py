"""The counting of branches, on a module of a few lines."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

from tests.fuzz.branches import Branches

SOURCE = """
def sign(number):
    if number < 0 and number > -10:
        return -1
    for _ in range(number):
        return 1
    return 0

def never(number):
    return 1 if number else 2
"""


def module(directory: Path) -> ModuleType:
    path = directory / "signs.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("signs", path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_each_way_out_of_each_condition_counts_once(tmp_path: Path) -> None:
    """Four conditions: two joined, a loop, and one in code that nothing calls."""
    signs = module(tmp_path)

    def share(*numbers: int) -> str:
        with Branches([signs]) as branches:
            for number in numbers:
                signs.sign(number)
        return list(branches.lines())[-1].split("(")[1]

    assert share() == "0 of 8 branches)"
    assert share(3, 4) == "2 of 8 branches)"
    assert share(3, -3) == "4 of 8 branches)"
    assert share(3, -3, -30, 0) == "6 of 8 branches)"
