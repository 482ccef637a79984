"""Requests of the runtime become calls of the service, in both forms (interfaces.md 1.4 to 1.8)."""

from __future__ import annotations

import pytest
from google.protobuf.message import Message

from nodecpu.errors import NoCapacity
from nodecpu.nri.plugin import PLUGIN_SERVICE, Plugin
from nodecpu.nri.ttrpc import CallError, Code
from nodecpu.policy.facts import ContainerState
from nodecpu.policy.plan import Creation
from nodecpu.proto import nri_pb2
from tests.nri_fakes import FakeService, placement, update

POD = nri_pb2.PodSandbox(id="s1", name="web", uid="u1", namespace="shop")
MAIN = nri_pb2.Container(id="c1", pod_sandbox_id="s1", name="main")


def _call(plugin: Plugin, method: str, message: Message) -> bytes:
    return plugin.handle(PLUGIN_SERVICE, method, message.SerializeToString())


@pytest.mark.parametrize(
    ("method", "event", "call"),
    [
        ("RunPodSandbox", nri_pb2.RUN_POD_SANDBOX, ("run", "web")),
        ("StopPodSandbox", nri_pb2.STOP_POD_SANDBOX, ("stop sandbox", "web")),
        ("RemovePodSandbox", nri_pb2.REMOVE_POD_SANDBOX, ("remove sandbox", "web")),
        ("PostCreateContainer", nri_pb2.POST_CREATE_CONTAINER, ("seen", "web", "main")),
        ("StartContainer", nri_pb2.START_CONTAINER, ("seen", "web", "main")),
        ("PostStartContainer", nri_pb2.POST_START_CONTAINER, ("seen", "web", "main")),
        ("PostUpdateContainer", nri_pb2.POST_UPDATE_CONTAINER, ("seen", "web", "main")),
        ("RemoveContainer", nri_pb2.REMOVE_CONTAINER, ("remove", "web", "main")),
    ],
)
def test_event_reaches_the_service_in_both_forms(
    method: str, event: nri_pb2.Event.ValueType, call: tuple[str, ...]
) -> None:
    own, changed = FakeService(), FakeService()
    request: Message = getattr(nri_pb2, f"{method}Request")(pod=POD)
    if len(call) == 3:
        request = getattr(nri_pb2, f"{method}Request")(pod=POD, container=MAIN)
    assert _call(Plugin(own), method, request) == b""
    change = nri_pb2.StateChangeEvent(event=event, pod=POD, container=MAIN)
    assert _call(Plugin(changed), "StateChange", change) == b""
    assert own.calls == changed.calls == [call]
    assert own.sandboxes == changed.sandboxes
    assert own.containers == changed.containers


def test_a_started_container_runs_whatever_state_is_told() -> None:
    """E1: CRI-O tells the state that it had before; what is not started is not judged by its cgroup."""
    service = FakeService()
    container = nri_pb2.Container()
    container.CopyFrom(MAIN)
    container.state = nri_pb2.CONTAINER_CREATED
    _call(Plugin(service), "StartContainer", nri_pb2.StartContainerRequest(pod=POD, container=container))
    _call(Plugin(service), "PostStartContainer", nri_pb2.PostStartContainerRequest(pod=POD, container=container))
    assert [one.state for one in service.containers] == [ContainerState.CREATED, ContainerState.RUNNING]


def test_pod_is_not_remembered_beyond_its_removal_or_its_link() -> None:
    """G11: a late event of a container, or a runtime that came back, does not keep it for ever."""
    service = FakeService()
    plugin = Plugin(service)
    removal = nri_pb2.RemoveContainerRequest(pod=POD, container=MAIN)
    bare = nri_pb2.RemoveContainerRequest(container=MAIN)
    _call(plugin, "RunPodSandbox", nri_pb2.RunPodSandboxRequest(pod=POD))
    _call(plugin, "RemovePodSandbox", nri_pb2.RemovePodSandboxRequest(pod=POD))
    _call(plugin, "RemoveContainer", removal)
    _call(plugin, "RemoveContainer", bare)
    assert service.calls[-2:] == [("remove", "web", "main"), ("remove", "main")]
    _call(plugin, "RunPodSandbox", nri_pb2.RunPodSandboxRequest(pod=POD))
    _call(plugin, "RemoveContainer", bare)
    plugin.link_lost()
    _call(plugin, "RemoveContainer", bare)
    assert service.calls[-2:] == [("remove", "web", "main"), ("remove", "main")]


@pytest.mark.parametrize(
    "event", [nri_pb2.UNKNOWN, nri_pb2.CREATE_CONTAINER, nri_pb2.POST_UPDATE_POD_SANDBOX, nri_pb2.LAST]
)
def test_other_state_changes_are_accepted_and_ignored(event: nri_pb2.Event.ValueType) -> None:
    service = FakeService()
    assert _call(Plugin(service), "StateChange", nri_pb2.StateChangeEvent(event=event, pod=POD)) == b""
    assert service.calls == []


