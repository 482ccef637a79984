"""What all verbs of a play share (asyncio): how a step fails, and how long it waits for what is expected."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from nodecpu.lab.kubelet import KubeletFault
from nodecpu.lab.scenario import Step

POLL_S: Final = 0.02


class StepFailed(Exception):
    """A step did not come out as it should; the text says how."""


async def eventually(unlike: Callable[[], str], within_s: float) -> None:
    """Return when nothing is unlike what is expected; StepFailed with what still is after ``within_s``."""
    deadline = asyncio.get_running_loop().time() + within_s
    while reason := unlike():
        if asyncio.get_running_loop().time() > deadline:
            raise StepFailed(reason)
        await asyncio.sleep(POLL_S)


def expected(step: Step, error: str) -> None:
    """Take a failure; StepFailed if it is not the one that the step wants."""
    wanted = step.text("error")
    if wanted is None:
        raise StepFailed(error)
    if wanted not in error:
        raise StepFailed(f"failed with {error!r}, which does not say {wanted!r}")


def not_expected(step: Step) -> None:
    """Take a success; StepFailed if the step wants a failure."""
    if step.text("error") is not None:
        raise StepFailed(f"succeeded, but had to fail with {step.text('error')!r}")


async def attempt(step: Step, act: Callable[[], Awaitable[object]]) -> None:
    """Have something done that may have to fail."""
    try:
        await act()
    except KubeletFault as error:
        expected(step, str(error))
    else:
        not_expected(step)
