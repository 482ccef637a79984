"""What pods ask for, all the way to the replies: annotations, quotas, resizes, scheduling (n4c16, CPU 15 reserved)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from nodecpu.cpuset import CpuSet
from nodecpu.enforce.quota import Cover
from nodecpu.errors import BadRequest, NoCapacity
from nodecpu.ids import ContainerID
from nodecpu.nri.versions import runtime_version
from nodecpu.policy.facts import ContainerState, QoS, Resources
from nodecpu.policy.plan import Update
from nodecpu.reports import POD, Subject
from tests.node import Node, PodShape, Scene, claim, play

NODE_1 = "cpudevnuma001"
DOMAIN = "resource-policy.nri.io"


@dataclass
class Told:
    """Reports by reason."""

    reasons: list[str] = field(default_factory=list)

    def report(self, subject: Subject, reason: str, message: str) -> None:
        assert subject.kind == POD
        assert message
        self.reasons.append(reason)


@dataclass
class FakeQuotas:
    """Quotas by cgroups path, of pods (by any container of theirs) and of containers."""

    pods: dict[str, int] = field(default_factory=dict)
    containers: dict[str, int] = field(default_factory=dict)
    refuses: bool = False

    def cover_pod(self, cgroups_path: str, need_us: int, *, lift: bool) -> Cover:
        return self._cover(self.pods, cgroups_path, need_us, lift=lift)

    def cover_container(self, cgroups_path: str, need_us: int) -> Cover:
        return self._cover(self.containers, cgroups_path, need_us, lift=True)

    def _cover(self, quotas: dict[str, int], path: str, need_us: int, *, lift: bool) -> Cover:
        have = quotas.get(path, -1)
        if have < 0 or 0 <= need_us <= have:
            return Cover.ENOUGH
        if self.refuses or not lift:
            return Cover.TOO_LOW
        quotas[path] = need_us
        return Cover.RAISED


def start(node: Node, pod: PodShape, **env: str) -> CpuSet:
    node.service.pod_seen(pod.spec)
    return node.create(pod.sandbox, pod.container(f"c{pod.number}", env))


def resize(node: Node, pod: PodShape, wanted: Resources) -> dict[str, Update]:
    """Ask for other figures; return the reply's entries."""
    made = replace(pod.container(f"c{pod.number}"), state=ContainerState.RUNNING)
    updates = node.service.update_container(pod.sandbox, made, wanted)
    node.runtime.apply(updates)
    return {update.container_id: update for update in updates}


def own(number: int, mcpu: int, **more: object) -> PodShape:
    shape = PodShape(number=number, qos=QoS.GUARANTEED, request_mcpu=mcpu, limit_mcpu=mcpu)
    return replace(shape, **more)  # type: ignore[arg-type]  # fields by name


def test_annotations_of_the_spec_are_followed_and_bad_ones_counted(scene: Scene) -> None:
    """A, N1."""

    async def story(node: Node) -> None:
        annotations = {
            f"hide-hyperthreads.{DOMAIN}/pod": "true",
            f"cpu.preserve.{DOMAIN}/pod": "true",
            f"prefer-cpu-priority.{DOMAIN}": "fastest",
            f"no-such-key.{DOMAIN}": "x",
        }
        node.service.reports = told = Told()
        assert start(node, own(1, 3000, annotations=annotations)) == CpuSet.parse("8,10")
        assert told.reasons == ["AnnotationIgnored"] * 3
        assert node.counters.annotations == {"forbidden": 1, "value": 1, "unknown": 1}

    play(scene, story)


