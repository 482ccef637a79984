"""What an API server would not keep of our devices, by dry runs (D3)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

import pytest

from nodecpu.cpuset import NO_CPUS
from nodecpu.dra.devices import PCIE_ROOT, Device
from nodecpu.dra.dryrun import Trials, kinds_of
from nodecpu.dra.slices import Form, NodeAllocatable
from nodecpu.errors import BadRequest
from nodecpu.kube.client import ApiError

PLAIN = Device(name="cpudevnuma000", cpus=NO_CPUS, capacity=4, attributes={"dra.cpu/numaNodeID": 0})
ROOTED = Device(name="cpudevnuma001", cpus=NO_CPUS, capacity=4, attributes={PCIE_ROOT: ("pci0000:00",)})
LISTS = f"spec.devices[0].attributes.{PCIE_ROOT}.strings"


def refusal(status: int) -> ApiError:
    return ApiError("no", status=status, reason="No")


class Server:
    """Answers each write by a function of the object; an error of it is the answer."""

    def __init__(self, *answers: Callable[[dict[str, Any]], dict[str, Any] | Exception]) -> None:
        self.sent: list[dict[str, Any]] = []
        self._answers = list(answers)

    @property
    def is_answering(self) -> bool:
        return True

    async def get(self, path: str, query: Mapping[str, str] | None = None, *, timeout_s: float | None = None) -> bytes:
        raise AssertionError(path)

    async def send(self, method: str, path: str, body: bytes) -> bytes:
        assert (method, path) == ("POST", "/apis/resource.k8s.io/v1/resourceslices?dryRun=All")
        self.sent.append(json.loads(body))
        answer = self._answers.pop(0)(json.loads(body))
        if isinstance(answer, Exception):
            raise answer
        return json.dumps(answer).encode()

    async def watch(self, path: str, query: Mapping[str, str], *, silence_s: float) -> AsyncGenerator[bytes, None]:
        assert not path, "nothing is watched"
        yield b""


def kept(body: dict[str, Any]) -> dict[str, Any]:
    return body


def without_sharing(body: dict[str, Any]) -> dict[str, Any]:
    for device in body["spec"]["devices"]:
        del device["allowMultipleAllocations"]
    return body


def found(server: Server, *devices: Device, form: Form | None = None) -> tuple[str, ...] | None:
    trials = Trials(api=server, driver="dra.cpu", node="node1", node_uid="uid")
    return asyncio.run(trials.lacking(devices, form or Form()))


def test_one_device_stands_for_all() -> None:
    """The one with a list, since not every device need have one."""
    server = Server(kept)
    assert found(server, PLAIN, ROOTED, PLAIN) == ()
    (sent,) = server.sent
    assert [device["name"] for device in sent["spec"]["devices"]] == ["cpudevnuma001"]
    assert sent["spec"]["pool"] == {"name": "node1", "generation": 0, "resourceSliceCount": 2}
    assert sent["metadata"]["ownerReferences"][0]["uid"] == "uid"


def test_what_is_dropped_is_told_by_its_path() -> None:
    assert found(Server(without_sharing), PLAIN) == ("spec.devices[0].allowMultipleAllocations",)


def test_lists_that_are_refused_are_tried_without() -> None:
    """D2: the rest is found out all the same."""
    server = Server(lambda _: refusal(422), without_sharing)
    form = Form(counted=NodeAllocatable.RESOURCES)
    assert found(server, ROOTED, form=form) == (LISTS, "spec.devices[0].allowMultipleAllocations")
    assert "strings" not in json.dumps(server.sent[1])
    assert "nodeAllocatableResources" in json.dumps(server.sent[1])


@pytest.mark.parametrize(
    ("devices", "statuses"),
    [
        pytest.param((PLAIN,), (400,), id="admission without dry run"),
        pytest.param((PLAIN,), (403,), id="no right"),
        pytest.param((PLAIN,), (422,), id="invalid for another reason"),
        pytest.param((ROOTED,), (422, 422), id="invalid without lists too"),
        pytest.param((ROOTED,), (422, 400), id="refused the second time"),
    ],
)
def test_refusal_tells_nothing(devices: tuple[Device, ...], statuses: tuple[int, ...]) -> None:
    server = Server(*(lambda _, status=status: refusal(status) for status in statuses))
    assert found(server, *devices) is None
    assert len(server.sent) == len(statuses)


@pytest.mark.parametrize("status", [429, 500, 503])
def test_server_in_trouble_is_to_be_asked_again(status: int) -> None:
    with pytest.raises(ApiError):
        found(Server(lambda _: refusal(status)), PLAIN)


@pytest.mark.parametrize("answer", [{}, {"spec": 3}, {"spec": []}])
def test_malformed_answer_is_an_error(answer: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match="not a ResourceSlice"):
        found(Server(lambda _: answer), PLAIN)


def test_kinds_are_fields_of_whatever_device() -> None:
    assert kinds_of(["spec.devices[0].taints[0].key", "spec.devices[12].taints[0].key"]) == {
        "spec.devices[].taints[].key"
    }
