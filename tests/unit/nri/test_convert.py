"""NRI's messages to plain values and back (interfaces.md 1.9, 1.10)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from nodecpu.cpuset import NO_CPUS, NO_NODES, CpuSet, NodeSet
from nodecpu.errors import LocalProtocolError
from nodecpu.ids import ContainerID
from nodecpu.nri import convert
from nodecpu.policy.facts import Container, ContainerState, Resources, Sandbox
from nodecpu.policy.plan import Creation, Placement, Update
from nodecpu.policy.scheduling import IoClass, SchedulingClass, SchedulingPolicy
from nodecpu.proto import nri_pb2, nri_read_pb2
from tests.nri_fakes import placement, update


def _read(message: nri_pb2.Container, *, claims: bool = True) -> Container:
    return convert.container(nri_read_pb2.Container.FromString(message.SerializeToString()), claims=claims)


def test_sandbox_is_translated() -> None:
    pod = nri_pb2.PodSandbox(
        id="s1", uid="u1", namespace="shop", name="web", runtime_handler="kata", annotations={"a": "b"}
    )
    pod.linux.cgroup_parent = "/kubepods/besteffort"
    pod.labels["ignored"] = "x"
    assert convert.sandbox(nri_read_pb2.Pod.FromString(pod.SerializeToString())) == Sandbox(
        id="s1",  # type: ignore[arg-type]  # three ids of three types, as they stand
        uid="u1",  # type: ignore[arg-type]  # likewise
        namespace="shop",
        name="web",
        runtime_handler="kata",
        cgroup_parent="/kubepods/besteffort",
        annotations={"a": "b"},
    )


def test_what_runtimes_note_of_their_own_on_a_sandbox_is_not_kept() -> None:
    pod = nri_pb2.PodSandbox(id="s1", uid="u1")
    pod.annotations.update({"io.kubernetes.cri.sandbox-id": "s1", "io.kubernetes.cri-o.Spec": "{}"})
    pod.annotations.update({"prefer-isolated-cpus.resource-policy.nri.io/pod": "true", "kubernetes.io/config.seen": ""})
    kept = convert.sandbox(nri_read_pb2.Pod.FromString(pod.SerializeToString())).annotations
    assert kept == {"prefer-isolated-cpus.resource-policy.nri.io/pod": "true", "kubernetes.io/config.seen": ""}


def test_container_is_translated() -> None:
    message = nri_pb2.Container(id="c1", pod_sandbox_id="s1", name="main", state=nri_pb2.CONTAINER_RUNNING)
    message.CDI_devices.add(name="dra.cpu/cpu=claim-u-0")
    resources = message.linux.resources
    resources.cpu.cpus, resources.cpu.mems = "0-3,8", "0"
    resources.cpu.shares.value, resources.cpu.quota.value, resources.cpu.period.value = 512, -1, 100000
    resources.memory.limit.value = 1 << 30
    message.linux.cgroups_path = "kubepods.slice:cri-containerd:c1"
    container = _read(message)
    assert (container.id, container.sandbox_id, container.name) == ("c1", "s1", "main")
    assert container.state is ContainerState.RUNNING
    assert container.cdi_devices == ("dra.cpu/cpu=claim-u-0",)
    assert (container.cpus, container.mems) == (CpuSet.parse("0-3,8"), NodeSet.parse("0"))
    assert (container.shares, container.quota_us, container.period_us) == (512, -1, 100000)
    assert container.memory_limit_bytes == 1 << 30
    assert container.cgroups_path == "kubepods.slice:cri-containerd:c1"


def test_what_a_runtime_does_not_say_or_says_as_zero_is_none() -> None:
    said_zero = nri_pb2.Container()
    said_zero.linux.resources.cpu.shares.value = 0
    said_zero.linux.resources.memory.limit.value = 0
    for message in (nri_pb2.Container(), said_zero):
        container = _read(message)
        assert container.shares is container.quota_us is container.period_us is container.memory_limit_bytes is None
        assert container.cpus == NO_CPUS
        assert container.cdi_devices == ()


def test_only_claim_variables_are_kept_and_the_last_wins() -> None:
    env = ["PATH=/bin", "DRA_CPUSET_u1=0-3", "XDRA_CPUSET_u2=4", "DRA_CPUSET_u1=4=5", "DRA_CPUSET_u3", "dra_cpuset_=1"]
    assert _read(nri_pb2.Container(env=env)).claim_env == {"DRA_CPUSET_u1": "4=5", "DRA_CPUSET_u3": ""}
    assert _read(nri_pb2.Container(env=env), claims=False).claim_env == {}


@pytest.mark.parametrize("text", ["0-3:1/2", "x", "3-1", "99999999"])
def test_list_that_does_not_parse_counts_as_none(text: str) -> None:
    message = nri_pb2.Container()
    message.linux.resources.cpu.cpus = message.linux.resources.cpu.mems = text
    container = _read(message)
    assert not container.cpus
    assert not container.mems


def test_states_are_those_of_the_protocol() -> None:
    """interfaces.md 1.9: by number, each under the protocol's word."""
    assert {f"CONTAINER_{state.name}": state.value for state in ContainerState} == dict(nri_pb2.ContainerState.items())
    for state in ContainerState:
        assert convert.container(nri_read_pb2.Container(state=state.value), claims=False).state is state


