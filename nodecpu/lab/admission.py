"""What an API server makes of an object before it stores it (pure): one way for all that is written, by whomever.

The server's HTTP face and the lab's own scheduler, controllers and users go through here, so that no scenario stands on
an object that a real server would refuse.
"""

from __future__ import annotations

from collections.abc import Mapping

from nodecpu.lab.claimrules import claim_faults, class_faults, name_faults
from nodecpu.lab.jsontree import Json, JsonObject, node, text
from nodecpu.lab.objects import CLAIMS, CLASSES, SLICES, TOPOLOGIES, ApiError, Kind, topology_faults
from nodecpu.lab.slicerules import Features, kept, slice_faults


def admitted(
    kind: Kind, body: Mapping[str, Json], old: Mapping[str, Json] | None, *, status: bool, features: Features
) -> JsonObject:
    """Return what is to be stored in place of ``old``, if there is one; ApiError 422 for what validation refuses.

    Fields that a server with these features does not know are dropped. With ``status`` only the status is replaced.
    """
    stored = kept(body, features) if kind is SLICES else node(body)
    if faults := [] if _is_stale(body, old) else _faults(kind, stored, old, status=status):
        raise ApiError(422, "Invalid", f"{kind.kind} is invalid: {'; '.join(faults)}")
    return stored


def _faults(kind: Kind, body: Mapping[str, Json], old: Mapping[str, Json] | None, *, status: bool) -> list[str]:
    if kind is CLAIMS:
        return claim_faults(body, old, status=status)
    faults = [] if old is not None else list(name_faults(body))
    if kind is SLICES:
        faults += slice_faults(body, old)
    if kind is CLASSES:
        faults += class_faults(body)
    if kind is TOPOLOGIES:
        faults += topology_faults(body)
    return faults


def _is_stale(body: Mapping[str, Json], old: Mapping[str, Json] | None) -> bool:
    """Return whether a change is of another version than the current one: refused as that before it is validated."""
    version = text(body, "metadata", "resourceVersion")
    return old is not None and version not in ("", text(old, "metadata", "resourceVersion"))
