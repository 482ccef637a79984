"""Metrics: what is counted while running, and the Prometheus text of it made when asked for.

Counting is adding to plain numbers, so the hot paths pay nothing; the client library (a tenth of a second to import) is
loaded at the first scrape. No label carries the name of a pod, claim or container.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from nodecpu.admin.state import CounterState, LinkState, NodeState
from nodecpu.cpuset import CpuSet, union
from nodecpu.errors import NodeCpuError
from nodecpu.refusals import Kind, Refusals

if TYPE_CHECKING:
    from prometheus_client import Metric


class Counters:
    """What happened since the start.

    ``annotations`` without effect go by reason, ``repairs`` by cause, ``refusals`` by the error's code; the last of
    them are kept whole, in ``last_refusals``.
    """

    __slots__ = (
        "annotations",
        "forged_claims",
        "gone_claims",
        "last_refusals",
        "late_containers",
        "nri_reconnects",
        "refusals",
        "repairs",
    )

    def __init__(self) -> None:
        self.forged_claims = 0
        self.gone_claims = 0
        self.late_containers = 0
        self.nri_reconnects = 0
        self.annotations: Counter[str] = Counter()
        self.repairs: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.last_refusals = Refusals()

    def refused(self, err: NodeCpuError, kind: Kind, name: str, uid: str) -> None:
        """Count a refusal and keep it: of a claim, of a container's creation or of its resize."""
        self.refusals[err.code] += 1
        self.last_refusals.note(err, kind, name, uid)

    def state(self) -> CounterState:
        """Return the present counts."""
        return CounterState(
            forged_claims=self.forged_claims,
            gone_claims=self.gone_claims,
            late_containers=self.late_containers,
            nri_reconnects=self.nri_reconnects,
            annotations=dict(self.annotations),
            repairs=dict(self.repairs),
            refusals=dict(self.refusals),
        )


def render(state: NodeState) -> bytes:
    """Return the metrics of a node in Prometheus' text format."""
    from prometheus_client import CollectorRegistry, generate_latest  # noqa: PLC0415 - slow, and not always wanted

    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(state))
    return generate_latest(registry)


class _Collector:
    """The metrics of one moment, in the form the library asks for."""

    def __init__(self, state: NodeState) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        yield from _counters(self._state.counters)
        yield from _gauges(self._state)


def _counters(counts: CounterState) -> Iterator[Metric]:
    yield _counter("forged_claims", "Claim variables that a container was not entitled to.", counts.forged_claims)
    yield _counter("gone_claims", "Claims released because their object was gone.", counts.gone_claims)
    yield _counter("late_containers", "Containers found on the wrong CPUs at synchronisation.", counts.late_containers)
    yield _counter("nri_reconnects", "Times the link to the runtime came back.", counts.nri_reconnects)
    yield _labelled("annotations", "Annotations without effect, by reason.", "reason", counts.annotations)
    yield _labelled("repairs", "Cpusets and quotas put right, by cause.", "cause", counts.repairs)
    yield _labelled("refusals", "Requests refused, by error code.", "code", counts.refusals)


def _gauges(state: NodeState) -> Iterator[Metric]:
    usable = state.usable
    claimed = _cpus(claim.cpus for claim in state.claims if claim.state != "moved")
    exclusive = _cpus(container.exclusive for container in state.containers)
    sharable = CpuSet.parse(usable.sharable)
    yield _gauge(
        "cpus",
        "CPUs by use.",
        "use",
        {
            "reserved": len(CpuSet.parse(usable.reserved)),
            "isolated_free": len(CpuSet.parse(usable.isolated) - claimed - exclusive),
            "claimed": len(claimed),
            "exclusive": len(exclusive),
            "shared": len(sharable - claimed - exclusive),
        },
    )
    yield _gauge("claims", "Claims in the books, by state.", "state", Counter(c.state for c in state.claims))
    yield _gauge(
        "containers", "Containers in the books, by group.", "group", Counter(c.group for c in state.containers)
    )
    links: dict[str, LinkState] = {
        "runtime": state.links.runtime,
        "kubelet": state.links.kubelet,
        "api": state.links.api,
    }
    if (ends := state.links.credentials_expire_at) is not None:
        yield _plain_gauge(
            "credentials_expire_timestamp_seconds", "When the credentials for the API server end, in Unix time.", ends
        )
    up = {name: int(link.state == "connected") for name, link in links.items()}
    yield _gauge("link_up", "Whether a link is up.", "link", up)


def _cpus(lists: Iterable[str]) -> CpuSet:
    return union(CpuSet.parse(text) for text in lists)


def _plain_gauge(name: str, text: str, value: float) -> Metric:
    from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415 - see render

    return GaugeMetricFamily(f"nodecpu_{name}", text, value=value)


def _counter(name: str, text: str, value: int) -> Metric:
    from prometheus_client.core import CounterMetricFamily  # noqa: PLC0415 - see render

    return CounterMetricFamily(f"nodecpu_{name}", text, value=value)


def _labelled(name: str, text: str, label: str, values: dict[str, int]) -> Metric:
    from prometheus_client.core import CounterMetricFamily  # noqa: PLC0415 - see render

    family = CounterMetricFamily(f"nodecpu_{name}", text, labels=[label])
    for key, value in sorted(values.items()):
        family.add_metric([key], value)
    return family


def _gauge(name: str, text: str, label: str, values: dict[str, int]) -> Metric:
    from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415 - see render

    family = GaugeMetricFamily(f"nodecpu_{name}", text, labels=[label])
    for key, value in sorted(values.items()):
        family.add_metric([key], value)
    return family