def test_unknown_state_is_unknown() -> None:
    assert convert.container(nri_read_pb2.Container(state=77), claims=False).state is ContainerState.UNKNOWN
    assert convert.container(nri_read_pb2.Container(state=-1), claims=False).state is ContainerState.UNKNOWN


def test_update_asks_only_for_what_is_not_zero() -> None:
    """Numbers of 0 mean unchanged in an update of the CRI."""
    message = nri_read_pb2.Resources()
    message.cpu.shares.value, message.cpu.quota.value, message.cpu.period.value = 2048, 0, 0
    message.cpu.cpus = "2-3"
    assert convert.resources(message) == Resources(shares=2048, cpus=CpuSet.parse("2-3"))


def test_creation_sets_cpuset_mems_and_shares() -> None:
    creation = Creation(placement=placement("4-7", "1", 1024), updates=(update("other", "0-3", "0"),))
    reply = nri_pb2.CreateContainerResponse.FromString(convert.creation_reply(creation, ContainerID("c1")))
    cpu = reply.adjust.linux.resources.cpu
    assert (cpu.cpus, cpu.mems, cpu.shares.value) == ("4-7", "1", 1024)
    assert not cpu.HasField("quota")
    [other] = reply.update
    assert (other.container_id, other.linux.resources.cpu.cpus, other.ignore_failure) == ("other", "0-3", True)
    assert not other.linux.resources.cpu.HasField("shares")


def test_container_left_alone_is_an_empty_reply() -> None:
    assert convert.creation_reply(Creation(placement=None), ContainerID("c1")) == b""


def test_created_container_is_never_in_the_updates() -> None:
    """The runtime would fail the creation."""
    creation = Creation(placement=placement("0"), updates=(update("other", "1"), update("c1", "0")))
    with pytest.raises(LocalProtocolError, match="c1 is updated in the reply that creates it"):
        convert.creation_reply(creation, ContainerID("c1"))


def test_empty_cpuset_is_never_sent() -> None:
    """C14: to a runtime it means "leave as it is"."""
    with pytest.raises(LocalProtocolError, match="empty cpuset"):
        convert.creation_reply(Creation(placement=placement("")), ContainerID("c1"))
    for reply in (convert.stop_reply, convert.synchronize_reply):
        with pytest.raises(LocalProtocolError, match="empty cpuset"):
            reply((update("a", "1"), update("b", "")))
    with pytest.raises(LocalProtocolError, match="empty cpuset"):
        convert.update_request(update("a", ""))


@pytest.mark.parametrize("shares", [0, 1, 262145])
def test_shares_outside_the_kernels_range_are_refused(shares: int) -> None:
    with pytest.raises(LocalProtocolError, match="2-262144"):
        convert.creation_reply(Creation(placement=placement("0", shares=shares)), ContainerID("c1"))


@pytest.mark.parametrize(
    "other",
    [
        {"cpus": CpuSet.parse("0-2")},
        {"mems": NodeSet.parse("1")},
        {"mems": NO_NODES},
        {"shares": 3},
        {"shares": None},
        {"quota_us": -1},
        {"quota_us": None},
        {"period_us": 1000},
    ],
    ids=str,
)
def test_updates_that_differ_in_one_figure_are_not_taken_for_alike(other: dict[str, object]) -> None:
    """R7: what many are told alike is encoded once."""
    one = Placement(cpus=CpuSet.parse("0-3"), mems=NodeSet.parse("0"), shares=2, quota_us=5000, period_us=100000)
    change: Callable[..., Placement] = replace
    wanted = [one, change(one, **other), one]
    updates = [Update(container_id=ContainerID(f"c{number}"), placement=each) for number, each in enumerate(wanted)]
    found = nri_pb2.StopContainerResponse.FromString(convert.stop_reply(updates)).update
    alone = [nri_pb2.StopContainerResponse.FromString(convert.stop_reply([update])).update[0] for update in updates]
    assert list(found) == alone
    assert found[0].linux == found[2].linux != found[1].linux


def test_only_the_entry_that_a_request_is_about_may_fail_it() -> None:
    """CRI-O fails the request for any other entry, for instance of a container that has just gone."""
    updates = (update("c1", "0-3"), update("other", "4-7"))
    reply = nri_pb2.UpdateContainerResponse.FromString(convert.update_reply(updates, ContainerID("c1")))
    assert [(one.container_id, one.ignore_failure) for one in reply.update] == [("c1", False), ("other", True)]
    stopped = nri_pb2.StopContainerResponse.FromString(convert.stop_reply(updates))
    synchronized = nri_pb2.SynchronizeResponse.FromString(convert.synchronize_reply(updates))
    for several in (stopped.update, synchronized.update):
        assert [one.ignore_failure for one in several] == [True, True]
    assert not synchronized.more
    [asked] = nri_pb2.UpdateContainersRequest.FromString(convert.update_request(updates[0])).update
    assert not asked.ignore_failure