def test_of_thousands_of_bad_annotations_the_first_few_are_told(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """A: nobody floods the log or the events by what a pod has room for; all are counted."""

    async def story(node: Node) -> None:
        node.service.reports = told = Told()
        start(node, own(1, 100, annotations={f"no-such-key-{number}.{DOMAIN}": "x" for number in range(3000)}))
        assert told.reasons == ["AnnotationIgnored"] * 10
        assert [one.message for one in caplog.records].count("annotation without effect") == 10
        assert node.counters.annotations["unknown"] == 3000

    play(scene, story)


def test_sandbox_annotations_count_only_where_the_spec_is_not_known(scene: Scene) -> None:
    """N1: the spec's win, whatever the sandbox was made with."""

    async def story(node: Node) -> None:
        annotated = own(1, 2000, annotations={f"hide-hyperthreads.{DOMAIN}": "true"})
        unknown = annotated.container("c1")
        assert node.create(annotated.sandbox, unknown) == CpuSet.parse("8,10")
        assert not node.service.books.ledger.containers[ContainerID("c1")].exclusive
        bare = own(2, 2000)
        node.service.pod_seen(bare.spec)
        made = replace(bare.sandbox, annotations={f"hide-hyperthreads.{DOMAIN}": "true"})
        assert len(node.create(made, bare.container("c2"))) == 2

    play(scene, story)


def test_preserved_container_is_left_where_the_runtime_puts_it(scene: Scene) -> None:
    """G1: preserve, by permission of the operator."""
    scene.extra = '[annotations]\nmay_preserve = ["agents"]'

    async def story(node: Node) -> None:
        pod = own(1, 2000, namespace="agents", annotations={f"cpu.preserve.{DOMAIN}/pod": "true"})
        node.service.pod_seen(pod.spec)
        creation = node.service.create_container(pod.sandbox, pod.container("c1"))
        assert creation.placement is None
        node.runtime.add(pod.sandbox, pod.container("c1"), None)
        assert resize(node, pod, Resources(shares=4096)) == {}

    play(scene, story)


def test_runtime_handlers_are_left_alone_and_their_claims_refused(scene: Scene) -> None:
    """G17."""

    async def story(node: Node) -> None:
        wanted = claim(1, (NODE_1, 2))
        await node.prepare(wanted)
        plain = own(1, 2000, handler="kata-qemu")
        node.service.pod_seen(plain.spec)
        assert node.service.create_container(plain.sandbox, plain.container("c1")).placement is None
        holder = PodShape(number=2, handler="kata-qemu", claims=("claim-1",))
        node.service.pod_seen(holder.spec)
        with pytest.raises(BadRequest, match="pod-2/main: runtime handler kata-qemu keeps the host's cpusets out"):
            node.service.create_container(holder.sandbox, holder.container("c2", node.env_of(wanted.uid)))
        assert node.service.books.ledger.holders(wanted.uid) == ()

    play(scene, story)


def test_a_limit_of_1m_throttles_neither_the_holder_nor_its_pod(scene: Scene) -> None:
    """G14: by the reply, and by the pod's cgroup before the reply leaves."""
    quotas = FakeQuotas(pods={"/kubepods/c1": 1_000})
    scene.runtime.quotas = quotas

    async def story(node: Node) -> None:
        wanted = claim(1, ("cpudevnuma000", 4), (NODE_1, 4))
        await node.prepare(wanted)
        pod = PodShape(number=1, qos=QoS.BURSTABLE, request_mcpu=1, limit_mcpu=1, claims=("claim-1",))
        node.service.pod_seen(pod.spec)
        made = replace(pod.container("c1", node.env_of(wanted.uid)), quota_us=1000, period_us=100_000)
        creation = node.service.create_container(pod.sandbox, made)
        assert creation.placement is not None
        assert (creation.placement.quota_us, creation.placement.shares) == (-1, 8192)
        assert quotas.pods == {"/kubepods/c1": 800_000}
        assert node.counters.repairs["pod-quota"] == 1

    play(scene, story)


def test_quotas_that_somebody_lowers_again_are_raised_by_the_audit(scene: Scene) -> None:
    """G14, E1: systemd writes its own idea of a slice at every daemon-reload."""
    quotas = FakeQuotas()
    scene.runtime.quotas = quotas

    async def story(node: Node) -> None:
        wanted = claim(1, (NODE_1, 2))
        await node.prepare(wanted)
        pod = PodShape(number=1, qos=QoS.BURSTABLE, request_mcpu=100, limit_mcpu=200, claims=("claim-1",))
        start(node, pod, **node.env_of(wanted.uid))
        node.service.check_quotas()
        assert node.counters.repairs["pod-quota"] == 0
        quotas.pods["/kubepods/c1"], quotas.containers["/kubepods/c1"] = 20_000, 20_000
        node.service.check_quotas()
        assert (quotas.pods["/kubepods/c1"], quotas.containers["/kubepods/c1"]) == (220_000, 220_000)
        assert (node.counters.repairs["pod-quota"], node.counters.repairs["quota"]) == (1, 1)

    play(scene, story)


def test_no_quota_above_the_pods_where_that_cannot_be_raised(scene: Scene) -> None:
    """G14: with cgroup v1 the kernel would refuse the container."""
    scene.runtime.quotas = FakeQuotas(pods={"/kubepods/c1": 20_000}, refuses=True)

    async def story(node: Node) -> None:
        wanted = claim(1, (NODE_1, 2))
        await node.prepare(wanted)
        pod = PodShape(number=1, qos=QoS.BURSTABLE, request_mcpu=100, limit_mcpu=200, claims=("claim-1",))
        node.service.pod_seen(pod.spec)
        creation = node.service.create_container(pod.sandbox, pod.container("c1", node.env_of(wanted.uid)))
        assert creation.placement is not None
        assert creation.placement.quota_us is None
        assert "quota is too low" in node.service.books.ledger.containers[ContainerID("c1")].reason

    play(scene, story)


def test_pods_quota_that_stays_too_low_is_told_once(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """G14: where it is not to be lifted."""
    scene.runtime.quotas = FakeQuotas(pods={"/kubepods/c1": 1_000})
    scene.extra = "[claims]\nlift_pod_quota = false"

    async def story(node: Node) -> None:
        wanted = claim(1, (NODE_1, 2))
        await node.prepare(wanted)
        pod = PodShape(number=1, qos=QoS.BURSTABLE, request_mcpu=1, limit_mcpu=1, claims=("claim-1",))
        node.service.reports = reports = Told()
        start(node, pod, **node.env_of(wanted.uid))
        node.service.check_quotas()
        assert reports.reasons == ["QuotaThrottles"]
        told = [record for record in caplog.records if "throttles CPUs that its containers own" in record.message]
        assert len(told) == 1

    play(scene, story)


@pytest.mark.parametrize("spec_first", [True, False])
def test_resize_of_exclusive_cpus_before_and_after_the_spec(scene: Scene, *, spec_first: bool) -> None:
    """G12: the watch may bring the new spec before the update or after it."""

    async def story(node: Node) -> None:
        assert start(node, own(1, 2000)) == CpuSet.parse("8-9")
        grown = own(1, 4000)
        if spec_first:
            node.service.pod_seen(grown.spec)
        reply = resize(node, grown, Resources(shares=4096, quota_us=400_000, period_us=100_000))
        placement = reply["c1"].placement
        assert placement.cpus == node.runtime.processes[ContainerID("c1")].cpus == CpuSet.parse("8-11")
        assert (placement.shares, placement.quota_us, placement.period_us) == (4096, -1, 100_000)
        assert str(placement.mems) == "2"
        grant = node.service.books.ledger.containers[ContainerID("c1")]
        assert ("as last seen, says 2000m" in grant.reason) == (not spec_first)
        node.service.pod_seen(grown.spec)
        assert node.service.books.ledger.containers[ContainerID("c1")] == grant

    play(scene, story)


def test_resize_that_cannot_be_had_is_an_error_and_changes_nothing(scene: Scene) -> None:
    """G12: the reason reaches the pod's events."""

    async def story(node: Node) -> None:
        start(node, own(1, 2000))
        before = node.service.books.ledger.containers[ContainerID("c1")]
        for number in range(2, 6):
            start(node, own(number, 3000))
        node.service.reports = told = Told()
        with pytest.raises(NoCapacity, match="pod-1/main cannot go from 2 to 12 exclusive CPUs in place"):
            resize(node, own(1, 12_000), Resources(shares=12_288))
        assert node.service.books.ledger.containers[ContainerID("c1")] == before
        assert node.counters.refusals["no-capacity"] == 1
        assert told.reasons == ["ResizeRefused"]

    play(scene, story)


def test_resize_moves_those_who_share_what_is_taken(scene: Scene) -> None:
    """G12, G9: their updates ride on the same reply."""

    async def story(node: Node) -> None:
        start(node, own(1, 2000))
        for number in range(2, 6):
            start(node, PodShape(number=number))
        reply = resize(node, own(1, 4000), Resources(shares=4096))
        taken = reply["c1"].placement.cpus
        for number in range(2, 6):
            assert node.runtime.processes[ContainerID(f"c{number}")].cpus.isdisjoint(taken)
        reply = resize(node, own(1, 1000), Resources(shares=1024))
        assert len(reply["c1"].placement.cpus) == 1

    play(scene, story)


def test_holders_resize_keeps_its_claim(scene: Scene) -> None:
    """G12, G14."""

    async def story(node: Node) -> None:
        wanted = claim(1, (NODE_1, 2))
        await node.prepare(wanted)
        pod = PodShape(number=1, qos=QoS.BURSTABLE, request_mcpu=100, limit_mcpu=200, claims=("claim-1",))
        start(node, pod, **node.env_of(wanted.uid))
        reply = resize(node, pod, Resources(shares=307, quota_us=40_000, period_us=100_000))
        placement = reply["c1"].placement
        assert CpuSet.parse("4-5") <= placement.cpus
        assert (placement.shares, placement.quota_us) == (307, 240_000)
        # Only its memory changes: nothing of ours is left out of the reply.
        again = resize(node, pod, Resources(memory_limit_bytes=1 << 30))["c1"].placement
        assert again == placement

    play(scene, story)


def test_resize_of_memory_is_taken_into_the_books(scene: Scene) -> None:
    """G12, M1: with CPUs and without."""

    async def story(node: Node) -> None:
        start(node, own(1, 2000))
        for wanted, memory in (
            (Resources(memory_limit_bytes=1 << 30), 1 << 30),
            (Resources(shares=4096, memory_limit_bytes=2 << 30), 2 << 30),
            (Resources(shares=2048), 2 << 30),
        ):
            resize(node, own(1, 2000), wanted)
            assert node.service.books.ledger.containers[ContainerID("c1")].memory_bytes == memory

    play(scene, story)


def test_restarted_container_gets_the_same_cpus_and_the_figures_of_its_spec(scene: Scene) -> None:
    """L4, G11: in the same sandbox, whether the stop event came or not."""

    async def story(node: Node) -> None:
        first = start(node, own(1, 2000))
        pod = own(1, 2000, limit_mcpu=None)
        node.service.pod_seen(pod.spec)
        again = node.create(pod.sandbox, pod.container("c1-again"))
        assert again == first
        grant = node.service.books.ledger.containers[ContainerID("c1-again")]
        assert (grant.limit_mcpu, grant.quota_us) == (None, None)
        assert ContainerID("c1") not in node.service.books.ledger.containers

    play(scene, story)


@pytest.mark.parametrize("told", [True, False])
def test_init_containers_hand_over_one_after_the_other(scene: Scene, *, told: bool) -> None:
    """G11: five CPUs each, freed before the next starts, though its stop event may come late."""

    async def story(node: Node) -> None:
        for number in (1, 2, 3):
            cpus = start(node, own(number, 5000))
            assert len(cpus) == 5
            if told:
                node.stop(ContainerID(f"c{number}"))
            else:
                node.runtime.processes[ContainerID(f"c{number}")].is_alive = False
        left, right = start(node, own(4, 5000)), start(node, own(5, 5000))
        assert left.isdisjoint(right)
        assert {frozenset(cpu // 8 for cpu in cpus) for cpus in (left, right)} == {frozenset({0}), frozenset({1})}

    play(scene, story)


@pytest.mark.parametrize(("version", "set_by_runtime"), [("v2.2.1", True), ("v2.2.0", False), ("v1.7.30", False)])
def test_scheduling_classes_reach_runtimes_that_know_them(scene: Scene, version: str, *, set_by_runtime: bool) -> None:
    """A: annotation, else the namespace's, else the QoS class's."""
    scene.extra = """
[scheduling]
classes = ["bulk: policy=batch nice=5", "idle: policy=idle io=idle", "rt: policy=fifo priority=5"]
namespaces = ["batch-*: bulk"]
qos = ["BestEffort: idle"]
"""

    async def story(node: Node) -> None:
        node.service.runtime_connected(runtime_version("containerd", version, ""))
        pods = {
            "bulk": PodShape(number=1, namespace="batch-1"),
            "idle": PodShape(number=2),
            None: own(3, 500, annotations={f"scheduling-class.{DOMAIN}": "rt"}),
            "rt": own(4, 500, namespace="kube-system", annotations={f"scheduling-class.{DOMAIN}": "rt"}),
        }
        for name, pod in pods.items():
            node.service.pod_seen(pod.spec)
            creation = node.service.create_container(pod.sandbox, pod.container(f"c{pod.number}"))
            got = None if creation.scheduling is None else creation.scheduling.name
            assert got == (name if set_by_runtime else None)

    play(scene, story)


@pytest.mark.parametrize(("sources", "asked"), [('["pod-resources"]', ["pod-2"]), ('["devices"]', [])])
def test_kubelet_is_asked_again_after_a_restart_of_pods_that_are_not_complete(
    scene: Scene, sources: str, asked: list[str]
) -> None:
    """S, R1: a container that comes later is near its devices all the same; what runs is not moved for it."""
    scene.extra = f"topology_hints = {sources}"

    async def story(node: Node) -> None:
        whole, begun = PodShape(number=1), PodShape(number=2)
        start(node, whole)
        node.service.pod_seen(begun.spec)
        node.create(begun.sandbox, replace(begun.container("c2"), name="istio-init"))
        node.hinted.clear()
        node.synchronize()
        assert [sandbox.name for sandbox in node.hinted] == asked

    play(scene, story)
