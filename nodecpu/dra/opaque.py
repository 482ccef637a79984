"""A claim's own configuration: which CPUs, or how they are to be picked (pure; C9, C10).

It stands in the allocation beside the results, from the DeviceClass or from the claim, for some requests or for all:

    {"apiVersion": "v1alpha1", "cpuConfig": {"cpuset": "2-5"}}
    {"apiVersion": "v1alpha1", "cpuConfig": {"fullCores": true, "spread": "cores", "sameL3": true, "strict": true}}

What is not known is an error: a wish that nobody understands would be one that nobody keeps. Configurations of other
drivers are not looked at. Source: interfaces.md 2.3 and 3.3; the first form is the community driver's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

import msgspec

from nodecpu.cpuset import CpuSet
from nodecpu.errors import BadRequest
from nodecpu.policy.wishes import NO_WISHES, Spread, Wishes

MAX_PARAMETERS_BYTES: Final = 10 << 10
"""Source: resource.k8s.io/v1 validation of opaque parameters."""

_VERSION: Final = "v1alpha1"
_HINT: Final = 'known are apiVersion "v1alpha1" and cpuConfig with cpuset, fullCores, spread, sameL3 and strict'


class Opaque(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a configuration that is for one driver."""

    driver: str
    parameters: msgspec.Raw = msgspec.Raw(b"null")


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of an allocation's configuration."""

    source: str = ""
    requests: tuple[str, ...] | None = None
    opaque: Opaque | None = None


class _CpuConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    cpuset: str | None = None
    full_cores: bool | None = None
    spread: Literal["cores", "l3"] | None = None
    same_l3: bool | None = msgspec.field(default=None, name="sameL3")
    strict: bool | None = None


class _Parameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    api_version: str
    cpu_config: _CpuConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the configuration says for one result; None where it says nothing."""

    cpuset: CpuSet | None = None
    wishes: Wishes | None = None


def asked_for(entries: Iterable[Entry], driver: str, requests: Sequence[str], where: str) -> tuple[Asked, ...]:
    """Return what is asked for each of the results, given by their requests (``main`` or ``main/sub``).

    Entries of the class come first, those of the claim override them, key by key. An entry without requests is for all;
    one that names a request is for all of its sub-requests too. A cpuset has to come from the claim and to be for one
    result. Raises BadRequest, ``where`` naming the claim.
    """
    ours = [entry for entry in entries if entry.opaque is not None and entry.opaque.driver == driver]
    ours.sort(key=lambda entry: entry.source != "FromClass")
    found = [Asked() for _ in requests]
    for entry in ours:
        config = _decode(entry, where)
        targets = [i for i, request in enumerate(requests) if _is_for(entry, request)]
        cpuset = None if config.cpuset is None else _cpuset(config.cpuset, entry, len(targets), where)
        for i in targets:
            if cpuset is not None and found[i].cpuset is not None:
                raise BadRequest(f"{where}: several configurations name the CPUs of request {requests[i]}", hint=_ONE)
            found[i] = Asked(cpuset=cpuset or found[i].cpuset, wishes=_over(found[i].wishes, config))
    for one, request in zip(found, requests, strict=True):
        _check(one, f"{where}: configuration for request {request}")
    return tuple(found)


_ONE: Final = "give each request one cpuset, from the claim, and name the request in its configuration"


def _decode(entry: Entry, where: str) -> _CpuConfig:
    assert entry.opaque is not None
    raw = bytes(entry.opaque.parameters)
    if len(raw) > MAX_PARAMETERS_BYTES:
        raise BadRequest(f"{where}: configuration of {len(raw)} bytes, {MAX_PARAMETERS_BYTES} are allowed", hint=_HINT)
    try:
        parameters = msgspec.json.decode(raw, type=_Parameters)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise BadRequest(f"{where}: configuration: {str(error)[:200]}", hint=_HINT) from error
    if parameters.api_version != _VERSION:
        raise BadRequest(f"{where}: configuration of apiVersion {parameters.api_version[:40]!r}", hint=_HINT)
    return parameters.cpu_config


def _is_for(entry: Entry, request: str) -> bool:
    """Return whether an entry is for a request, as the API has it: by its name, or by that of its parent."""
    return not entry.requests or request in entry.requests or request.partition("/")[0] in entry.requests


def _cpuset(text: str, entry: Entry, targets: int, where: str) -> CpuSet:
    if entry.source == "FromClass":
        raise BadRequest(f"{where}: the configuration of the DeviceClass names CPUs", hint=_ONE)
    if targets > 1:
        raise BadRequest(f"{where}: one configuration names the CPUs of {targets} results", hint=_ONE)
    try:
        cpus = CpuSet.parse(text)
    except ValueError as error:
        raise BadRequest(f"{where}: configuration: cpuset {text[:80]!r}: {error}", hint=_HINT) from error
    if not cpus:
        raise BadRequest(f"{where}: configuration: the cpuset is empty", hint=_HINT)
    return cpus


def _over(wishes: Wishes | None, config: _CpuConfig) -> Wishes | None:
    """Return wishes with those of a configuration put over them; None while nobody has said anything."""
    told = wishes or NO_WISHES
    if config.full_cores is not None:
        told = replace(told, full_cores=config.full_cores)
    if config.spread is not None:
        told = replace(told, spread=Spread(config.spread))
    if config.same_l3 is not None:
        told = replace(told, same_l3=config.same_l3)
    if config.strict is not None:
        told = replace(told, strict=config.strict)
    is_silent = all(key is None for key in (config.full_cores, config.spread, config.same_l3, config.strict))
    return wishes if is_silent else told


def _check(asked: Asked, where: str) -> None:
    if asked.wishes is None:
        return
    if asked.cpuset is not None:
        raise BadRequest(f"{where}: names CPUs and says how to pick them", hint="one of the two")
    if asked.wishes.conflict:
        raise BadRequest(f"{where}: {asked.wishes.conflict}", hint=_HINT)