_READ_AS = {
    "Request": ("RunPodSandboxRequest", "CreateContainerRequest", "UpdateContainerRequest", "StopContainerRequest"),
    "Change": ("StateChangeEvent",),
    "Listing": ("SynchronizeRequest",),
    "Pod": ("PodSandbox",),
    "LinuxPod": ("LinuxPodSandbox",),
    "Resources": ("LinuxResources",),
    "Memory": ("LinuxMemory",),
    "CPU": ("LinuxCPU",),
    "Number": ("OptionalInt64",),
    "Unsigned": ("OptionalUInt64",),
}


def _kind(field: FieldDescriptor) -> int:
    return FieldDescriptor.TYPE_INT32 if field.type == FieldDescriptor.TYPE_ENUM else field.type


def test_what_is_read_agrees_with_the_full_description() -> None:
    for name, read in nri_read_pb2.DESCRIPTOR.message_types_by_name.items():
        full_names = _READ_AS.get(name, (name,))
        known: dict[str, FieldDescriptor] = {}
        for full_name in full_names:
            full: Descriptor = nri_pb2.DESCRIPTOR.message_types_by_name[full_name]
            for field in full.fields:
                assert known.setdefault(field.name, field).number == field.number
        for field in read.fields:
            same = known[field.name]
            assert (field.number, _kind(field), field.is_repeated) == (same.number, _kind(same), same.is_repeated)
            if field.message_type is not None and not field.message_type.GetOptions().map_entry:
                assert same.message_type is not None
                assert same.message_type.name in _READ_AS.get(field.message_type.name, (field.message_type.name,))


def test_every_event_without_reply_has_the_layout_that_is_read() -> None:
    pods = ("RunPodSandbox", "StopPodSandbox", "RemovePodSandbox")
    both = ("PostCreateContainer", "StartContainer", "PostStartContainer", "PostUpdateContainer", "RemoveContainer")
    for method in pods + both:
        fields = nri_pb2.DESCRIPTOR.message_types_by_name[f"{method}Request"].fields_by_name
        assert {name: field.number for name, field in fields.items()} == (
            {"pod": 1} if method in pods else {"pod": 1, "container": 2}
        )


def test_quota_and_period_go_into_every_kind_of_reply() -> None:
    """G14: below 0 lifts; a container without a quota of ours keeps the runtime's."""
    lifted = replace(placement("4-7", "1", 1024), quota_us=-1, period_us=100_000)
    plain = placement("4-7", "1", 1024)
    creation = Creation(placement=lifted, updates=(Update(container_id=ContainerID("a"), placement=plain),))
    reply = nri_pb2.CreateContainerResponse.FromString(convert.creation_reply(creation, ContainerID("c1")))
    cpu = reply.adjust.linux.resources.cpu
    assert (cpu.quota.value, cpu.period.value) == (-1, 100_000)
    assert not reply.update[0].linux.resources.cpu.HasField("quota")
    both = (
        Update(container_id=ContainerID("a"), placement=lifted),
        Update(container_id=ContainerID("b"), placement=plain),
    )
    stopped = nri_pb2.StopContainerResponse.FromString(convert.stop_reply(both))
    assert [one.linux.resources.cpu.HasField("quota") for one in stopped.update] == [True, False]
    updated = nri_pb2.UpdateContainerResponse.FromString(convert.update_reply(both, ContainerID("a")))
    assert updated.update[0].linux.resources.cpu.quota.value == -1


def test_scheduling_class_goes_into_the_adjustment() -> None:
    """A: policy, priority, nice value, flags, I/O class."""
    batch = SchedulingClass(
        name="bulk",
        policy=SchedulingPolicy.BATCH,
        nice=7,
        flags=("reset-on-fork",),
        io_class=IoClass.BEST_EFFORT,
        io_priority=3,
    )
    reply = nri_pb2.CreateContainerResponse.FromString(
        convert.creation_reply(Creation(placement=None, scheduling=batch), ContainerID("c1"))
    )
    linux = reply.adjust.linux
    assert (linux.scheduler.policy, linux.scheduler.nice) == (nri_pb2.SCHED_BATCH, 7)
    assert list(linux.scheduler.flags) == [nri_pb2.SCHED_FLAG_RESET_ON_FORK]
    assert (getattr(linux.io_priority, "class"), linux.io_priority.priority) == (nri_pb2.IOPRIO_CLASS_BE, 3)
    assert not linux.HasField("resources")


def test_scheduling_class_sets_only_what_it_names() -> None:
    """A."""
    for made, scheduler, io in (
        (SchedulingClass(name="a", io_class=IoClass.IDLE), False, True),
        (SchedulingClass(name="b", policy=SchedulingPolicy.FIFO, priority=9), True, False),
    ):
        reply = nri_pb2.CreateContainerResponse.FromString(
            convert.creation_reply(Creation(placement=placement("0"), scheduling=made), ContainerID("c1"))
        )
        assert (reply.adjust.linux.HasField("scheduler"), reply.adjust.linux.HasField("io_priority")) == (scheduler, io)
