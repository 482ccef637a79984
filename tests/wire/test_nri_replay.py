"""Our plugin under the recorded runtimes: what they sent is played to it over a real socket."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Final

import pytest

from nodecpu.nri.connection import Link, LinkSettings, LinkState
from nodecpu.nri.mux import PLUGIN_CONN
from nodecpu.nri.plugin import Plugin
from nodecpu.nri.ttrpc import Request, Response
from nodecpu.policy.plan import Creation
from nodecpu.proto import nri_pb2
from tests.nri_fakes import FakeService, Watcher, listening, placement, update
from tests.nri_wire import TO_PLUGIN, Recorded, listen, recording
from tests.support import shared_data

REPLAYED: Final = (
    "kubelet-1.36.2-more-nri.json.gz",
    "kubelet-1.36.2-nri.json",
    "nri-containerd-2.1.9-observe.json",
    "nri-containerd-2.1.9-pin.json",
    "nri-containerd-2.4dev-observe.json",
    "nri-containerd-2.4dev-pin.json",
    "nri-crio-1.37dev-observe.json",
    "nri-crio-1.37dev-pin.json",
)
_VERBS: Final = {
    "Configure": "connected",
    "Synchronize": "synchronize",
    "RunPodSandbox": "run",
    "StopPodSandbox": "stop sandbox",
    "RemovePodSandbox": "remove sandbox",
    "CreateContainer": "create",
    "PostCreateContainer": "seen",
    "StartContainer": "seen",
    "PostStartContainer": "seen",
    "UpdateContainer": "update",
    "PostUpdateContainer": "seen",
    "StopContainer": "stop",
    "RemoveContainer": "remove",
}
_UNUSED: Final = {"UpdatePodSandbox", "PostUpdatePodSandbox", "ValidateContainerAdjustment"}


def _requests(one: Recorded) -> list[Request]:
    return [exchange.request for exchange in listen(one).exchanges if exchange.conn == PLUGIN_CONN]


def _told(request: Request) -> tuple[str, ...] | None:
    """Return (verb, pod, container) as the recorded message, read with the full description, tells it."""
    method, pod, container = request.method, "", ""
    if method == "StateChange":
        change = nri_pb2.StateChangeEvent.FromString(request.payload)
        method = "".join(part.capitalize() for part in nri_pb2.Event.Name(change.event).split("_"))
        pod, container = change.pod.name, change.container.name
    elif method not in ("Configure", "Synchronize") and method not in _UNUSED:
        message = getattr(nri_pb2, f"{method}Request").FromString(request.payload)
        pod = message.pod.name
        container = message.container.name if hasattr(message, "container") else ""
    if method in _UNUSED:
        return None
    return tuple(part for part in (_VERBS[method], pod, container) if part)


async def _replay(one: Recorded, service: FakeService, socket: Path) -> list[Response]:
    """Play the runtime's side of a connection to our plugin; return its answers, one for each request."""
    watcher = Watcher()
    settings = LinkSettings(socket=socket, plugin_name="nodecpu", plugin_index="90")
    link = Link(settings, Plugin(service), watcher)
    requests = _requests(one)
    async with listening(socket) as runtime, asyncio.TaskGroup() as tasks:
        tasks.create_task(link.run())
        end = await runtime.accept()
        assert (await end.request()).method == "RegisterPlugin"
        for request in requests:  # our codec at this end has to know which calls are open
            while end.calls.send_request("s", request.method, b"")[0] < request.stream_id:
                pass
        for way, data in one.reads:
            if way == TO_PLUGIN:
                end.writer.write(data)
        answers = [await end.response() for _ in requests]
        await watcher.reached(LinkState.SYNCHRONIZED)
        link.close()
    return answers


@pytest.mark.parametrize("name", REPLAYED)
def test_recorded_runtime_is_served(name: str, tmp_path: Path) -> None:
    """Every request is answered with success, and the service hears of each event once and in order."""
    for one in recording(name):
        service = FakeService(
            creation=Creation(placement=placement("0", "0", 1024)), updates=(update("another container", "1"),)
        )
        answers = asyncio.run(_replay(one, service, tmp_path / "nri.sock"))
        assert [answer.error for answer in answers] == [None] * len(answers)
        told = [call for request in _requests(one) if (call := _told(request)) is not None]
        assert service.calls == [*told, ("lost",)]


@pytest.mark.parametrize("name", REPLAYED)
def test_service_is_told_what_was_noted_when_it_was_recorded(name: str) -> None:
    """The calls in the notes taken beside the recording are those that we decode from its bytes."""
    path = shared_data("wire", name.removesuffix(".gz").removesuffix(".json").removesuffix("-nri") + ".actions.json")
    noted = [item["action"].split()[1] for item in json.loads(path.read_text()) if item["action"].startswith("nri ")]
    decoded = [request.method for one in recording(name) for request in _requests(one)]
    decoded = [method for method in decoded if method in set(noted)]
    assert sorted(noted) == sorted(decoded)


def test_recorded_claim_containers_are_seen_as_such() -> None:
    """L1: containerd 2.4 shows the CDI device, 2.1.9 and CRI-O only the variables that its edits made."""
    for name, shows in (("containerd-2.4dev", True), ("containerd-2.1.9", False), ("crio-1.37dev", False)):
        service = FakeService()
        plugin = Plugin(service)
        for one in recording(f"nri-{name}-observe.json"):
            for request in _requests(one):
                plugin.handle(request.service, request.method, request.payload)
        assert any(container.cdi_devices for container in service.containers) is shows
        assert service.runtime is not None
        assert service.runtime.shows_cdi is shows
