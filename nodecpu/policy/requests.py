"""What a container asks for of its own, beside its claims (pure; G1, G13, G15, N1)."""

from __future__ import annotations

from dataclasses import dataclass

from nodecpu.cpuset import CpuSet
from nodecpu.policy.facts import Container, PodSpec, QoS, Sandbox
from nodecpu.policy.grants import Group
from nodecpu.policy.rules import Mirrored, Rules

_BARE_SHARES = 2
"""The least cpu.shares there are: what the kubelet sets for a container without a CPU request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A container's own wish: how many exclusive CPUs, and its portion of shared (or reserved) CPUs in milli-CPU.

    ``uses_shared`` with a portion of 0 is a container without a request. ``reason`` says what was decided and why.
    """

    group: Group
    qos: QoS
    exclusive: int = 0
    portion_mcpu: int = 0
    uses_shared: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """What is known of a container: its CPU request (0: none), whether it is known from the spec, its class."""

    mcpu: int
    qos: QoS
    from_spec: bool


def request_of(
    rules: Rules, sandbox: Sandbox, container: Container, spec: PodSpec | None, claimed: CpuSet, *, reserved: bool
) -> Request:
    """Return what a container gets of its own, given the CPUs it holds by claims.

    ``reserved`` tells whether the node has reserved CPUs: without them the reserved group is shared (T5).
    """
    told = _told(sandbox, container, spec)
    mcpu, why = told.mcpu, f"request {told.mcpu}m" if told.mcpu else "no CPU request"
    if not told.from_spec:
        why += " (by cpu.shares: the pod's spec is not known)"
    shared_only = False
    if claimed:
        mcpu, shared_only, why = _own_part(rules, mcpu, len(claimed), why)
        if not mcpu:
            return Request(group=Group.CLAIMED, qos=told.qos, reason=why)
    if reserved and rules.is_reserved(sandbox.namespace):
        why += f": reserved namespace {sandbox.namespace}"
        return Request(group=Group.RESERVED, qos=told.qos, portion_mcpu=mcpu, reason=why)
    exclusive = 0
    if told.qos is QoS.GUARANTEED and told.from_spec and not shared_only and not rules.is_flat:
        exclusive = _exclusive_part(mcpu)
    portion = mcpu - 1000 * exclusive
    if not exclusive:
        return Request(group=Group.SHARED, qos=told.qos, portion_mcpu=mcpu, uses_shared=True, reason=f"{why}: shared")
    return Request(
        group=Group.MIXED if exclusive == 1 else Group.MULTI,
        qos=told.qos,
        exclusive=exclusive,
        portion_mcpu=portion,
        uses_shared=portion > 0,
        reason=f"{why}: {exclusive} exclusive" + (f" and {portion}m shared" if portion else ""),
    )


def _exclusive_part(mcpu: int) -> int:
    """Return how many exclusive CPUs a Guaranteed request gets: 1 with a fraction is split, 2 with one is not."""
    whole, fraction = divmod(mcpu, 1000)
    return whole if whole == 1 or not fraction else 0


def _own_part(rules: Rules, mcpu: int, claimed: int, why: str) -> tuple[int, bool, str]:
    """Return what is left of a holder's request: milli-CPU, whether as a shared portion only, and why (G13, G15)."""
    if not mcpu:
        return 0, False, f"{why}: its claims alone"
    if mcpu < rules.token_request_mcpu:
        return 0, False, f"{why}, a token below {rules.token_request_mcpu}m: its claims alone"
    if rules.mirrored is Mirrored.ALWAYS or rules.is_flat:
        return 0, False, f"{why}, taken for the mirrored claim: its claims alone"
    if rules.mirrored is Mirrored.NEVER or rules.mapping_published:
        return mcpu, False, f"{why} beside its claims"
    if mcpu < 1000 * claimed:
        return mcpu, True, f"{why}, less than the {claimed} CPUs claimed"
    if mcpu == 1000 * claimed:
        return 0, False, f"{why} mirrors the {claimed} CPUs claimed: its claims alone"
    return mcpu - 1000 * claimed, False, f"{why}, {claimed} CPUs of it paid for the claims"


def _told(sandbox: Sandbox, container: Container, spec: PodSpec | None) -> _Told:
    if spec is not None:
        mine = spec.containers.get(container.name)
        return _Told(mcpu=(mine.request_mcpu if mine else None) or 0, qos=spec.qos, from_spec=True)
    shares = container.shares or 0
    # Rounded up: the kubelet rounds down when it makes shares of a request.
    mcpu = -(-shares * 1000 // 1024) if shares > _BARE_SHARES else 0
    return _Told(mcpu=mcpu, qos=_qos_by_cgroup(sandbox.cgroup_parent), from_spec=False)


def _qos_by_cgroup(parent: str) -> QoS:
    """Return the class that a pod's cgroup parent tells (both drivers name it); Guaranteed pods have no such part."""
    if "besteffort" in parent:
        return QoS.BEST_EFFORT
    return QoS.BURSTABLE if "burstable" in parent else QoS.GUARANTEED
