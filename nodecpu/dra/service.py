"""The kubelet's DRA v1 service (shell): calls in, one answer for each claim UID out.

The claims of a call are worked on side by side, and one that fails does not touch the others. For one claim UID there
is one operation at a time: a repeat waits for what is under way. An operation outlives its call: when the kubelet gives
up or the time is over, it goes on to its end, and the next call finds what it did.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, Protocol

import grpc
import grpc.aio

from nodecpu.dra.claims import parse_claim_uid
from nodecpu.errors import BadRequest, NodeCpuError, NotReady
from nodecpu.failpoints import reach
from nodecpu.ids import ClaimUID
from nodecpu.log import kv
from nodecpu.log import operation as log_operation
from nodecpu.policy.plan import PreparedDevice
from nodecpu.proto import dra_pb2 as pb

SERVICE_NAME: Final = "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
SUPPORTED_VERSION: Final = "v1.DRAPlugin"
"""What the registration calls this service: not its gRPC name. Source: interfaces.md 2.2."""

CALL_LIMIT_S: Final = 45.0
"""The kubelet's deadline for each call, assumed where a call has none. Source: interfaces.md 2.3."""

_REPLY_MARGIN_S: Final = 2.0
_BUDGET_MARGIN_S: Final = 5.0

_log = logging.getLogger(__name__)

_PrepareContext = grpc.aio.ServicerContext[pb.NodePrepareResourcesRequest, pb.NodePrepareResourcesResponse]
_UnprepareContext = grpc.aio.ServicerContext[pb.NodeUnprepareResourcesRequest, pb.NodeUnprepareResourcesResponse]
_Outcome = tuple[PreparedDevice, ...] | NodeCpuError
_Operation = Callable[[pb.Claim, ClaimUID, float], Awaitable[tuple[PreparedDevice, ...]]]
"""Takes the claim as it was sent, its UID checked, and the seconds it has."""


class ClaimService(Protocol):
    """Who decides about claims. Both raise NodeCpuError, and are never cancelled because a call ended."""

    async def prepare(self, uid: ClaimUID, namespace: str, name: str, *, budget_s: float) -> tuple[PreparedDevice, ...]:
        """Return the claim's devices; what can come right soon is waited for, ``budget_s`` at most."""
        ...

    async def unprepare(self, uid: ClaimUID) -> None:
        """Release the claim; an unknown one is fine."""
        ...


