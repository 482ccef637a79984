"""What a container asks for of its own, beside its claims (pure; G1, G13, G15, N1, A)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from nodecpu.cpuset import CpuSet
from nodecpu.errors import BadRequest
from nodecpu.policy.annotations import NO_PREFERENCES, Preferences
from nodecpu.policy.facts import Container, ContainerSpec, PodSpec, QoS, Resources, Sandbox
from nodecpu.policy.grants import ContainerGrant, Group
from nodecpu.policy.pools import Level
from nodecpu.policy.priority import Priority
from nodecpu.policy.pull import NO_PULL, Pull
from nodecpu.policy.rules import Mirrored, Rules

_BARE_SHARES = 2
"""The least cpu.shares there are: what the kubelet sets for a container without a CPU request."""

_MAX_SHARES = 262144
"""The most: a request above 256 CPUs cannot be told from it."""

_MIN_QUOTA_US = 1000
"""The least quota the kubelet sets."""

_PERIOD_US = 100_000
"""The CFS period where none is told. Source: kernel sched/core.c, default_cfs_period."""


class Isolated(Enum):
    """Whether exclusive CPUs come from the kernel's isolated ones (G10)."""

    AVOID = "avoid"
    PREFER = "prefer"
    REQUIRE = "require"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A container's own wish: how many exclusive CPUs, and its portion of shared (or reserved) CPUs in milli-CPU.

    ``uses_shared`` with a portion of 0 is a container without a request. ``told_mcpu`` and ``limit_mcpu`` are its CPU
    request and limit as they were told. ``burstable`` is the preferred level of the pool for a container that may use
    all it finds. ``memory_bytes`` is its memory limit or request, ``pull`` where it is drawn to. ``reason`` says what
    was decided and why.
    """

    group: Group
    qos: QoS
    exclusive: int = 0
    portion_mcpu: int = 0
    uses_shared: bool = False
    told_mcpu: int = 0
    limit_mcpu: int | None = None
    isolated: Isolated = Isolated.PREFER
    priority: Priority = Priority.NONE
    burstable: Level | None = None
    preferences: Preferences = NO_PREFERENCES
    memory_bytes: int = 0
    pull: Pull = NO_PULL
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What is known of a container: its CPU request (0: none) and limit, and its pod's class.

    The limit is the pod's where the container has none of its own. ``counted``: the scheduler counted its claims as CPU
    requests of the pod beside those it names (None: not known, then as the devices that are published say).
    ``may_own``: it may get exclusive CPUs, as far as its class and its amounts go. ``by_pod``: its cgroup's figures are
    made of its pod's resources. ``note`` is a word on where this comes from, for the reason.
    """

    mcpu: int
    limit_mcpu: int | None
    qos: QoS
    may_own: bool = True
    by_pod: bool = False
    counted: bool | None = None
    note: str = ""


def request_of(  # noqa: PLR0913 - each is a fact of its own
    rules: Rules,
    sandbox: Sandbox,
    container: Container,
    spec: PodSpec | None,
    claimed: CpuSet,
    *,
    reserved: bool,
    preferences: Preferences = NO_PREFERENCES,
    told: Told | None = None,
) -> Request:
    """Return what a container gets of its own, given the CPUs it holds by claims.

    ``reserved`` tells whether the node has reserved CPUs: without them the reserved group is shared (T5). ``told`` is
    what it asks for where that is known better than from its spec.
    """
    told = told or told_of(sandbox, container, spec)
    mcpu, why = told.mcpu, f"request {told.mcpu}m" if told.mcpu else "no CPU request"
    why += told.note
    base = Request(
        group=Group.IGNORED,
        qos=told.qos,
        told_mcpu=told.mcpu,
        limit_mcpu=told.limit_mcpu,
        isolated=_isolated(rules, preferences),
        priority=rules.priority if preferences.priority is None else preferences.priority,
        preferences=preferences,
        memory_bytes=_memory_bytes(container, spec),
    )
    if rules.is_ignored(sandbox.runtime_handler):
        return replace(base, reason=f"runtime handler {sandbox.runtime_handler}: left alone")
    if preferences.preserve_cpu:
        return replace(base, reason="cpu.preserve: left alone")
    shared_only = False
    if claimed:
        if told.counted is not None:
            rules = replace(rules, mapping_published=told.counted)
        word = _not_its_own(rules, preferences, mcpu, len(claimed))
        if word is not None:
            return replace(base, group=Group.CLAIMED, reason=f"{why}{word}: its claims alone")
        mcpu, shared_only, why = _own_part(rules, preferences, mcpu, len(claimed), why)
    where = _reserved_by(rules, sandbox, preferences) if reserved else None
    if where is not None:
        return replace(base, group=Group.RESERVED, portion_mcpu=mcpu, reason=f"{why}: {where}")
    exclusive, how = (0, "") if shared_only else _exclusive_part(rules, preferences, told, mcpu)
    if not exclusive:
        burstable = _burstable(rules, preferences, told)
        why = f"{why}: shared{how}"
        return replace(base, group=Group.SHARED, portion_mcpu=mcpu, uses_shared=True, burstable=burstable, reason=why)
    portion = mcpu - 1000 * exclusive
    return replace(
        base,
        group=Group.MIXED if exclusive == 1 else Group.MULTI,
        exclusive=exclusive,
        portion_mcpu=portion,
        uses_shared=portion > 0,
        reason=f"{why}: {exclusive} exclusive" + (f" and {portion}m shared" if portion else ""),
    )


