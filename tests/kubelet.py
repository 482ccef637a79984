"""The kubelet's side of the plugin sockets, and somebody who decides about claims, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import grpc
import grpc.aio

from nodecpu.dra.health import HealthService
from nodecpu.dra.registration import KubeletPlugin, KubeletStatus
from nodecpu.errors import NodeCpuError
from nodecpu.ids import ClaimUID
from nodecpu.policy.plan import PreparedDevice
from nodecpu.proto import dra_pb2, health_pb2, registration_pb2

Answer = tuple[PreparedDevice, ...] | NodeCpuError


class FakeClaims:
    """Answers from a table; ``gates`` hold an operation on a claim until they are opened."""

    def __init__(self, answers: Mapping[str, Answer] | None = None) -> None:
        self.answers = dict(answers or {})
        self.gates: dict[str, asyncio.Event] = {}
        self.calls: list[str] = []
        self.done: list[str] = []
        self.budgets: list[float] = []
        self.called = asyncio.Event()

    async def prepare(self, uid: ClaimUID, namespace: str, name: str, *, budget_s: float) -> tuple[PreparedDevice, ...]:
        self.budgets.append(budget_s)
        return await self._operate(f"prepare {namespace}/{name}", uid)

    async def unprepare(self, uid: ClaimUID) -> None:
        await self._operate("unprepare", uid)

    async def _operate(self, call: str, uid: ClaimUID) -> tuple[PreparedDevice, ...]:
        self.calls.append(f"{call} {uid}")
        self.called.set()
        if uid in self.gates:
            await self.gates[uid].wait()
        self.done.append(f"{call} {uid}")
        answer = self.answers.get(uid, ())
        if isinstance(answer, NodeCpuError):
            raise answer
        return answer


class Kubelet:
    """Calls what is served on a socket."""

    def __init__(self, socket: Path) -> None:
        # A connection of its own: those of one process are shared, and another's may be about to end.
        own = (("grpc.use_local_subchannel_pool", 1),)
        self.channel = grpc.aio.insecure_channel(f"unix:{socket}", options=own)

    async def call(self, method: str, request: bytes, *, timeout_s: float = 5.0) -> bytes:
        """Return the serialized answer to a serialized request; ``method`` is the full path."""
        stub: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self.channel.unary_unary(method)
        return await stub(request, timeout=timeout_s)

    async def prepare(
        self, *claims: dra_pb2.Claim, timeout_s: float = 5.0
    ) -> Mapping[str, dra_pb2.NodePrepareResourceResponse]:
        request = dra_pb2.NodePrepareResourcesRequest(claims=claims).SerializeToString()
        answer = await self.call(
            "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources", request, timeout_s=timeout_s
        )
        return dict(dra_pb2.NodePrepareResourcesResponse.FromString(answer).claims)

    async def unprepare(self, *claims: dra_pb2.Claim, timeout_s: float = 5.0) -> Mapping[str, str]:
        request = dra_pb2.NodeUnprepareResourcesRequest(claims=claims).SerializeToString()
        answer = await self.call(
            "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources", request, timeout_s=timeout_s
        )
        return {uid: one.error for uid, one in dra_pb2.NodeUnprepareResourcesResponse.FromString(answer).claims.items()}

    def watch_health(self, version: str = "v1alpha1") -> AsyncIterator[health_pb2.NodeWatchResourcesResponse]:
        """Return the stream of a version of the health service."""
        stub: grpc.aio.UnaryStreamMultiCallable[bytes, health_pb2.NodeWatchResourcesResponse] = (
            self.channel.unary_stream(
                f"/{version}.DRAResourceHealth/NodeWatchResources",
                response_deserializer=health_pb2.NodeWatchResourcesResponse.FromString,
            )
        )
        return aiter(stub(b""))

    async def get_info(self) -> registration_pb2.PluginInfo:
        answer = await self.call("/pluginregistration.Registration/GetInfo", b"")
        return registration_pb2.PluginInfo.FromString(answer)

    async def notify(self, *, registered: bool, error: str = "") -> None:
        request = registration_pb2.RegistrationStatus(plugin_registered=registered, error=error)
        await self.call("/pluginregistration.Registration/NotifyRegistrationStatus", request.SerializeToString())


def claim(uid: str, name: str = "web") -> dra_pb2.Claim:
    """Return a claim as the kubelet names it."""
    return dra_pb2.Claim(namespace="shop", uid=uid, name=name)


@asynccontextmanager
async def kubelet_of(socket: Path) -> AsyncIterator[Kubelet]:
    """Connect to a socket for as long as the block lasts."""
    kubelet = Kubelet(socket)
    try:
        yield kubelet
    finally:
        await kubelet.channel.close()


@asynccontextmanager
async def served(
    root: Path,
    claims: FakeClaims,
    *,
    on_status: Callable[[KubeletStatus], None] | None = None,
    check_s: float = 60.0,
    expected_s: float = 60.0,
    driver: str = "dra.cpu",
    health: HealthService | None = None,
) -> AsyncIterator[KubeletPlugin]:
    """Serve both sockets below ``root`` for as long as the block lasts."""
    plugin = KubeletPlugin(
        driver=driver,
        kubelet=root,
        claims=claims,
        health=health or HealthService(tuple),
        on_status=on_status,
        check_s=check_s,
        expected_s=expected_s,
    )
    running = asyncio.create_task(plugin.run())
    bound = asyncio.create_task(plugin.bound.wait())
    try:
        await asyncio.wait((running, bound), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        yield plugin
    finally:
        bound.cancel()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


async def until(condition: Callable[[], bool], *, limit_s: float = 5.0) -> None:
    """Return when the condition holds; it is looked at each time the loop comes round."""
    async with asyncio.timeout(limit_s):
        while not condition():  # noqa: ASYNC110 - the condition is the outside's, nobody tells
            await asyncio.sleep(0.001)


def run(test: Callable[[], Awaitable[None]]) -> None:
    """Run a test on a loop of its own."""

    async def main() -> None:
        await test()

    asyncio.run(main())
