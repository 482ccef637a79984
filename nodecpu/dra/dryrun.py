"""What an API server would not keep of our slices, found out without storing any (shell; D3).

A dry run passes through all that a write does: gates, validation, admission. So devices that a server would make
something else of are never published, not for a moment, and looking again whether it has learnt what it lacked writes
nothing. Source: Kubernetes API concepts, dry run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import msgspec

from nodecpu.dra.devices import Device
from nodecpu.dra.slices import (
    Form,
    canonical,
    decode_spec,
    dropped_fields,
    has_list,
    list_attributes,
    make_pool,
    only_slice,
    slice_object,
)
from nodecpu.kube.client import Api, ApiError

SLICES: Final = "/apis/resource.k8s.io/v1/resourceslices"
INVALID: Final = 422

_INDEX: Final = re.compile(r"\[[0-9]+\]", re.ASCII)


async def lacking(
    api: Api, devices: Sequence[Device], form: Form, *, driver: str, node: str, node_uid: str
) -> tuple[str, ...] | None:
    """Return the paths of what the server would drop of such devices, None if it cannot be found out this way.

    One device stands for all: what a gate is for is in each of them, but for lists. Raises LinkError, BadRequest for
    a malformed answer and ApiError for a server in trouble.
    """
    one = next(filter(has_list, devices), devices[0])
    pool = make_pool(driver, node, (one,), form)
    trial = only_slice(pool)
    try:
        answer = await api.send(
            "POST", f"{SLICES}?dryRun=All", msgspec.json.encode(slice_object(pool, trial, node_uid))
        )
    except ApiError as error:
        if error.is_transient:
            raise
        # Without the gate the server drops a list's values and then refuses the attribute that has none.
        lists = list_attributes(trial.spec) if error.status == INVALID else ()
        if not lists:
            return None  # admission that takes no dry run, say: the write itself will tell
        others = await lacking(api, devices, replace(form, lists=False), driver=driver, node=node, node_uid=node_uid)
        return None if others is None else (*lists, *others)
    return dropped_fields(canonical(trial.spec), decode_spec(answer))


def kinds_of(paths: Iterable[str]) -> frozenset[str]:
    """Return which fields these are, of whatever device."""
    return frozenset(_INDEX.sub("[]", path) for path in paths)
