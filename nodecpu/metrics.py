"""Metrics: what is counted while running, and the Prometheus text of it made when asked for.

Counting is adding to plain numbers, so the hot paths pay nothing; the client library (a tenth of a second to import) is
loaded at the first scrape. Gauges are computed from the state at that moment, so they cannot be stale. Every metric
is declared once, in ``FAMILIES``. No label carries the name of a pod, claim or container.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from nodecpu.admin.state import CounterState, HistogramState, NodeState
from nodecpu.cpuset import CpuSet, union
from nodecpu.enforce.causes import Cause
from nodecpu.errors import NodeCpuError
from nodecpu.histogram import Histogram
from nodecpu.refusals import Kind, Refusals

if TYPE_CHECKING:
    from prometheus_client import Metric

PREPARE_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
CLAIM_BOUNDS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Counters:
    """What happened since the start.

    ``annotations`` without effect go by reason, ``repairs`` and ``drifts`` by cause, ``refusals`` by the error's code;
    the last of them are kept whole, in ``last_refusals``. ``prepares`` and ``unprepares`` go by result, success or
    error. ``started_at`` is the start, in Unix time.
    """

    __slots__ = (
        "annotations",
        "claim_cpus",
        "drifts",
        "forged_claims",
        "given_up",
        "gone_claims",
        "last_refusals",
        "late_containers",
        "nri_reconnects",
        "prepare_s",
        "prepares",
        "refusals",
        "repairs",
        "started_at",
        "unprepares",
    )

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.started_at = now()
        self.forged_claims = 0
        self.given_up = 0
        self.gone_claims = 0
        self.late_containers = 0
        self.nri_reconnects = 0
        self.annotations: Counter[str] = Counter()
        self.repairs: Counter[str] = Counter()
        self.drifts: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.last_refusals = Refusals()
        self.prepares: Counter[str] = Counter()
        self.unprepares: Counter[str] = Counter()
        self.prepare_s = Histogram(PREPARE_BOUNDS_S)
        self.claim_cpus = Histogram(CLAIM_BOUNDS)

    def refused(self, err: NodeCpuError, kind: Kind, name: str, uid: str) -> None:
        """Count a refusal and keep it: of a claim, of a container's creation or of its resize."""
        self.refusals[err.code] += 1
        self.last_refusals.note(err, kind, name, uid)

    def state(self) -> CounterState:
        """Return the present counts."""
        return CounterState(
            started_at=self.started_at,
            forged_claims=self.forged_claims,
            given_up=self.given_up,
            gone_claims=self.gone_claims,
            late_containers=self.late_containers,
            nri_reconnects=self.nri_reconnects,
            annotations=dict(self.annotations),
            repairs=dict(self.repairs),
            drifts=dict(self.drifts),
            refusals=dict(self.refusals),
            prepares=dict(self.prepares),
            unprepares=dict(self.unprepares),
            prepare_s=_told(self.prepare_s),
            claim_cpus=_told(self.claim_cpus),
        )


