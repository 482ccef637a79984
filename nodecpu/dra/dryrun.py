"""What an API server would not keep of our slices, found out before any is published (shell; D3).

A dry run passes through all that a write does: gates, validation, admission. So devices that a server would make
something else of are never published, not for a moment, and looking again whether it has learnt what it lacked writes
nothing. Where admission takes no dry run, a slice is stored that nobody takes anything of, and deleted again. Source:
Kubernetes API concepts, dry run; interfaces.md 3.2.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from nodecpu.dra.devices import Device
from nodecpu.dra.slices import (
    Form,
    Slice,
    canonical,
    decode_slice,
    decode_spec,
    dropped_fields,
    has_list,
    list_attributes,
    make_pool,
    never_whole,
    slice_object,
)
from nodecpu.kube.client import Api, ApiError

SLICES: Final = "/apis/resource.k8s.io/v1/resourceslices"
INVALID: Final = 422

_INDEX: Final = re.compile(r"\[[0-9]+\]", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """Two ways to find out what a server would drop of a node's devices.

    One device stands for all: what a gate is for is in each of them, but for lists. Both raise LinkError, BadRequest
    for a malformed answer and ApiError for a server in trouble.
    """

    api: Api
    driver: str
    node: str
    node_uid: str

    async def lacking(self, devices: Sequence[Device], form: Form) -> tuple[str, ...] | None:
        """Return the paths of what would be dropped by a dry run, None if the server takes none."""
        found = await self._sent(f"{SLICES}?dryRun=All", devices, form)
        return None if found is None else found[0]

    async def stored(self, devices: Sequence[Device], form: Form) -> tuple[tuple[str, ...], Slice] | None:
        """Return the paths of what was dropped, and the slice that was stored for it, which is to be deleted.

        No consumer takes anything of it: it is of the lowest generation there is, and one of two that are never both
        there. None if the server refuses it: the write itself will tell.
        """
        found = await self._sent(SLICES, devices, form)
        return None if found is None else (found[0], decode_slice(found[1]))

    async def _sent(self, path: str, devices: Sequence[Device], form: Form) -> tuple[tuple[str, ...], bytes] | None:
        one = next(filter(has_list, devices), devices[0])
        pool = make_pool(self.driver, self.node, (one,), form)
        trial = never_whole(pool)
        try:
            answer = await self.api.send("POST", path, msgspec.json.encode(slice_object(pool, trial, self.node_uid)))
        except ApiError as error:
            if error.is_transient:
                raise
            # Without the gate the server drops a list's values and then refuses the attribute that has none.
            lists = list_attributes(trial.spec) if error.status == INVALID else ()
            if not lists:
                return None  # admission that takes no dry run, say
            others = await self._sent(path, devices, replace(form, lists=False))
            return None if others is None else ((*lists, *others[0]), others[1])
        return dropped_fields(canonical(trial.spec), decode_spec(answer)), answer


def kinds_of(paths: Iterable[str]) -> frozenset[str]:
    """Return which fields these are, of whatever device."""
    return frozenset(_INDEX.sub("[]", path) for path in paths)
