"""Whether memory grows over a million events: ``python -m tests.bench.growth [EVENTS]``, half an hour for a million.

One daemon with 1000 containers lives through containers that come and go, over the wire; its memory is told at each
tenth of the way. ``make bench`` goes a fiftieth of this way.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Final

from tests.bench.api import CONTAINERS_PER_POD
from tests.bench.node_rows import linked
from tests.bench.yard import ApiProcess, yard
from tests.support import ROOT

EVENTS: Final = 1_000_000
CONTAINERS: Final = 1000
STEPS: Final = 10


def lines(events: int) -> Iterator[str]:
    """Yield the lines of the table."""
    yield "| events | resident memory, MiB | seconds |\n|---|---|---|"
    with yard() as place:
        api = ApiProcess(pods=CONTAINERS // CONTAINERS_PER_POD + 1, claims=[], cpus=1)
        place.configure(api.url)
        process = place.daemon(ROOT)
        with linked(place, api, process) as node:
            node.grow(CONTAINERS)
            place.runtime.used_s = lambda: 0.0  # not measured one by one
            began, found = time.monotonic(), [process.rss_mib]
            for step in range(STEPS):
                yield f"| {events * step // STEPS} | {found[-1]:.2f} | {time.monotonic() - began:.0f} |"
                node.come_and_go(events // STEPS)
                found.append(process.rss_mib)
            yield f"| {events} | {found[-1]:.2f} | {time.monotonic() - began:.0f} |"
            yield f"\nafter the first tenth: {found[-1] - found[1]:+.2f} MiB"


if __name__ == "__main__":
    for line in lines(int(sys.argv[1]) if sys.argv[1:] else EVENTS):
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