def _told(histogram: Histogram) -> HistogramState:
    return HistogramState(bounds=histogram.bounds, counts=tuple(histogram.counts), total=histogram.total)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One metric as it is told: ``name`` without the suffixes that Prometheus' text adds, ``label`` empty for none.

    ``always`` are values of the label that are told from the start, at 0: a rate does not see a series' first value.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    label: str = ""
    always: tuple[str, ...] = ()

    @property
    def full_name(self) -> str:
        """The name as queries use it."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


_RESULTS: Final = ("error", "success")
_REPAIRS: Final = ("drift", "overdue", "pod-quota", "quota", "widened")
_DRIFTS: Final = tuple(cause.value for cause in Cause)

FAMILIES: Final = (
    Family(name="nodecpu_build_info", kind="gauge", label="version", help="1 for the version that runs."),
    Family(name="nodecpu_start_time_seconds", kind="gauge", help="When the daemon started, in Unix time."),
    Family(name="nodecpu_link_up", kind="gauge", label="link", help="Whether a link is up: runtime, kubelet, api."),
    Family(name="nodecpu_aside", kind="gauge", help="Whether nothing is pinned since a manager of the kubelet does."),
    Family(
        name="nodecpu_published",
        kind="gauge",
        help="Whether the API server has the devices as they are now; not told without an API server.",
    ),
    Family(name="nodecpu_preflight", kind="gauge", label="grade", help="Findings of the daemon's checks, by grade."),
    Family(name="nodecpu_cpus", kind="gauge", label="use", help="CPUs by use."),
    Family(name="nodecpu_claims", kind="gauge", label="state", help="Claims in the books, by state."),
    Family(name="nodecpu_claims_offline", kind="gauge", help="Claims in the books some of whose CPUs are offline."),
    Family(name="nodecpu_containers", kind="gauge", label="group", help="Containers in the books, by group."),
    Family(
        name="nodecpu_containers_adrift",
        kind="gauge",
        help="Containers whose cpuset in the kernel is another than the books have.",
    ),
    Family(name="nodecpu_strangers", kind="gauge", help="Containers that the runtime has not told of."),
    Family(
        name="nodecpu_shared_load_mcpu", kind="gauge", help="What shared containers ask for, in thousandths of a CPU."
    ),
    Family(
        name="nodecpu_credentials_expire_timestamp_seconds",
        kind="gauge",
        help="When the credentials for the API server end, in Unix time.",
    ),
    Family(
        name="nodecpu_prepares", kind="counter", label="result", always=_RESULTS, help="Prepared claims, by result."
    ),
    Family(
        name="nodecpu_unprepares", kind="counter", label="result", always=_RESULTS, help="Unprepared claims, by result."
    ),
    Family(name="nodecpu_prepare_duration_seconds", kind="histogram", help="How long the preparation of a claim took."),
    Family(name="nodecpu_claim_cpus", kind="histogram", help="CPUs of each claim that was given some."),
    Family(name="nodecpu_refusals", kind="counter", label="code", help="Requests refused, by error code."),
    Family(
        name="nodecpu_repairs",
        kind="counter",
        label="cause",
        always=_REPAIRS,
        help="Cpusets and quotas put right, by cause.",
    ),
    Family(
        name="nodecpu_drifts",
        kind="counter",
        label="cause",
        always=_DRIFTS,
        help=f"Cpusets that others changed, by cause: {', '.join(_DRIFTS)}.",
    ),
    Family(name="nodecpu_given_up", kind="counter", help="Times that a cpuset was given up after repeated fights."),
    Family(
        name="nodecpu_late_containers", kind="counter", help="Containers found on the wrong CPUs at synchronisation."
    ),
    Family(name="nodecpu_nri_reconnects", kind="counter", help="Times the link to the runtime came back."),
    Family(name="nodecpu_forged_claims", kind="counter", help="Claim variables a container was not entitled to."),
    Family(name="nodecpu_gone_claims", kind="counter", help="Claims released because their object was gone."),
    Family(name="nodecpu_annotations", kind="counter", label="reason", help="Annotations without effect, by reason."),
)
"""Every metric of ours, in the order of the text."""

COMPATIBLE: Final = (
    Family(name="dra_cpu_allocated_cpus", kind="gauge", help="CPUs of prepared claims."),
    Family(name="dra_cpu_available_cpus", kind="gauge", help="CPUs that claims could get."),
    Family(name="dra_cpu_reserved_cpus", kind="gauge", help="CPUs that are reserved."),
    Family(name="dra_cpu_resource_claims_active", kind="gauge", help="Claims in the books."),
    Family(
        name="dra_cpu_prepare_claims",
        kind="counter",
        label="result",
        always=_RESULTS,
        help="Prepared claims, by result.",
    ),
    Family(
        name="dra_cpu_unprepare_claims",
        kind="counter",
        label="result",
        always=_RESULTS,
        help="Unprepared claims, by result.",
    ),
    Family(name="dra_cpu_prepare_claim_duration_seconds", kind="histogram", help="How long a preparation took."),
    Family(name="dra_cpu_claim_allocated_cpus", kind="histogram", help="CPUs of each claim that was given some."),
)
"""The same by the names of dra-driver-cpu, for dashboards that know these. Source: its pkg/metrics/metrics.go."""

_Value = float | Mapping[str, int] | HistogramState | None


def render(state: NodeState, *, compatible: bool = False) -> bytes:
    """Return the metrics of a node in Prometheus' text format, with those ``compatible`` to dra-driver-cpu's names."""
    from prometheus_client import CollectorRegistry, generate_latest  # noqa: PLC0415 - slow, and not always wanted

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(state, compatible=compatible))
    return generate_latest(registry)


class _Collector:
    """The metrics of one moment, in the form the library asks for."""

    def __init__(self, state: NodeState, *, compatible: bool) -> None:
        self._state = state
        self._compatible = compatible

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        values = _values(self._state)
        if self._compatible:
            values |= _compatible_values(values, self._state)
        for family in (*FAMILIES, *(COMPATIBLE if self._compatible else ())):
            value = values[family.name]
            if value is not None:
                yield _metric(family, value)


def _known(value: float | msgspec.UnsetType) -> float | None:
    return None if value is msgspec.UNSET else value


def _values(state: NodeState) -> dict[str, _Value]:
    """Return every metric's value by its name; None: there is none at the moment."""
    counts = state.counters
    links = state.links
    up = {"runtime": links.runtime, "kubelet": links.kubelet, "api": links.api}
    return {
        "nodecpu_build_info": {state.version: 1},
        "nodecpu_start_time_seconds": counts.started_at or None,
        "nodecpu_published": None if links.api.state == "off" else float(state.published),
        "nodecpu_link_up": {name: int(link.state == "connected") for name, link in up.items()},
        "nodecpu_aside": float(bool(state.aside)),
        "nodecpu_preflight": Counter(one.grade for one in state.preflight),
        "nodecpu_cpus": _cpus_by_use(state),
        "nodecpu_claims": Counter(c.state for c in state.claims),
        "nodecpu_claims_offline": _claims_offline(state),
        "nodecpu_containers": Counter(c.group for c in state.containers),
        "nodecpu_containers_adrift": float(
            sum(1 for c in state.containers if c.confirmed is not None and c.cpus and c.confirmed != c.cpus)
        ),
        "nodecpu_shared_load_mcpu": float(max((pool.load_mcpu for pool in state.pools), default=0)),
        "nodecpu_credentials_expire_timestamp_seconds": _known(links.api.credentials_expire_at),
        "nodecpu_prepares": counts.prepares,
        "nodecpu_unprepares": counts.unprepares,
        "nodecpu_prepare_duration_seconds": counts.prepare_s,
        "nodecpu_claim_cpus": counts.claim_cpus,
        "nodecpu_refusals": counts.refusals,
        "nodecpu_repairs": counts.repairs,
        "nodecpu_drifts": counts.drifts,
        "nodecpu_given_up": float(counts.given_up),
        "nodecpu_strangers": float(len(state.enforcement.strangers)),
        "nodecpu_late_containers": float(counts.late_containers),
        "nodecpu_nri_reconnects": float(counts.nri_reconnects),
        "nodecpu_forged_claims": float(counts.forged_claims),
        "nodecpu_gone_claims": float(counts.gone_claims),
        "nodecpu_annotations": counts.annotations,
    }


