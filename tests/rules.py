"""Which test covers which rule: reads the docstrings of all tests, writes docs/reference/rules.md.

A test names the rules it covers by id in its docstring, or the module's docstring does for all tests of the file. A
scenario of the lab names them in its list ``rules``; the tests play all scenarios.
``python -m tests.rules`` writes the page and fails if a rule has no test.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support import ROOT

PAGE = ROOT / "docs" / "reference" / "rules.md"

RULES = {
    "T1": "Everything is read from sysfs; only the online list is required",
    "T2": "Ids may be sparse or repeated; cores come from sibling lists, levels from set inclusion",
    "T3": "Online NUMA nodes only; nodes without CPUs or without memory are placed by distance",
    "T4": "Package, die, cluster, core, caches, node, core type and isolation are known of each CPU",
    "T5": "Usable CPUs are computed in one place: online, available, allowed by kubepods, less reserved",
    "T6": "CPUs that go and come and nodes that appear are followed; who holds CPUs keeps what is left",
    "T7": "After a reboot container grants are dropped, claims keep their CPUs on the same topology",
    "N1": "What a pod asked for comes from its spec; without it nothing exclusive is inferred",
    "P1": "The tree of pools leaves out levels that add nothing",
    "P2": "A pool's CPUs are isolated, reserved or sharable; its memory is what is near",
    "P3": "CPUs are sliced off only as far as every pool still covers its shared containers",
    "C1": "Only our results count; a wrong one is an error that names claim and result",
    "C2": "An amount is picked from the device's free CPUs, two threads of a core together",
    "C3": "Several results get disjoint CPUs, all or nothing",
    "C4": "A claim is a grant of its own",
    "C5": "Given CPUs are refused if held or if shared portions would be over-committed",
    "C6": "Prepare repeats its answer and rebuilds a missing CDI spec; a new UID is a new claim",
    "C7": "What can come right soon is waited for inside prepare, without holding up others",
    "C8": "Prepare checks its own books even against the scheduler",
    "C9": "A claim's configuration may name its CPUs, checked against count, device and books",
    "C10": "A claim's configuration may say how CPUs are picked, strictly or not",
    "C11": "One CDI spec per claim, one device per result, written atomically",
    "C12": "CPUs return after unprepare and when no linked container remains",
    "C13": "Admin access observes and takes nothing",
    "C14": "Prepare makes room by lifting shared containers",
    "L1": "A container is linked by CDI name, or by a variable checked against books and pod",
    "L2": "Some requests of a claim give those requests' CPUs",
    "L3": "Claims may be shared, as far as configured",
    "L4": "A link is decided at creation and holds for the container's life",
    "G1": "Without a claim: reserved, shared, mixed or multi",
    "G2": "A claim and no request: exactly the claim's CPUs",
    "G3": "A claim and a request: both",
    "G4": "Reserved containers keep the reserved CPUs if they ask for CPU",
    "G5": "A holder with CPUs of its own is placed in the pool of its claims",
    "G6": "CPU shares follow the shared portion, else the CPUs owned",
    "G7": "Hiding hyperthreads concerns what is a container's own, never what it claimed",
    "G8": "Exclusive holders are never rewritten when the pool changes",
    "G9": "Nobody else runs on claimed CPUs; no cpuset is ever empty",
    "G10": "Isolated CPUs are for exclusive use, and for all of it or none",
    "G11": "Released on stop, or when the runtime no longer knows the container",
    "G12": "A resize keeps claimed CPUs, grows and shrinks own ones in place, or is refused with a reason",
    "G13": "A request that mirrors the claim is not given twice",
    "G14": "No quota throttles CPUs that a container owns, neither its own nor its pod's",
    "G15": "A token request counts as none",
    "G16": "Shared containers are never refused for lack of milli-CPUs",
    "G17": "Containers of some runtime handlers are left alone, their claims refused",
    "A": "What pods may ask for by annotation, read strictly; what is wrong is told and has no effect",
    "S": "Pools are compared in a fixed order, the first difference decides and is told",
    "M1": "Memory nodes follow the pool, by kind, widened to the parent where they do not suffice",
    "K1": "The smallest unit that holds the request, best fit within it",
    "K2": "Full cores only, spread over cores or nodes, one L3 cache",
    "K3": "Picking never grows exponentially",
    "K4": "Faster or slower CPUs are preferred for exclusive use, by annotation or default",
    "D1": "Names, capacity and request policy of the devices",
    "D2": "An attribute is published only if it holds for every CPU the device can give",
    "D3": "Claims are counted as CPU requests where the server knows of that; what it drops is reported",
    "D4": "Slices follow the generation protocol and are written only on a change in meaning",
    "D5": "Ready, registered and published are three things",
    "D6": "Device health is streamed: unhealthy with its reason, heartbeat, both versions",
    "D7": "After a switch of grouping, live claims are served by their old device names",
    "X2": "The pools as a NodeResourceTopology, written on change, at most once a second",
    "X1": "Each container can read what it got, in a file kept up to date",
    "E1": "What the kernel enforces is compared with the books, and put right by the mildest means",
    "E2": "All around the daemon is looked at and reported with its remedy; a static manager is stood aside from",
    "R1": "After a restart nothing moves",
    "R2": "Synchronize tells which containers exist, the books who owns what",
    "R3": "Another configuration is taken over while running, whole or not at all; claims keep their CPUs",
    "R4": "Containers created while the daemon was away are repaired",
    "R5": "SIGTERM finishes the request in hand, removes its sockets and exits 0",
    "R6": "A healthy runtime link is never dropped on purpose",
    "R7": "Differences are taken against what was read back",
}
"""Rules that are built, in few words; who builds another one adds it here."""

_LETTERS = "".join(sorted({rule[0] for rule in RULES}))
_SECTION = re.compile(r"\b([AS])(?=[,:;.)]|$)", re.MULTILINE)
"""Sections without numbers; the English article is followed by a word."""

_MENTION = re.compile(
    rf"\b([{_LETTERS}]\d{{1,2}})\b(?:(?: to |-)([{_LETTERS}]\d{{1,2}})\b)?(?! (?:cache|group|line|id|list))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cover:
    """A scenario, or one docstring of a test file, and the rules it names."""

    file: str
    rules: frozenset[str]


def mentioned(text: str) -> frozenset[str]:
    """Return the rule ids in a docstring; "C1 to C3" and "C1-C3" mean all between. "L3 cache" is no rule."""
    found: set[str] = set()
    for first, last in _MENTION.findall(text):
        if last and last[0] == first[0]:
            found |= {f"{first[0]}{number}" for number in range(int(first[1:]), int(last[1:]) + 1)}
        else:
            found |= {first, last} - {""}
    found.update(_SECTION.findall(text))
    return frozenset(found & RULES.keys())


def covers(tests: Path) -> Iterator[Cover]:
    """Yield each docstring below ``tests`` that names rules, in the order of the files."""
    for path in sorted(tests.rglob("test_*.py")):
        module = ast.parse(path.read_text(), str(path))
        file = path.relative_to(tests).as_posix()
        of_file = mentioned(ast.get_docstring(module) or "")
        if of_file:
            yield Cover(file=file, rules=of_file)
        for item in ast.walk(module):
            if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                of_test = (
                    mentioned(ast.get_docstring(item) or "") if item.name.lower().startswith("test") else frozenset()
                )
                if of_test:
                    yield Cover(file=file, rules=of_test)


def scenarios(directory: Path) -> Iterator[Cover]:
    """Yield each scenario file that names rules."""
    for path in sorted(directory.glob("*.toml")):
        rules = tomllib.loads(path.read_text()).get("rules", [])
        yield Cover(file=f"lab: {path.stem}", rules=frozenset(RULES.keys() & set(rules)))


def all_covers() -> list[Cover]:
    """Return all that names rules in this project."""
    return [*covers(ROOT / "tests"), *scenarios(ROOT / "nodecpu" / "lab" / "scenarios")]


def page(found: list[Cover]) -> str:
    """Return the page: one row per rule, with the files of the tests that name it."""
    rows = ["| rule | what it asks, in short | tests |", "|---|---|---|"]
    for rule, words in RULES.items():
        files = sorted({cover.file for cover in found if rule in cover.rules})
        tests = ", ".join(f"`{file}`" for file in files)
        rows.append(f"| {rule} | {words} | {tests or '**none**'} |")
    return "# Rules and the tests that hold them\n\nWritten by `make rules`.\n\n" + "\n".join(rows) + "\n"


def uncovered(found: list[Cover]) -> list[str]:
    """Return the rules that no test names."""
    named = frozenset[str]().union(*(cover.rules for cover in found))
    return [rule for rule in RULES if rule not in named]


def main() -> int:
    """Write the page; 1 if a rule has no test."""
    found = all_covers()
    PAGE.write_text(page(found))
    missing = uncovered(found)
    if missing:
        sys.stderr.write(f"no test names: {', '.join(missing)}\n")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
