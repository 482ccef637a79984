"""Rooms import only what they may, and the core runs without what a daemon needs."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import nodecpu
from tests.support import ROOT

PACKAGE = Path(nodecpu.__file__).parent

PURE_STANDARD = (
    *(
        "__future__",
        "bisect",
        "collections",
        "dataclasses",
        "enum",
        "fnmatch",
        "functools",
        "hashlib",
        "itertools",
        "math",
    ),
    *("operator", "re", "struct", "types", "typing"),
)
"""Standard modules without I/O, clock, chance or logging."""

_POLICY = ("nodecpu.cpuset", "nodecpu.ids", "nodecpu.errors", "nodecpu.policy", "nodecpu.topology.model")
_CLAIMS = (*_POLICY, "msgspec", "nodecpu.quantity", "nodecpu.dra.devices", "nodecpu.dra.opaque")

PURE_ROOMS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("cpuset.py", "ids.py", "errors.py", "quantity.py", "nri/bytequeue.py"), ()),
    **{str(path.relative_to(PACKAGE)): _POLICY for path in (PACKAGE / "policy").glob("*.py")},
    "topology/model.py": ("nodecpu.cpuset",),
    "dra/claims.py": _CLAIMS,
    "dra/opaque.py": _CLAIMS,
    "dra/devices.py": _POLICY,
    "nri/mux.py": ("nodecpu.errors", "nodecpu.nri.bytequeue"),
    "nri/ttrpc.py": ("google.protobuf", "nodecpu.errors", "nodecpu.nri.bytequeue", "nodecpu.proto"),
    "nri/versions.py": ("nodecpu.proto",),
}
"""What each pure module may import besides the pure standard modules (a package stands for all below it)."""

DECISIONS = ("nodecpu.policy", "nodecpu.service", "nodecpu.books", "nodecpu.claims", "nodecpu.enforce", "nodecpu.store")
"""What the lab must not know: it is the other side of the wire."""


def imports(path: Path) -> Iterator[str]:
    """Yield the modules that a source file imports, wherever it does; ``from nodecpu.a import b`` in full."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in {path}"
            assert node.module is not None
            inner = node.module.startswith("nodecpu")
            yield from (f"{node.module}.{name.name}" for name in node.names) if inner else (node.module,)


def is_within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


@pytest.mark.parametrize("room", sorted(PURE_ROOMS))
def test_pure_room_imports_nothing_that_acts(room: str) -> None:
    """Architecture: pure rooms know no loop, disk, clock, chance or log."""
    allowed = PURE_ROOMS[room]
    assert [module for module in imports(PACKAGE / room) if not is_within(module, (*PURE_STANDARD, *allowed))] == []


def test_no_module_of_the_policy_is_longer_than_500_lines() -> None:
    """Architecture: who looks for a rule finds it."""
    sizes = {path.name: path.read_text().count("\n") for path in (PACKAGE / "policy").glob("*.py")}
    assert len(sizes) > 20
    assert {name: size for name, size in sizes.items() if size > 500} == {}


def test_lab_does_not_know_the_daemons_decisions() -> None:
    """Architecture: a test double that shares the code under test proves nothing."""
    found = {
        (str(path.relative_to(PACKAGE)), module)
        for path in (PACKAGE / "lab").rglob("*.py")
        for module in imports(path)
        if is_within(module, DECISIONS)
    }
    assert found == set()


def test_generated_protocols_are_imported_only_by_shells_and_codecs() -> None:
    """Architecture: protobuf types stop at dra, nri, kube (and the lab, which is the other side)."""
    found = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if path.relative_to(PACKAGE).parts[0] not in ("dra", "nri", "kube", "lab", "proto")
        and any(is_within(module, ("nodecpu.proto", "google.protobuf", "grpc")) for module in imports(path))
    }
    assert found == set()


BLOCKER = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked}:
            raise ImportError(f"{{name}} is not to be had here")

sys.meta_path.insert(0, Refuse())
for name in {blocked}:
    assert name not in sys.modules, name
sys.path.insert(0, {root})
from tests.unit.policy.given import claim, create, prepare, release, runs_on
from tests.unit.policy.machines import books
from nodecpu.policy.ledger import violations
import nodecpu.policy.pending, nodecpu.dra.claims, nodecpu.dra.devices, nodecpu.nri.mux

node = books()
shared = create(node, "web")
grant = prepare(node, claim(1, (1, 4), (2, 2)))
holder = create(node, "db", claims=[grant])
assert str(runs_on(node, holder)) == "4-9", runs_on(node, holder)
assert runs_on(node, shared).isdisjoint(grant.cpus)
assert violations(node.ledger) == []
print("fine")
"""


def test_core_runs_with_asyncio_sqlite_and_grpc_out_of_reach() -> None:
    """Style 3, question 2."""
    blocked = ("asyncio", "sqlite3", "grpc", "kubernetes", "google", "prometheus_client", "logging", "sdnotify")
    code = BLOCKER.format(blocked=repr(blocked), root=repr(str(ROOT)))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("fine\n", 0), done.stderr
