"""Which scheduling classes put their processes before others' (A)."""

from __future__ import annotations

import pytest

from nodecpu.policy.scheduling import IoClass, SchedulingClass, SchedulingPolicy


@pytest.mark.parametrize(
    ("made", "takes"),
    [
        *(
            (SchedulingClass(name="x", policy=policy), policy.value in ("fifo", "rr", "deadline"))
            for policy in SchedulingPolicy
        ),
        *((SchedulingClass(name="x", io_class=io_class), io_class is IoClass.REALTIME) for io_class in IoClass),
        *((SchedulingClass(name="x", nice=nice), nice < 0) for nice in (-20, -1, 0, 1, 19)),
        (SchedulingClass(name="x"), False),
        (SchedulingClass(name="x", policy=SchedulingPolicy.OTHER, nice=-1), True),
        (SchedulingClass(name="x", policy=SchedulingPolicy.FIFO, io_class=IoClass.IDLE), True),
    ],
)
def test_real_time_lower_niceness_and_real_time_io_take_from_others(made: SchedulingClass, *, takes: bool) -> None:
    """A: these are for trusted namespaces."""
    assert made.takes_from_others is takes


def test_class_that_says_nothing_leaves_everything_to_the_runtime() -> None:
    """A: zero is the kernel's default of each figure."""
    made = SchedulingClass(name="plain")
    assert (made.policy, made.io_class, made.flags) == (None, None, ())
    assert {made.priority, made.nice, made.runtime_ns, made.deadline_ns, made.period_ns, made.io_priority} == {0}
