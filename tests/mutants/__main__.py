"""Do the tests bite? Changes the code of the decisions in small ways, one at a time, and runs the tests (make mutants).

    python -m tests.mutants [--jobs N] [--sample N] [--seed S] [--near] [MODULE ...]

A change that no test notices is a survivor: a line of output, to be read. Some cannot be noticed, because they change
nothing that matters: these are in tests/mutants/explained.py, with the reason. The others miss a test. Nothing on disk
is touched.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence

import hypothesis.stateful  # noqa: F401 - loaded once, before there are children
from hypothesis import HealthCheck, Phase, settings

from tests.mutants import fresh, placed
from tests.mutants.changes import Mutant, modules, mutants, path_of
from tests.mutants.explained import EXPLAINED, Explained
from tests.support import ROOT

ENOUGH_PERCENT = 85

settings.register_profile(
    "mutants",
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=tuple(HealthCheck),
)


def main(arguments: Sequence[str]) -> int:
    """Try changes and print the survivors; 1 if fewer than 85 of a hundred were noticed."""
    options = _options(arguments)
    found: list[Mutant] = []
    for module in options.modules or modules():
        every = mutants(module)
        chosen = random.Random(options.seed).sample(every, options.sample) if 0 < options.sample < len(every) else every
        found += chosen
    noticed: Counter[str] = Counter()
    explained: Counter[str] = Counter()
    used: set[Explained] = set()
    for mutant, survives in _tried(found, options.jobs, near=options.near):
        reason = _reason(mutant)
        if survives and reason is not None:
            explained[mutant.module] += 1
            used.add(reason)
        elif survives:
            _say(f"  {_place(mutant)}")
        else:
            noticed[mutant.module] += 1
    for module in dict.fromkeys(mutant.module for mutant in found):
        _say(f"{module}: {_sum(sum(m.module == module for m in found), noticed[module], explained[module])}")
        if not options.sample and not options.near:
            for one in set(EXPLAINED.get(module, ())) - used:
                _say(f"  explained, but noticed or not there: {one.where}: {one.what}")
    _say(f"together: {_sum(len(found), noticed.total(), explained.total())}")
    return 0 if 100 * noticed.total() >= ENOUGH_PERCENT * len(found) else 1


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--jobs", type=int, default=1, help="so many processes at a time")
    parser.add_argument(
        "--sample", type=int, default=0, help="so many changes of each module, chosen by the seed; 0: all"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--near", action="store_true", help="run only the tests of the module itself: quick, and too strict"
    )
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="as in nodecpu.policy.picker; none: all")
    return parser.parse_args(arguments)


def _tried(found: Sequence[Mutant], jobs: int, *, near: bool) -> Iterator[tuple[Mutant, bool]]:
    """Yield of each change whether it survives, in the order in which that is known."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        try:
            code = placed.run(found, jobs, writing, near=near)
        except SystemExit as end:
            sys.stderr.write(f"{end}\n")
            code = 1
        os._exit(code)
    os.close(writing)
    rest: list[Mutant] = []
    with os.fdopen(reading) as answers:
        for line in answers:
            number, word = line.split()
            if word == "fresh":
                rest.append(found[int(number)])
            else:
                yield found[int(number)], word == "survived"
    if os.waitpid(child, 0)[1]:
        raise SystemExit("the tests could not be run")
    yield from fresh.tried(rest, jobs, near=near)


def _reason(mutant: Mutant) -> Explained | None:
    return next((e for e in EXPLAINED.get(mutant.module, ()) if (e.where, e.what) == (mutant.where, mutant.what)), None)


def _place(mutant: Mutant) -> str:
    return f"{path_of(mutant.module).relative_to(ROOT)}:{mutant.line}: {mutant.where}: {mutant.what}"


def _sum(tried: int, noticed: int, explained: int) -> str:
    percent = 100 * noticed / tried if tried else 100.0
    left = tried - noticed - explained
    return f"{noticed} of {tried} noticed ({percent:.0f} %), {explained} explained, {left} left"


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
