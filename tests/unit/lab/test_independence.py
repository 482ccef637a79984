"""The lab is the other side of the wire: it shares codecs and values with the daemon, nothing that decides."""

from __future__ import annotations

import ast
from pathlib import Path

import nodecpu.lab

SHARED = (
    "nodecpu.cpuset",
    "nodecpu.errors",
    "nodecpu.lab",
    "nodecpu.nri.mux",
    "nodecpu.nri.ttrpc",
    "nodecpu.proto",
)


def test_lab_imports_nothing_that_decides() -> None:
    found = set()
    for file in Path(nodecpu.lab.__path__[0]).glob("*.py"):
        for statement in ast.walk(ast.parse(file.read_text())):
            if isinstance(statement, ast.ImportFrom):
                found.add((file.name, statement.module or ""))
            elif isinstance(statement, ast.Import):
                found.update((file.name, alias.name) for alias in statement.names)
    ours = {(file, module) for file, module in found if module.split(".")[0] == "nodecpu"}
    assert not {pair for pair in ours if not pair[1].startswith(SHARED)}
