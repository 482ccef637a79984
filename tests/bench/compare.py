"""Two commits compared pair by pair: passes over the one and the other in turn, on one yard, by one driver.

The driver is that of this tree; only the daemon comes from the commit, out of a work tree of git.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.bench.measure import median, number
from tests.bench.node_rows import Effort, one_pass
from tests.bench.start_rows import Starts
from tests.bench.yard import Yard, yard
from tests.support import ROOT

_PAIRS = 3
_EFFORT = Effort(rounds=60, holders=5, events=1000, idle_s=3, counts=(0, 1000))

HEAD = "| what | base | this | pairs, this / base | median of these |\n|---|---|---|---|---|"


def compared(revision: str) -> Iterator[str]:
    """Yield the lines of the table."""
    with _tree_of(revision) as base, yard() as place:
        pairs = [(_figures(place, base), _figures(place, ROOT)) for _ in range(_PAIRS)]
    yield HEAD
    for name in pairs[0][0]:
        yield _line(name, [(old[name], new[name]) for old, new in pairs])


def _figures(place: Yard, tree: Path) -> Mapping[str, float]:
    """Return the figures of one pass by name: milliseconds, but for those that tell their unit."""
    done = one_pass(place, tree, _EFFORT)
    starts = Starts(place, tree)
    starts.measure(1)
    figures = dict(done.figures)
    for name, times in {**done.times, **starts.times}.items():
        took = median(times)
        figures |= {name: took.wall_s * 1e3, f"{name}, processor": took.cpu_s * 1e3}
    return figures


def _line(name: str, pairs: Sequence[tuple[float, float]]) -> str:
    ratios = [new / old for old, new in pairs if old]
    cells = (
        name,
        number(statistics.median(old for old, _ in pairs)),
        number(statistics.median(new for _, new in pairs)),
        " ".join(f"{ratio:.2f}" for ratio in ratios),
        f"{statistics.median(ratios):.2f}" if ratios else "",
    )
    return f"| {' | '.join(cells)} |"


@contextlib.contextmanager
def _tree_of(revision: str) -> Iterator[Path]:
    """Yield a work tree of a revision, which goes with the block."""
    with tempfile.TemporaryDirectory(prefix="nodecpu-base-") as directory:
        tree = Path(directory) / "tree"
        _git("worktree", "add", "--detach", "--force", str(tree), revision)
        try:
            yield tree
        finally:
            _git("worktree", "remove", "--force", str(tree))


def _git(*words: str) -> None:
    subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, timeout=60)
