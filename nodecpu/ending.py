"""Nobody is held up by a restart while containers are being terminated (R6; pure but for the waiting, which is given).

containerd holds its plugin lock through a graceful stop; a plugin that registers meanwhile blocks every call of the
runtime until the grace has ended. So planned restarts wait until nothing terminates, and a daemon that was started all
the same registers only then: it would not be synchronised earlier in any case. Nothing over NRI tells that a stop has
begun, so the pod's deletion is gone by: what is stopped for another reason (a failed probe, a static pod) is not known,
nor is anything without the API server.

Source: containerd#14083.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from nodecpu.errors import LinkError, NodeCpuError
from nodecpu.policy.facts import ContainerState, PodSpec
from nodecpu.policy.grants import ContainerGrant

HELD_OFF: Final = "held off"
"""The state of a link to the runtime that is not made yet, so that nobody is held up."""

_PAUSE_S: Final = 0.5
_LOOK_S: Final = 0.1
"""Between two looks at cgroups: some 20 us for each container that terminates."""

_SHOWN: Final = 5


def terminating(
    containers: Iterable[ContainerGrant], spec_of: Callable[[ContainerGrant], PodSpec | None]
) -> tuple[str, ...]:
    """Return the names of those containers whose pods are to end, sorted: namespace/pod/container."""
    return being_stopped(containers, spec_of, lambda _: True)


def being_stopped(
    containers: Iterable[ContainerGrant],
    spec_of: Callable[[ContainerGrant], PodSpec | None],
    is_populated: Callable[[str], bool],
) -> tuple[str, ...]:
    """Return the names of those that terminate and have processes yet: a stop of theirs is over once they have not.

    ``is_populated`` tells of a container's cgroup, by its path.
    """
    return tuple(
        sorted(
            f"{one.namespace}/{one.pod}/{one.name}"
            for one in containers
            if one.state is not ContainerState.STOPPED
            and (spec := spec_of(one)) is not None
            and spec.terminating
            and is_populated(one.path)
        )
    )


def listed(names: tuple[str, ...]) -> str:
    """Return names for a sentence, the first few of many."""
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{rest}"


def await_ends(
    ask: Callable[[], tuple[str, ...]],
    *,
    wait_s: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
    told: Callable[[str], None],
) -> None:
    """Return once nothing terminates, or nobody can tell: a daemon that does not answer has no link to spare.

    ``ask`` returns what terminates; ``told`` hears what is waited for, each time that changes. Raises LinkError if
    something still terminates after ``wait_s``.
    """
    end = clock() + wait_s
    before: tuple[str, ...] = ()
    while names := _asked(ask, told):
        if clock() >= end:
            raise LinkError(
                f"not restarted: {listed(names)} did not end within {wait_s:g} s",
                hint="a restart now would hold up the runtime until they have; later, or with --now: nodecpu restart",
            )
        if names != before:
            told(f"waiting for the end of {listed(names)}")
            before = names
        sleep(_PAUSE_S)


async def hold_off(
    ask: Callable[[], tuple[str, ...]],
    *,
    limit_s: float,
    clock: Callable[[], float],
    pause: Callable[[float], Awaitable[bool]],
    told: Callable[[str], None],
) -> None:
    """Return once nothing is being stopped, after ``limit_s``, or as soon as ``pause`` says that all is to end.

    ``ask`` returns what is being stopped; ``told`` hears what is waited for, each time that changes.
    """
    end = clock() + limit_s
    before: tuple[str, ...] = ()
    while (names := ask()) and clock() < end:
        if names != before:
            told(f"waits for the end of {listed(names)}, so that the runtime is not blocked until then")
            before = names
        if await pause(_LOOK_S):
            return


def _asked(ask: Callable[[], tuple[str, ...]], told: Callable[[str], None]) -> tuple[str, ...]:
    try:
        return ask()
    except NodeCpuError as error:
        told(f"what terminates is not known: {error.message}")
        return ()
