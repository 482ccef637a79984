"""What CDI specs and running containers tell of claims that the books do not know (pure; R2).

At a first start, and after the claims database was lost, claims are live that nobody told us of: another driver gave
them, or we did. Such a claim is entered as *unproven*: its CPUs are kept from everybody else and its containers are
left alone, until the API server confirms it (it is adopted with the CPUs it has) or does not (it is dropped).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from nodecpu.cpuset import NO_CPUS, CpuSet, union
from nodecpu.ids import ClaimUID
from nodecpu.policy.facts import AllocatedClaim, AllocationResult, Container
from nodecpu.policy.grants import ClaimGrant, ResultGrant
from nodecpu.policy.links import ENV_PREFIX, UID_LENGTH, request_suffix
from nodecpu.policy.picker import Unit, pick

_DEVICE_PREFIX = "=claim-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A claim as it is told of: all its CPUs, and those of single requests by the end of their variables' names."""

    uid: ClaimUID
    cpus: CpuSet
    requests: Mapping[str, CpuSet]


def told_by(variables: Mapping[str, str]) -> tuple[Evidence, ...]:
    """Return the claims that variables (``DRA_CPUSET_<uid>``, ``DRA_CPUSET_<uid>_<request>``) tell of, by UID.

    Malformed names and values tell nothing, nor does a request's variable without its claim's, or with other CPUs.
    """
    wholes: dict[ClaimUID, CpuSet] = {}
    parts: dict[ClaimUID, dict[str, CpuSet]] = {}
    for name, value in variables.items():
        text = name.removeprefix(ENV_PREFIX)
        uid, rest = ClaimUID(text[:UID_LENGTH]), text[UID_LENGTH:]
        cpus = _parse(value)
        if not name.startswith(ENV_PREFIX) or not is_uid(uid) or not cpus:
            continue
        if rest.startswith("_"):
            parts.setdefault(uid, {})[rest] = cpus
        elif not rest:
            wholes[uid] = cpus
    return tuple(
        Evidence(
            uid=uid,
            cpus=cpus,
            requests={name: part for name, part in sorted(parts.get(uid, {}).items()) if part <= cpus},
        )
        for uid, cpus in sorted(wholes.items())
    )


def shown_by(container: Container) -> frozenset[ClaimUID]:
    """Return the UIDs of all claims that a container shows, by variables or CDI devices of whatever vendor."""
    names = (name.removeprefix(ENV_PREFIX) for name in container.claim_env)
    devices = (name.partition(_DEVICE_PREFIX)[2] for name in container.cdi_devices)
    return frozenset(ClaimUID(text[:UID_LENGTH]) for text in (*names, *devices) if is_uid(text[:UID_LENGTH]))


def is_uid(text: str) -> bool:
    """Return whether a text has the form of a Kubernetes UID."""
    parts = text.split("-")
    return [len(part) for part in parts] == [8, 4, 4, 4, 12] and all(c in "0123456789abcdef" for p in parts for c in p)


def unproven_grants(told: Iterable[Evidence], known: Iterable[ClaimUID], taken: CpuSet) -> tuple[ClaimGrant, ...]:
    """Return grants that keep the CPUs of claims not ``known`` from others; the first to tell of a CPU has it.

    ``taken`` are the CPUs that have an owner. A claim with nothing left tells nothing.
    """
    grants: dict[ClaimUID, ClaimGrant] = {}
    past = set(known)
    for one in told:
        if one.uid in past or one.uid in grants or not (free := one.cpus - taken):
            continue
        taken |= free
        grants[one.uid] = _unproven(one, free)
    return tuple(grants.values())


def _unproven(told: Evidence, cpus: CpuSet) -> ClaimGrant:
    results: list[ResultGrant] = []
    left = cpus
    for suffix, part in told.requests.items():
        if mine := part & left:
            results.append(ResultGrant(request=suffix, pool="", device="", cpus=mine))
            left -= mine
    if left:
        results.append(ResultGrant(request="", pool="", device="", cpus=left))
    return ClaimGrant(uid=told.uid, namespace="", name="", results=tuple(results), unproven=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where a result's CPUs are to come from: its device's, those ``named`` by its request first."""

    within: CpuSet
    named: CpuSet
    choice: int

    @classmethod
    def of(cls, old: ClaimGrant, wanted: AllocationResult, devices: Mapping[str, CpuSet]) -> _Place:
        """Return the place of a result among the CPUs that a claim runs on."""
        within = old.cpus & devices.get(wanted.device, old.cpus)
        request = request_suffix(wanted.request)
        told = [result.cpus for result in old.results if result.request and result.request == request]
        named = within & union(told) if told else within
        return cls(within=within, named=named, choice=len(named if len(named) >= wanted.cpus else within))


def adopted_grant(
    old: ClaimGrant, claim: AllocatedClaim, *, units: Unit, devices: Mapping[str, CpuSet], driver: str
) -> ClaimGrant | None:
    """Return the grant that gives a confirmed claim the CPUs it runs on; None if its allocation says otherwise.

    Each result gets its request's CPUs where those are known, of its device where that is one of ours (another
    driver's devices may have other names: they are kept, D7), two threads of a core together.
    """
    places = [_Place.of(old, wanted, devices) for wanted in claim.results]
    left = old.cpus
    found = [NO_CPUS] * len(places)
    # Who can have the fewest CPUs comes first: a device that holds others must not take what they need.
    for index in sorted(range(len(places)), key=lambda one: places[one].choice):
        wanted, place = claim.results[index], places[index]
        if wanted.admin_access:
            continue
        cpus = pick(units, place.named & left, wanted.cpus) or pick(units, place.within & left, wanted.cpus) or NO_CPUS
        if len(cpus) != wanted.cpus:
            return None
        found[index] = cpus
        left -= cpus
    if left or not union(found):
        return None
    results = [
        ResultGrant(
            request=wanted.request,
            pool=wanted.pool,
            device=wanted.device,
            cpus=cpus,
            share_id=wanted.share_id,
            admin_access=wanted.admin_access,
        )
        for wanted, cpus in zip(claim.results, found, strict=True)
    ]
    ids = tuple(f"{driver}/cpu=claim-{claim.uid}-{index}" for index in range(len(results)))
    return replace(
        old,
        namespace=claim.namespace,
        name=claim.name,
        results=tuple(results),
        cdi_ids=ids,
        unproven=False,
        released=False,
    )


def _parse(value: str) -> CpuSet | None:
    try:
        return CpuSet.parse(value)
    except ValueError:
        return None