def _memory_bytes(container: Container, spec: PodSpec | None) -> int:
    """Return what a container counts for in its memory nodes: its limit, else its request."""
    mine = None if spec is None else spec.containers.get(container.name)
    if mine is None:
        return container.memory_limit_bytes or 0
    return mine.limit_memory_bytes or mine.request_memory_bytes or 0


def told_of(sandbox: Sandbox, container: Container, spec: PodSpec | None) -> Told:
    """Return what a container asks for: by its spec, else by its cgroup's figures (N1)."""
    if spec is None:
        return Told(
            mcpu=_mcpu_of(container.shares),
            limit_mcpu=_limit_of(container.quota_us, container.period_us),
            qos=_qos_by_cgroup(sandbox.cgroup_parent),
            may_own=False,
            note=" (by cpu.shares: the pod's spec is not known)",
        )
    mine = spec.containers.get(container.name)
    mcpu = (mine.request_mcpu if mine else None) or 0
    limit = mine.limit_mcpu if mine else None
    by_pod = spec.pod_request_mcpu is not None or spec.pod_limit_mcpu is not None
    # With pod-level resources a Guaranteed pod may have containers that are not guaranteed anything themselves.
    may_own = spec.qos is QoS.GUARANTEED and (not by_pod or limit == mcpu)
    # The kubelet gives a container without a limit the pod's as its quota.
    limit = spec.pod_limit_mcpu if limit is None else limit
    counted = None if spec.counted_claims is None or mine is None else _is_counted(mine, spec.counted_claims)
    return Told(mcpu=mcpu, limit_mcpu=limit, qos=spec.qos, may_own=may_own, by_pod=by_pod, counted=counted)


def _is_counted(container: ContainerSpec, claims: frozenset[str]) -> bool:
    """Return whether the scheduler counted what a container claims: all claims of a pod, or none (KEP-5517)."""
    return any(one.claim in claims for one in container.claims)


def resized(grant: ContainerGrant, told: Told, wanted: Resources) -> Told:
    """Return what a container asks for after an in-place update (G12); ``told`` is what is known apart from it.

    The watch brings the new spec before the update or after it, so the update itself decides, against what the
    container has now; the spec says the exact amount where it agrees. Figures that are the pod's tell nothing (N1).
    """
    if told.by_pod:
        return told
    mcpu, limit, note = grant.told_mcpu, grant.limit_mcpu, ""
    if wanted.shares is not None and wanted.shares != _shares_of(mcpu):
        mcpu = told.mcpu if _shares_of(told.mcpu) == wanted.shares else _mcpu_of(wanted.shares)
    quota_us, period_us = wanted.quota_us, wanted.period_us
    if quota_us is not None and not _is_quota_of(limit, quota_us, period_us):
        by_spec = _is_quota_of(told.limit_mcpu, quota_us, period_us)
        limit = told.limit_mcpu if by_spec else _limit_of(quota_us, period_us)
    if mcpu != told.mcpu:
        note = f" (by the update; the pod's spec, as last seen, says {told.mcpu}m)"
    return replace(
        told,
        mcpu=mcpu,
        limit_mcpu=limit,
        qos=grant.qos,  # an update cannot change it
        may_own=told.may_own or bool(grant.exclusive),
        note=note,
    )


def check_handler(rules: Rules, sandbox: Sandbox, container: Container, claimed: CpuSet) -> None:
    """Raise BadRequest for a claim of a container that is left alone because of its runtime handler (G17)."""
    if claimed and rules.is_ignored(sandbox.runtime_handler):
        raise BadRequest(
            f"container {sandbox.namespace}/{sandbox.name}/{container.name}: runtime handler"
            f" {sandbox.runtime_handler} keeps the host's cpusets out, so it cannot run on the CPUs of its claim",
            hint="use another runtimeClassName or no claim; policy.ignored_handlers lists these handlers",
        )