def test_configure_tells_the_runtime_and_subscribes() -> None:
    service = FakeService()
    plugin = Plugin(service)
    request = nri_pb2.ConfigureRequest(runtime_name="cri-o", runtime_version="1.34.1", request_timeout=5000)
    assert nri_pb2.ConfigureResponse.FromString(_call(plugin, "Configure", request)).events == 0x7FF
    assert plugin.runtime is not None
    assert plugin.runtime == service.runtime
    assert (plugin.runtime.name, plugin.runtime.nri) == ("cri-o", (0, 10, 0))
    assert plugin.request_timeout_s == 5.0


def test_request_timeout_is_two_seconds_if_not_told() -> None:
    plugin = Plugin(FakeService())
    _call(plugin, "Configure", nri_pb2.ConfigureRequest())
    assert plugin.request_timeout_s == 2.0


def test_synchronize_in_pieces_is_one_call_of_the_service() -> None:
    """Pods and containers are cut independently: a container may come before its pod."""
    service = FakeService(updates=(update("c1", "0-3"),))
    plugin = Plugin(service)
    pods = [nri_pb2.PodSandbox(id=f"s{i}", uid=f"u{i}", name=f"p{i}") for i in range(4)]
    containers = [nri_pb2.Container(id=f"c{i}", pod_sandbox_id=f"s{i}", name=f"n{i}") for i in range(4)]
    for message in (
        nri_pb2.SynchronizeRequest(containers=containers[:3], more=True),
        nri_pb2.SynchronizeRequest(pods=pods[:2], more=True),
    ):
        reply = nri_pb2.SynchronizeResponse.FromString(_call(plugin, "Synchronize", message))
        assert reply.more
        assert not reply.update
        assert not plugin.is_synchronized
    assert service.calls == []
    last = nri_pb2.SynchronizeRequest(pods=pods[2:], containers=containers[3:])
    reply = nri_pb2.SynchronizeResponse.FromString(_call(plugin, "Synchronize", last))
    assert not reply.more
    assert [one.container_id for one in reply.update] == ["c1"]
    assert service.calls == [("synchronize",)]
    assert [one.id for one in service.sandboxes] == ["s0", "s1", "s2", "s3"]
    assert [one.id for one in service.containers] == ["c0", "c1", "c2", "c3"]
    assert plugin.is_synchronized


def test_container_whose_pod_never_came_is_skipped() -> None:
    service = FakeService()
    message = nri_pb2.SynchronizeRequest(pods=[POD], containers=[MAIN, nri_pb2.Container(id="c2", pod_sandbox_id="?")])
    _call(Plugin(service), "Synchronize", message)
    assert [one.id for one in service.containers] == ["c1"]


def test_pieces_of_a_lost_link_are_forgotten() -> None:
    service = FakeService()
    plugin = Plugin(service)
    _call(plugin, "Synchronize", nri_pb2.SynchronizeRequest(pods=[POD], containers=[MAIN], more=True))
    plugin.link_lost()
    _call(plugin, "Synchronize", nri_pb2.SynchronizeRequest())
    assert service.sandboxes == []
    assert service.containers == []


def test_service_hears_of_a_lost_link_only_if_it_knew_it() -> None:
    service = FakeService()
    plugin = Plugin(service)
    plugin.link_lost()
    assert service.calls == []
    _call(plugin, "Configure", nri_pb2.ConfigureRequest(request_timeout=9000))
    _call(plugin, "Synchronize", nri_pb2.SynchronizeRequest())
    plugin.link_lost()
    plugin.link_lost()
    assert service.calls == [("connected",), ("synchronize",), ("lost",)]
    assert (plugin.runtime, plugin.is_synchronized, plugin.request_timeout_s) == (None, False, 2.0)


def test_creation_is_answered_with_the_services_decision() -> None:
    service = FakeService(creation=Creation(placement=placement("4-7", "1"), updates=(update("c0", "0-3"),)))
    message = nri_pb2.CreateContainerRequest(pod=POD, container=MAIN)
    message.container.env.extend(["A=b", "DRA_CPUSET_u=4-7"])
    reply = nri_pb2.CreateContainerResponse.FromString(_call(Plugin(service), "CreateContainer", message))
    assert reply.adjust.linux.resources.cpu.cpus == "4-7"
    assert [one.container_id for one in reply.update] == ["c0"]
    assert service.calls == [("create", "web", "main")]
    assert service.containers[0].claim_env == {"DRA_CPUSET_u": "4-7"}


