"""A ResourceClaim as the API server stores it becomes an AllocatedClaim (pure).

Everything is checked for form here, whoever wrote it: a claim that decodes is safe to name files, variables and replies
after. Whether the devices exist and have room is for the policy to say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from nodecpu.cpuset import MAX_ID
from nodecpu.dra.devices import is_one_cpu
from nodecpu.dra.opaque import Asked, Entry, asked_for
from nodecpu.errors import BadRequest
from nodecpu.ids import ClaimUID, PodUID
from nodecpu.policy.facts import AllocatedClaim, AllocationResult
from nodecpu.quantity import NANO, parse_quantity

MAX_CLAIM_BYTES: Final = 4 << 20
"""No stored object is larger: etcd refuses requests above 1.5 MiB."""

_UID: Final = re.compile(r"[0-9A-Za-z](?:[0-9A-Za-z-]{0,62}[0-9A-Za-z])?", re.ASCII)
# Source: resource.k8s.io/v1 validation: requests and devices are DNS labels, a request may name its sub-request.
_LABEL: Final = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_POD_CLAIM: Final = "resource.kubernetes.io/pod-claim-name"
"""The annotation of a claim made of a template. Source: resourceclaim controller of Kubernetes 1.36."""

_DEVICE: Final = re.compile(_LABEL, re.ASCII)
_REQUEST: Final = re.compile(f"{_LABEL}(?:/{_LABEL})?", re.ASCII)
_POOL: Final = re.compile(r"[a-z0-9](?:[a-z0-9./-]{0,251}[a-z0-9])?", re.ASCII)


class _Metadata(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    namespace: str
    uid: str
    annotations: Mapping[str, str] | None = None


class _Result(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    driver: str
    request: str
    pool: str
    device: str
    admin_access: bool | None = None
    share_id: str | None = msgspec.field(default=None, name="shareID")
    consumed_capacity: Mapping[str, str | int] | None = None


class _Devices(msgspec.Struct, frozen=True, kw_only=True):
    results: tuple[_Result, ...] | None = None
    config: tuple[Entry, ...] | None = None


class _Allocation(msgspec.Struct, frozen=True, kw_only=True):
    devices: _Devices = _Devices()


class _Consumer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    resource: str
    uid: str
    api_group: str | None = None


class _Status(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    allocation: _Allocation | None = None
    reserved_for: tuple[_Consumer, ...] | None = None


class _Claim(msgspec.Struct, frozen=True, kw_only=True):
    metadata: _Metadata
    status: _Status | None = None


_DECODER: Final = msgspec.json.Decoder(_Claim)


def parse_claim_uid(text: str) -> ClaimUID:
    """Return the UID if it is one that may name files, variables and CDI devices; raises BadRequest otherwise."""
    if not _UID.fullmatch(text):
        raise BadRequest(f"claim UID {text[:64]!r} is malformed: letters, digits and hyphens are allowed, 64 at most")
    return ClaimUID(text)


def decode_claim(
    data: bytes, *, driver: str, uid: ClaimUID, namespace: str, name: str, cpus_per_device: int | None = None
) -> AllocatedClaim:
    """Return what a ResourceClaim (JSON) allocates of our driver; results of other drivers are left out (C1).

    A result without consumed capacity counts one CPU where its device is one by its name, else ``cpus_per_device``;
    None: an error. Raises BadRequest for a malformed claim, one without allocation, and one of another UID under that
    name.
    Source: interfaces.md 3.3.
    """
    claim = f"claim {namespace}/{name}"
    decoded = _decode(data, claim)
    if (found := decoded.metadata.uid) != uid:
        raise BadRequest(
            f"{claim}: its UID is {found[:64]!r}, not {uid}",
            hint="the claim was deleted and created again; the pod that used the old one has to be created again too",
        )
    status = decoded.status
    if status is None or status.allocation is None:
        raise BadRequest(f"{claim}: not allocated", hint="the scheduler has to allocate it to a pod first")
    results = [(i, one) for i, one in enumerate(status.allocation.devices.results or ()) if one.driver == driver]
    config = status.allocation.devices.config or ()
    asked = asked_for(config, driver, [one.request for _, one in results], claim) if results else ()
    return AllocatedClaim(
        uid=uid,
        namespace=namespace,
        name=name,
        results=tuple(
            _result(one, wishes, f"{claim}: result {index} ({one.request[:127]})", cpus_per_device)
            for (index, one), wishes in zip(results, asked, strict=True)
        ),
        reserved_for=frozenset(
            PodUID(one.uid) for one in status.reserved_for or () if one.resource == "pods" and not one.api_group
        ),
        pod_claim=_pod_claim(decoded.metadata),
    )


def _pod_claim(metadata: _Metadata) -> str:
    """Return what the pod calls a claim that was made of a template; a name that is none counts as absent."""
    name = (metadata.annotations or {}).get(_POD_CLAIM, "")
    return name if _DEVICE.fullmatch(name) else ""


def claim_is_over(data: bytes, *, driver: str, pool: str, namespace: str, name: str) -> bool:
    """Return whether nobody may use a ResourceClaim (JSON) on this node any more, whatever was prepared of it (U41).

    So it is when it is not allocated, reserved for nobody, or allocated without a device of our driver's pool here.
    Raises BadRequest for anything that is no claim.
    """
    status = _decode(data, f"claim {namespace}/{name}").status
    if status is None or status.allocation is None or not status.reserved_for:
        return True
    results = status.allocation.devices.results or ()
    return not any((one.driver, one.pool) == (driver, pool) for one in results)


def claim_uid(data: bytes, *, namespace: str, name: str) -> ClaimUID:
    """Return the UID of a ResourceClaim (JSON); raises BadRequest for anything that is none."""
    return parse_claim_uid(_decode(data, f"claim {namespace}/{name}").metadata.uid)


def _decode(data: bytes, claim: str) -> _Claim:
    if len(data) > MAX_CLAIM_BYTES:
        raise BadRequest(f"{claim}: {len(data)} bytes are more than any stored object has ({MAX_CLAIM_BYTES})")
    try:
        return _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise BadRequest(f"{claim}: not a ResourceClaim: {str(error)[:200]}") from error


def _result(result: _Result, asked: Asked, where: str, cpus_per_device: int | None) -> AllocationResult:
    for field, form in (("request", _REQUEST), ("pool", _POOL), ("device", _DEVICE)):
        value: str = getattr(result, field)
        if not form.fullmatch(value):
            raise BadRequest(f"{where}: {field} {value[:64]!r} is malformed")
    admin = bool(result.admin_access)
    return AllocationResult(
        request=result.request,
        pool=result.pool,
        device=result.device,
        cpus=0 if admin else _cpus(result, where, cpus_per_device),
        share_id=result.share_id,
        admin_access=admin,
        cpuset=asked.cpuset,
        wishes=asked.wishes,
    )


def _cpus(result: _Result, where: str, cpus_per_device: int | None) -> int:
    """Return how many CPUs the result consumed; raises BadRequest naming the amount and what is wrong with it."""
    name = f"{result.driver}/cpu"
    amount = (result.consumed_capacity or {}).get(name)
    if amount is None:
        if is_one_cpu(result.device):
            return 1
        if cpus_per_device is not None:
            return cpus_per_device
        raise BadRequest(
            f"{where}: device {result.device} without consumed capacity {name}",
            hint="the feature gate DRAConsumableCapacity has to be on in API server and scheduler",
        )
    text = str(amount)
    try:
        nano = parse_quantity(text)
    except ValueError as error:
        raise BadRequest(f"{where}: device {result.device}, consumed {name}: {error}") from error
    if nano <= 0:
        wrong = "not positive"
    elif nano % NANO:
        wrong = "not a whole number of CPUs"
    elif nano > MAX_ID * NANO:
        wrong = "more CPUs than any machine has"
    else:
        return nano // NANO
    raise BadRequest(f"{where}: device {result.device}, consumed {name} is {text}: {wrong}")