def _mcpu_of(shares: int | None) -> int:
    """Return the request behind a container's shares. Exact: the kubelet rounds down, so this rounds up."""
    if shares is None or shares <= _BARE_SHARES:
        return 0
    return -(-shares * 1000 // 1024)


def _shares_of(mcpu: int) -> int:
    """Return the shares that the kubelet makes of a request. Source: pkg/kubelet/cm/helpers_linux.go."""
    return min(max(mcpu * 1024 // 1000, _BARE_SHARES), _MAX_SHARES)


def _limit_of(quota_us: int | None, period_us: int | None) -> int | None:
    """Return the limit behind a quota; None for none."""
    if quota_us is None or quota_us <= 0:
        return None
    return -(-quota_us * 1000 // (period_us or _PERIOD_US))


def _is_quota_of(limit_mcpu: int | None, quota_us: int, period_us: int | None) -> bool:
    """Return whether a limit gives a quota. Source: pkg/kubelet/cm/helpers_linux.go, MilliCPUToQuota."""
    if limit_mcpu is None:
        return quota_us <= 0
    return quota_us == max(limit_mcpu * (period_us or _PERIOD_US) // 1000, _MIN_QUOTA_US)


def _isolated(rules: Rules, preferences: Preferences) -> Isolated:
    if preferences.require_isolated:
        return Isolated.REQUIRE
    prefers = rules.prefer_isolated if preferences.prefer_isolated is None else preferences.prefer_isolated
    return Isolated.PREFER if prefers else Isolated.AVOID


def _reserved_by(rules: Rules, sandbox: Sandbox, preferences: Preferences) -> str | None:
    """Return why a container belongs to the reserved group; None if it does not."""
    if preferences.prefer_reserved is None:
        return f"reserved namespace {sandbox.namespace}" if rules.is_reserved(sandbox.namespace) else None
    return "reserved by annotation" if preferences.prefer_reserved and not rules.is_flat else None


def _exclusive_part(rules: Rules, preferences: Preferences, told: Told, mcpu: int) -> tuple[int, str]:
    """Return how many exclusive CPUs a request gets, and a word on why none where that was a choice (G1).

    A fraction beside one whole CPU is shared, beside two or more only where exclusive CPUs were asked for.
    """
    if not told.may_own or rules.is_flat:
        return 0, ""
    whole, fraction = divmod(mcpu, 1000)
    if not whole:
        return 0, ""
    shared = preferences.prefer_shared
    if rules.prefer_shared if shared is None else shared:
        return 0, ", as preferred"
    if whole > 1 and fraction and shared is not False:
        return 0, ", a fraction of two or more"
    return whole, ""


def _burstable(rules: Rules, preferences: Preferences, told: Told) -> Level | None:
    """Return the level preferred for a Burstable container without a CPU limit."""
    if told.qos is not QoS.BURSTABLE or told.limit_mcpu is not None:
        return None
    wanted = preferences.unlimited_burstable
    return rules.unlimited_burstable if wanted is None else wanted


def _own_part(rules: Rules, preferences: Preferences, mcpu: int, claimed: int, why: str) -> tuple[int, bool, str]:
    """Return what is left of a holder's request: milli-CPU, whether as a shared portion only, and why (G13, G15).

    It is more or less than what it claimed, or does not mirror it.
    """
    if preferences.claimed_cpus_only is False:
        return mcpu, False, f"{why} beside its claims, by annotation"
    if rules.mirrored is Mirrored.NEVER or rules.mapping_published:
        return mcpu, False, f"{why} beside its claims"
    if mcpu < 1000 * claimed:
        return mcpu, True, f"{why}, less than the {claimed} CPUs claimed"
    return mcpu - 1000 * claimed, False, f"{why}, {claimed} CPUs of it paid for the claims"


def _not_its_own(rules: Rules, preferences: Preferences, mcpu: int, claimed: int) -> str | None:
    """Return why a holder's request asks for nothing beside its claims, to follow the request; None if it does."""
    annotated = preferences.claimed_cpus_only
    is_mirror = not rules.mapping_published and rules.mirrored is Mirrored.AUTO and mcpu == 1000 * claimed
    reasons = (
        (not mcpu, ""),
        (rules.is_flat, ", taken for the mirrored claim"),
        (annotated is True, ", claimed-cpus-only"),
        (annotated is None and mcpu < rules.token_request_mcpu, f", a token below {rules.token_request_mcpu}m"),
        (annotated is None and rules.mirrored is Mirrored.ALWAYS, ", taken for the mirrored claim"),
        (annotated is None and is_mirror, f" mirrors the {claimed} CPUs claimed"),
    )
    return next((word for applies, word in reasons if applies), None)


def _qos_by_cgroup(parent: str) -> QoS:
    """Return the class that a pod's cgroup parent tells (both drivers name it); Guaranteed pods have no such part."""
    if "besteffort" in parent:
        return QoS.BEST_EFFORT
    return QoS.BURSTABLE if "burstable" in parent else QoS.GUARANTEED