def test_update_passes_what_is_wanted() -> None:
    service = FakeService(updates=(update("c1", "0-1"),))
    message = nri_pb2.UpdateContainerRequest(pod=POD, container=MAIN)
    message.linux_resources.cpu.shares.value = 2048
    reply = nri_pb2.UpdateContainerResponse.FromString(_call(Plugin(service), "UpdateContainer", message))
    assert [one.container_id for one in reply.update] == ["c1"]
    assert service.wanted is not None
    assert service.wanted.shares == 2048


@pytest.mark.parametrize("pod", [None, nri_pb2.PodSandbox(id="s1")], ids=["unset", "id only"])
def test_stop_and_remove_do_without_a_pod(pod: nri_pb2.PodSandbox | None) -> None:
    """containerd passes none when its record of the sandbox is gone."""
    service = FakeService(updates=(update("c0", "0-3"),))
    plugin = Plugin(service)
    reply = _call(plugin, "StopContainer", nri_pb2.StopContainerRequest(pod=pod, container=MAIN))
    assert [one.container_id for one in nri_pb2.StopContainerResponse.FromString(reply).update] == ["c0"]
    _call(plugin, "RemoveContainer", nri_pb2.RemoveContainerRequest(pod=pod, container=MAIN))
    assert service.calls == [("stop", "main"), ("remove", "main")]


def test_pod_that_was_seen_before_is_remembered_until_removed() -> None:
    service = FakeService()
    plugin = Plugin(service)
    _call(plugin, "RunPodSandbox", nri_pb2.RunPodSandboxRequest(pod=POD))
    _call(plugin, "StopContainer", nri_pb2.StopContainerRequest(container=MAIN))
    _call(plugin, "RemovePodSandbox", nri_pb2.RemovePodSandboxRequest(pod=nri_pb2.PodSandbox(id="s1")))
    _call(plugin, "RemoveContainer", nri_pb2.RemoveContainerRequest(container=MAIN))
    assert service.calls == [("run", "web"), ("stop", "web", "main"), ("remove sandbox", "web"), ("remove", "main")]


@pytest.mark.parametrize(
    "method", ["UpdatePodSandbox", "PostUpdatePodSandbox", "ValidateContainerAdjustment", "Shutdown"]
)
def test_calls_that_we_have_nothing_to_say_about_succeed(method: str) -> None:
    """An unimplemented validation would make every creation fail."""
    service = FakeService()
    assert Plugin(service).handle(PLUGIN_SERVICE, method, b"") == b""
    assert service.calls == []


@pytest.mark.parametrize(
    ("service", "method"),
    [(PLUGIN_SERVICE, "NewCall"), (PLUGIN_SERVICE, ""), ("nri.pkg.api.v1alpha1.Runtime", "Configure")],
)
def test_unknown_call_is_unimplemented(service: str, method: str) -> None:
    with pytest.raises(CallError) as refused:
        Plugin(FakeService()).handle(service, method, b"")
    assert refused.value.status == Code.UNIMPLEMENTED


@pytest.mark.parametrize("method", ["Configure", "Synchronize", "CreateContainer", "StopContainer", "StateChange"])
def test_payload_that_does_not_parse_is_an_invalid_argument(method: str) -> None:
    with pytest.raises(CallError) as refused:
        Plugin(FakeService()).handle(PLUGIN_SERVICE, method, b"\xff\xff\xff")
    assert refused.value.status == Code.INVALID_ARGUMENT


def test_error_of_the_service_is_passed_on() -> None:
    def full(verb: str) -> None:
        raise NoCapacity(f"{verb}: no CPUs", hint="free some")

    with pytest.raises(NoCapacity):
        _call(Plugin(FakeService(before_answer=full)), "CreateContainer", nri_pb2.CreateContainerRequest(pod=POD))


def test_failed_synchronize_leaves_us_unsynchronised() -> None:
    plugin = Plugin(FakeService(updates=(update("c1", ""),)))
    with pytest.raises(Exception, match="empty cpuset"):
        _call(plugin, "Synchronize", nri_pb2.SynchronizeRequest())
    assert not plugin.is_synchronized


def test_withdrawn_creation_takes_the_container_back() -> None:
    service = FakeService()
    payload = nri_pb2.CreateContainerRequest(pod=POD, container=MAIN).SerializeToString()
    plugin = Plugin(service)
    plugin.withdraw("CreateContainer", payload)
    plugin.withdraw("UpdateContainer", payload)
    assert service.calls == [("remove", "web", "main")]


def test_repeated_events_are_passed_on_as_they_come() -> None:
    service = FakeService()
    plugin = Plugin(service)
    for _ in range(2):
        _call(plugin, "StopContainer", nri_pb2.StopContainerRequest(pod=POD, container=MAIN))
    assert service.calls == [("stop", "web", "main")] * 2
