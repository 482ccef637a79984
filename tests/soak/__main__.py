"""``python -m tests.soak [EVENTS [SEED]]``: a million events by default, two lives at a time."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed

from tests.soak.run import Report, soak


def main(events: int, seed: int) -> int:
    workers = min(os.cpu_count() or 1, 8)
    with ProcessPoolExecutor(workers) as pool:
        share = -(-events // workers)
        reports: list[Report] = []
        for one in as_completed([pool.submit(soak, share, seed + number) for number in range(workers)]):
            reports.append(one.result())
            print(reports[-1].text(), flush=True)  # noqa: T201 - output
    print(f"{sum(report.events.total() for report in reports)} events, 0 violations")  # noqa: T201 - output
    return 0


if __name__ == "__main__":
    numbers = [int(argument) for argument in sys.argv[1:]]
    count, first = [*numbers, *(1_000_000, 1)[len(numbers) :]]
    sys.exit(main(count, first))