def _compatible_values(ours: Mapping[str, _Value], state: NodeState) -> dict[str, _Value]:
    uses = _cpus_by_use(state)
    return {
        "dra_cpu_allocated_cpus": float(uses["claimed"]),
        "dra_cpu_available_cpus": float(uses["shared"] + uses["isolated_free"]),
        "dra_cpu_reserved_cpus": float(uses["reserved"]),
        "dra_cpu_resource_claims_active": float(len(state.claims)),
        "dra_cpu_prepare_claims": ours["nodecpu_prepares"],
        "dra_cpu_unprepare_claims": ours["nodecpu_unprepares"],
        "dra_cpu_prepare_claim_duration_seconds": ours["nodecpu_prepare_duration_seconds"],
        "dra_cpu_claim_allocated_cpus": ours["nodecpu_claim_cpus"],
    }


def _cpus_by_use(state: NodeState) -> Mapping[str, int]:
    usable = state.usable
    claimed = _cpus(claim.cpus for claim in state.claims if claim.state != "moved")
    exclusive = _cpus(container.exclusive for container in state.containers)
    return {
        "reserved": len(CpuSet.parse(usable.reserved)),
        "isolated_free": len(CpuSet.parse(usable.isolated) - claimed - exclusive),
        "claimed": len(claimed),
        "exclusive": len(exclusive),
        "shared": len(CpuSet.parse(usable.sharable) - claimed - exclusive),
    }


def _claims_offline(state: NodeState) -> float:
    online = CpuSet.parse(state.machine.online)
    return float(sum(1 for c in state.claims if c.state != "moved" and not CpuSet.parse(c.cpus) <= online))


def _cpus(lists: Iterable[str]) -> CpuSet:
    return union(CpuSet.parse(text) for text in lists)


def _metric(family: Family, value: float | Mapping[str, int] | HistogramState) -> Metric:
    from prometheus_client import core  # noqa: PLC0415 - see render

    if isinstance(value, HistogramState):
        buckets, sum_so_far = [], 0
        for bound, count in zip((*value.bounds, float("inf")), value.counts, strict=True):
            sum_so_far += count
            buckets.append(("+Inf" if bound == float("inf") else str(float(bound)), sum_so_far))
        return core.HistogramMetricFamily(family.name, family.help, buckets=buckets, sum_value=value.total)
    make = core.CounterMetricFamily if family.kind == "counter" else core.GaugeMetricFamily
    if not isinstance(value, Mapping):
        return make(family.name, family.help, value=value)
    metric = make(family.name, family.help, labels=[family.label])
    for key, number in sorted((dict.fromkeys(family.always, 0) | dict(value)).items()):
        metric.add_metric([key], number)
    return metric


def metrics_markdown() -> str:
    """Return the page that lists every metric."""
    lines = [
        "# Metrics",
        "",
        "Told in Prometheus' text format at `/metrics` where `[metrics] listen` says, and printed by",
        "`nodecpu metrics --values`. Gauges are computed when asked for, counters begin at the daemon's start. No",
        "label carries the name of a pod, claim or container. `nodecpu metrics` prints this list.",
        "",
        "| metric | kind | label | meaning |",
        "|---|---|---|---|",
    ]
    lines += [f"| `{f.full_name}` | {f.kind} | {f'`{f.label}`' if f.label else ''} | {f.help} |" for f in FAMILIES]
    lines += [
        "",
        "With `metrics.compatible_names` those of dra-driver-cpu are there as well:",
        "",
        "| metric | kind | label | meaning |",
        "|---|---|---|---|",
    ]
    lines += [f"| `{f.full_name}` | {f.kind} | {f'`{f.label}`' if f.label else ''} | {f.help} |" for f in COMPATIBLE]
    lines += ["", "Alert rules that go by them are in `packaging/alerts/nodecpu.rules.yml`.", ""]
    return "\n".join(lines)