class DraService:
    """The handlers. Operations run in ``tasks``, whose owner decides at the end how long they may go on."""

    def __init__(self, claims: ClaimService, tasks: asyncio.TaskGroup) -> None:
        self._claims = claims
        self._tasks = tasks
        self._latest: dict[ClaimUID, asyncio.Task[_Outcome]] = {}

    def handler(self) -> grpc.GenericRpcHandler:
        """Return what a gRPC server needs to serve this."""
        return grpc.method_handlers_generic_handler(
            SERVICE_NAME,
            {
                "NodePrepareResources": grpc.unary_unary_rpc_method_handler(
                    self._prepare,
                    request_deserializer=pb.NodePrepareResourcesRequest.FromString,
                    response_serializer=pb.NodePrepareResourcesResponse.SerializeToString,
                ),
                "NodeUnprepareResources": grpc.unary_unary_rpc_method_handler(
                    self._unprepare,
                    request_deserializer=pb.NodeUnprepareResourcesRequest.FromString,
                    response_serializer=pb.NodeUnprepareResourcesResponse.SerializeToString,
                ),
            },
        )

    async def _prepare(
        self, request: pb.NodePrepareResourcesRequest, context: _PrepareContext
    ) -> pb.NodePrepareResourcesResponse:
        outcomes = await self._each("prepare", request.claims, self._prepare_claim, context.time_remaining())
        reach("prepare-reply")
        return pb.NodePrepareResourcesResponse(claims={uid: _prepared(one) for uid, one in outcomes.items()})

    async def _unprepare(
        self, request: pb.NodeUnprepareResourcesRequest, context: _UnprepareContext
    ) -> pb.NodeUnprepareResourcesResponse:
        outcomes = await self._each("unprepare", request.claims, self._unprepare_claim, context.time_remaining())
        reach("unprepare-reply")
        return pb.NodeUnprepareResourcesResponse(
            claims={uid: pb.NodeUnprepareResourceResponse(error=_error_text(one)) for uid, one in outcomes.items()}
        )

    async def _prepare_claim(self, claim: pb.Claim, uid: ClaimUID, budget_s: float) -> tuple[PreparedDevice, ...]:
        return await self._claims.prepare(uid, claim.namespace, claim.name, budget_s=budget_s)

    async def _unprepare_claim(self, _claim: pb.Claim, uid: ClaimUID, _budget_s: float) -> tuple[PreparedDevice, ...]:
        await self._claims.unprepare(uid)
        return ()

    async def _each(
        self, verb: str, claims: Iterable[pb.Claim], operation: _Operation, remaining_s: float | None
    ) -> Mapping[str, _Outcome]:
        """Run the operation for each claim; return one outcome for each UID before the call's time is over."""
        limit_s = CALL_LIMIT_S if remaining_s is None else min(remaining_s, CALL_LIMIT_S)
        budget_end = asyncio.get_running_loop().time() + limit_s - min(_BUDGET_MARGIN_S, limit_s / 2)
        outcomes: dict[str, _Outcome] = {}
        running: dict[ClaimUID, asyncio.Task[_Outcome]] = {}
        with log_operation():
            for claim in claims:
                try:
                    uid = parse_claim_uid(claim.uid)
                except BadRequest as error:
                    outcomes[claim.uid] = error
                    continue
                if uid not in running:
                    running[uid] = self._start(verb, claim, uid, operation, budget_end)
        if running:
            # Not gather, nor a timeout: neither the end of the time nor the end of the call may cancel an operation.
            await asyncio.wait(running.values(), timeout=limit_s - min(_REPLY_MARGIN_S, limit_s / 4))
        for uid, task in running.items():
            outcomes[uid] = task.result() if task.done() and not task.cancelled() else _late(verb, uid)
        return outcomes

    def _start(
        self, verb: str, claim: pb.Claim, uid: ClaimUID, operation: _Operation, budget_end: float
    ) -> asyncio.Task[_Outcome]:
        """Begin an operation behind the one that is under way for this UID, if any."""
        before = self._latest.get(uid)
        task = self._tasks.create_task(self._operate(before, verb, claim, operation, budget_end), name=f"{verb} {uid}")
        self._latest[uid] = task
        task.add_done_callback(functools.partial(self._forget, uid))
        return task

    def _forget(self, uid: ClaimUID, task: asyncio.Task[_Outcome]) -> None:
        if self._latest.get(uid) is task:
            del self._latest[uid]

    async def _operate(
        self,
        before: asyncio.Task[_Outcome] | None,
        verb: str,
        claim: pb.Claim,
        operation: _Operation,
        budget_end: float,
    ) -> _Outcome:
        loop = asyncio.get_running_loop()
        started = loop.time()
        who = f"{claim.namespace}/{claim.name}"
        kv(_log, logging.DEBUG, f"{verb} called", claim=who, claim_uid=claim.uid)
        if before is not None:
            await asyncio.wait((before,))
        try:
            devices = await operation(claim, ClaimUID(claim.uid), max(0.0, budget_end - loop.time()))
        except NodeCpuError as error:
            kv(_log, logging.DEBUG, f"{verb} refused", claim=who, claim_uid=claim.uid, err=error)
            return error
        ms = round((loop.time() - started) * 1000, 1)
        kv(_log, logging.DEBUG, f"{verb} done", claim=who, claim_uid=claim.uid, count=len(devices), ms=ms)
        return devices


def _late(verb: str, uid: ClaimUID) -> NodeCpuError:
    return NotReady(f"claim UID {uid}: {verb} takes longer than the call may", hint="it goes on; the next try is told")


def _error_text(outcome: _Outcome) -> str:
    return str(outcome) if isinstance(outcome, NodeCpuError) else ""


def _prepared(outcome: _Outcome) -> pb.NodePrepareResourceResponse:
    if isinstance(outcome, NodeCpuError):
        return pb.NodePrepareResourceResponse(error=str(outcome))
    return pb.NodePrepareResourceResponse(
        devices=[
            pb.Device(
                request_names=one.request_names,
                pool_name=one.pool,
                device_name=one.device,
                cdi_device_ids=one.cdi_ids,
                share_id=one.share_id,
            )
            for one in outcome
        ]
    )
