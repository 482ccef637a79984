"""What the kubelet tells of devices that it gave, over a real socket (S, A)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import grpc.aio
import pytest

from nodecpu.attraction import asks_kubelet
from nodecpu.cpuset import CpuSet, NodeSet
from nodecpu.dra.podresources import METHOD, GivenDevice, PodResources
from nodecpu.ids import ContainerID, SandboxID
from nodecpu.locality import Locality, Wanted
from nodecpu.policy.annotations import HintSource
from nodecpu.policy.facts import Container, Sandbox
from nodecpu.policy.pull import Hint
from nodecpu.policy.rules import Rules
from nodecpu.proto import podresources_pb2 as pb
from tests.node import PodShape
from tests.unit.policy.machines import N4C16, build_topology

POD = PodShape(number=1).sandbox
NIC = GivenDevice(resource="example.com/nic", nodes=NodeSet.parse("2"))
Answer = Callable[[bytes], bytes]


def play(directory: Path, answer: Answer | None, story: Callable[[PodResources], Awaitable[None]]) -> None:
    """Run a story beside a kubelet that answers so; None: one that is not there."""

    async def serve(request: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        if answer is None:
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "off")
        return answer(request)

    async def run() -> None:
        server = grpc.aio.server()
        _, service, method = METHOD.split("/")
        handler = grpc.method_handlers_generic_handler(service, {method: grpc.unary_unary_rpc_method_handler(serve)})
        server.add_generic_rpc_handlers((handler,))
        (directory / "pod-resources").mkdir()
        server.add_insecure_port(f"unix:{directory / 'pod-resources' / 'kubelet.sock'}")
        await server.start()
        try:
            await story(PodResources(directory))
        finally:
            await server.stop(None)

    asyncio.run(run())


def nic_of(request: bytes) -> bytes:
    """Answer that the container app of this pod has a NIC near node 2, and what is near no node."""
    asked = pb.GetPodResourcesRequest.FromString(request)
    assert (asked.pod_namespace, asked.pod_name) == (POD.namespace, POD.name)
    nowhere = pb.ContainerDevices(resource_name="example.com/usb", topology=pb.TopologyInfo(nodes=[pb.NUMANode(ID=-1)]))
    near = pb.ContainerDevices(resource_name=NIC.resource, topology=pb.TopologyInfo(nodes=[pb.NUMANode(ID=2)]))
    app = pb.ContainerResources(name="app", devices=[nowhere, near])
    return pb.GetPodResourcesResponse(pod_resources=pb.PodResources(containers=[app])).SerializeToString()


def test_devices_are_known_once_the_kubelet_has_answered(tmp_path: Path) -> None:
    """S: before that, for other containers and other pods nothing is known, and nobody waits."""

    async def story(resources: PodResources) -> None:
        resources.ask(POD)
        assert resources.given(POD.id, "app") == ()
        await resources.answered()
        assert resources.given(POD.id, "app") == (NIC,)
        assert resources.given(POD.id, "other") == ()
        assert resources.given(SandboxID("other"), "app") == ()

    play(tmp_path, nic_of, story)


@pytest.mark.parametrize("answer", [None, lambda request: b"\xff\xff"], ids=["refused", "no message"])
def test_a_kubelet_that_does_not_tell_is_logged_and_costs_the_hints_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, answer: Answer | None
) -> None:
    """S: the method is off before Kubernetes 1.34."""

    async def story(resources: PodResources) -> None:
        resources.ask(POD)
        await resources.answered()
        assert resources.given(POD.id, "app") == ()

    play(tmp_path, answer, story)
    assert "pod resources not known" in caplog.text


def test_only_so_many_answers_are_kept(tmp_path: Path) -> None:
    """S: what is oldest goes."""

    async def story(resources: PodResources) -> None:
        for number in range(1030):
            resources.ask(Sandbox(id=SandboxID(f"s{number}"), uid=POD.uid, namespace=POD.namespace, name=POD.name))
            if number % 50 == 49:  # each has its time limit, whatever waits before it
                await resources.answered()
        await resources.answered()
        known = [bool(resources.given(SandboxID(f"s{number}"), "app")) for number in range(1030)]
        assert sum(known) == 1024
        assert known[-1]

    play(tmp_path, nic_of, story)


def test_a_container_is_near_what_the_kubelet_gave_it(tmp_path: Path) -> None:
    """S, A: by the name of its resource in allow and deny lists; nodes that are not here count for nothing."""
    far = GivenDevice(resource="example.com/far", nodes=NodeSet.parse("9"))
    locality = Locality(tmp_path, build_topology(N4C16), lambda sandbox_id, name: (far, NIC) if name == "app" else ())
    app = Container(id=ContainerID("c"), sandbox_id=POD.id, name="app")
    hint = Hint(source="example.com/nic", cpus=CpuSet.parse("8-11"))
    every = frozenset(HintSource)
    assert locality.hints(app, Wanted(sources=every)) == (hint,)
    assert locality.hints(app, Wanted(sources=every - {HintSource.POD_RESOURCES})) == ()
    assert locality.hints(app, Wanted(sources=every, deny=("example.com/*",))) == ()


@pytest.mark.parametrize(
    ("words", "annotation", "asked"),
    [
        (("devices",), "", False),
        (("pod-resources",), "", True),
        (("devices",), "true", True),
        (("devices",), "none", False),
    ],
)
def test_the_kubelet_is_asked_only_where_its_word_can_count(
    words: tuple[str, ...], annotation: str, *, asked: bool
) -> None:
    """S: one call for each new pod, of the hundred a second that the kubelet takes."""
    key = "topologyhints.resource-policy.nri.io/pod"
    sandbox = Sandbox(
        id=POD.id, uid=POD.uid, namespace="shop", name="web", annotations={key: annotation} if annotation else {}
    )
    assert asks_kubelet(Rules(hint_sources=frozenset(words)), sandbox) is asked
