"""Calls recorded from a real kubelet (1.36): every message decodes whole, and replayed they get a real answer."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from google.protobuf.message import Message

from nodecpu.dra.registration import registration_socket, service_socket
from nodecpu.errors import NoCapacity, NodeCpuError
from nodecpu.ids import ClaimUID
from nodecpu.policy.plan import PreparedDevice
from nodecpu.proto import dra_pb2, health_pb2, registration_pb2
from tests.kubelet import Answer, FakeClaims, kubelet_of, run, served
from tests.support import shared_data

RECORDINGS = ("kubelet-1.36.2-dra.json", "kubelet-1.36.2-more-dra.json")
DRA = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/"

HEALTHY = ("HEALTHY", "")
HEALTH = [HEALTHY, HEALTHY, ("UNHEALTHY", "core offline"), HEALTHY, HEALTHY, HEALTHY]
HEALTH_MORE = [HEALTHY] * 4

MESSAGES: Mapping[tuple[str, str], type[Message]] = {
    ("GetInfo", "request"): registration_pb2.InfoRequest,
    ("GetInfo", "response"): registration_pb2.PluginInfo,
    ("NotifyRegistrationStatus", "request"): registration_pb2.RegistrationStatus,
    ("NotifyRegistrationStatus", "response"): registration_pb2.RegistrationStatusResponse,
    ("NodePrepareResources", "request"): dra_pb2.NodePrepareResourcesRequest,
    ("NodePrepareResources", "response"): dra_pb2.NodePrepareResourcesResponse,
    ("NodeUnprepareResources", "request"): dra_pb2.NodeUnprepareResourcesRequest,
    ("NodeUnprepareResources", "response"): dra_pb2.NodeUnprepareResourcesResponse,
    ("NodeWatchResources", "request"): health_pb2.NodeWatchResourcesRequest,
    ("NodeWatchResources", "stream response"): health_pb2.NodeWatchResourcesResponse,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    call: int
    method: str
    kind: str
    deadline_s: float | None
    data: bytes


def recorded(name: str) -> list[Recorded]:
    """Return the messages of a recording; ends of streams and error statuses are none."""
    return [
        Recorded(
            call=item["call"],
            method=item["method"],
            kind=item["kind"],
            deadline_s=item.get("deadline_s"),
            data=bytes.fromhex(item["hex"]),
        )
        for item in json.loads(shared_data("wire", name).read_text())
        if item["kind"] in ("request", "response", "stream response")
    ]


@pytest.fixture
def root() -> Iterator[Path]:
    with TemporaryDirectory(prefix="k") as path:
        yield Path(path)


@pytest.mark.parametrize("name", RECORDINGS)
def test_every_message_decodes_whole(name: str) -> None:
    """No field is unknown to our messages, and they encode to the recorded bytes again."""
    messages = recorded(name)
    assert len(messages) > 20
    for one in messages:
        message = MESSAGES[one.method.rpartition("/")[2], one.kind]()
        message.ParseFromString(one.data)
        encoded = message.SerializeToString(deterministic=True)
        message.DiscardUnknownFields()
        assert message.SerializeToString(deterministic=True) == encoded
        again = type(message)()
        again.ParseFromString(encoded)
        assert again == message
        assert len(encoded) == len(one.data)


@pytest.mark.parametrize(("name", "messages"), [*zip(RECORDINGS, [HEALTH, HEALTH_MORE], strict=True)])
def test_health_says_of_each_device_how_it_is_and_why(name: str, messages: list[tuple[str, str]]) -> None:
    """D6: the recorded driver told of one device, that it was healthy but for a time; the time is in whole seconds."""
    told = [
        device
        for one in recorded(name)
        if one.kind == "stream response"
        for device in health_pb2.NodeWatchResourcesResponse.FromString(one.data).devices
    ]
    assert {(one.device.pool_name, one.device.device_name) for one in told} == {("node1", "dev0")}
    assert [(health_pb2.HealthStatus.Name(one.health), one.message) for one in told] == messages
    times = [one.last_updated_time for one in told]
    assert times == sorted(times)
    assert all(datetime.fromtimestamp(time, UTC).year == 2026 for time in times)


def answers_of(messages: list[Recorded]) -> dict[int, bytes]:
    return {one.call: one.data for one in messages if one.kind == "response"}


def table(method: str, answer: bytes) -> dict[str, Answer]:
    """Return what the recorded driver decided, in our words."""
    if method == f"{DRA}NodePrepareResources":
        prepared = dra_pb2.NodePrepareResourcesResponse.FromString(answer).claims
        return {uid: _refusal(one.error) if one.error else _devices(one) for uid, one in prepared.items()}
    unprepared = dra_pb2.NodeUnprepareResourcesResponse.FromString(answer).claims
    return {uid: _refusal(one.error) if one.error else () for uid, one in unprepared.items()}


def _refusal(error: str) -> NodeCpuError:
    return NoCapacity(error)


def _devices(one: dra_pb2.NodePrepareResourceResponse) -> tuple[PreparedDevice, ...]:
    return tuple(
        PreparedDevice(
            request_names=tuple(device.request_names),
            pool=device.pool_name,
            device=device.device_name,
            cdi_ids=tuple(device.cdi_device_ids),
            share_id=device.share_id if device.HasField("share_id") else None,
        )
        for device in one.devices
    )


@pytest.mark.parametrize("name", RECORDINGS)
def test_replayed_requests_get_what_the_recorded_driver_decided(name: str, root: Path) -> None:
    """The same decisions give the same answer to the byte, over a real socket, with the recorded deadlines."""
    messages = recorded(name)
    answers = answers_of(messages)
    seen: set[str] = set()

    async def test() -> None:
        claims = FakeClaims()
        async with (
            served(root, claims, driver="rec.example") as plugin,
            kubelet_of(service_socket(root, "rec.example")) as service,
            kubelet_of(registration_socket(root, "rec.example")) as registration,
        ):
            for one in messages:
                if one.kind != "request" or one.call not in answers:
                    continue
                assert one.deadline_s is not None
                seen.add(one.method)
                if not one.method.startswith(DRA):
                    told = await registration.call(one.method, one.data, timeout_s=one.deadline_s)
                    assert plugin.status is None or plugin.status.registered
                    if one.method.endswith("/GetInfo"):
                        ours, theirs = (registration_pb2.PluginInfo.FromString(a) for a in (told, answers[one.call]))
                        assert (ours.type, ours.name) == (theirs.type, theirs.name)
                        assert ours.supported_versions[0] == theirs.supported_versions[0]
                    continue
                claims.answers = table(one.method, answers[one.call])
                assert await service.call(one.method, one.data, timeout_s=one.deadline_s) == answers[one.call]

    run(test)
    assert len(seen) == 4


@pytest.mark.parametrize("name", RECORDINGS)
def test_uids_of_recorded_claims_are_taken(name: str, root: Path) -> None:
    uids = {
        ClaimUID(claim.uid)
        for one in recorded(name)
        if one.kind == "request" and one.method == f"{DRA}NodePrepareResources"
        for claim in dra_pb2.NodePrepareResourcesRequest.FromString(one.data).claims
    }
    assert uids

    async def test() -> None:
        async with served(root, FakeClaims()), kubelet_of(service_socket(root, "dra.cpu")) as kubelet:
            sent = [dra_pb2.Claim(namespace="default", uid=uid, name="c") for uid in sorted(uids)]
            assert {uid: one.error for uid, one in (await kubelet.prepare(*sent)).items()} == dict.fromkeys(uids, "")

    run(test)
