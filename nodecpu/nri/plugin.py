"""The NRI plugin: requests of the runtime in, calls of the service, replies out (shell; no socket, no waiting).

Every event is served in both forms, as a call of its own and through StateChange: which one a runtime uses depends on
its NRI version (interfaces.md 1.8). One object serves all links, one after another; what belongs to a link is
forgotten when it is lost.

Invariant: the service is synchronised once per link, with everything, when the last message of Synchronize is there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, Protocol, final

from google.protobuf.message import DecodeError

from nodecpu.log import kv
from nodecpu.nri import convert
from nodecpu.nri.ttrpc import CallError, Code
from nodecpu.nri.versions import RuntimeVersion, event_mask, runtime_version
from nodecpu.policy.facts import Container, ContainerState, Resources, Sandbox
from nodecpu.policy.plan import Creation, Update
from nodecpu.proto import nri_pb2, nri_read_pb2

_log = logging.getLogger(__name__)

PLUGIN_SERVICE: Final = "nri.pkg.api.v1alpha1.Plugin"
DEFAULT_REQUEST_TIMEOUT_S: Final = 2.0
"""What a runtime allows a request if it does not say. Source: pkg/adaptation, DefaultPluginRequestTimeout."""

SUBSCRIBED: Final = (
    nri_pb2.RUN_POD_SANDBOX,
    nri_pb2.STOP_POD_SANDBOX,
    nri_pb2.REMOVE_POD_SANDBOX,
    nri_pb2.CREATE_CONTAINER,
    nri_pb2.POST_CREATE_CONTAINER,
    nri_pb2.START_CONTAINER,
    nri_pb2.POST_START_CONTAINER,
    nri_pb2.UPDATE_CONTAINER,
    nri_pb2.POST_UPDATE_CONTAINER,
    nri_pb2.STOP_CONTAINER,
    nri_pb2.REMOVE_CONTAINER,
)
"""What the service is told. Not VALIDATE_CONTAINER_ADJUSTMENT: with it, every creation fails while we are away."""


class RuntimeEvents(Protocol):
    """The runtime's side of the service. Nothing here waits; a NodeCpuError becomes the error of the request."""

    def runtime_connected(self, runtime: RuntimeVersion) -> None:
        """Take note that a runtime has configured us."""

    def runtime_lost(self) -> None:
        """Take note that the link is gone."""

    def synchronize(self, sandboxes: Sequence[Sandbox], containers: Sequence[Container]) -> tuple[Update, ...]:
        """Take over what exists; return the containers to be changed."""

    def run_sandbox(self, sandbox: Sandbox) -> None:
        """Take note of a new sandbox."""

    def stop_sandbox(self, sandbox: Sandbox) -> None:
        """Take note that a sandbox has stopped."""

    def remove_sandbox(self, sandbox: Sandbox) -> None:
        """Forget a sandbox."""

    def create_container(self, sandbox: Sandbox, container: Container) -> Creation:
        """Return where a new container is to run, and others to be changed."""

    def update_container(self, sandbox: Sandbox, container: Container, wanted: Resources) -> tuple[Update, ...]:
        """Return the answer to an in-place update: the container's own entry and others."""

    def container_seen(self, sandbox: Sandbox, container: Container) -> None:
        """Take note of a container after its creation, start or update."""

    def stop_container(self, sandbox: Sandbox | None, container: Container) -> tuple[Update, ...]:
        """Take back what a container had; return others to be changed."""

    def remove_container(self, sandbox: Sandbox | None, container: Container) -> None:
        """Forget a container."""


_SandboxAct = Callable[[Sandbox], None]
_ContainerAct = Callable[[Sandbox | None, Container], None]

# Events without a reply, as calls of their own; StateChange carries the same events.
_SANDBOX_CALLS: Final[Mapping[str, int]] = {
    "RunPodSandbox": nri_pb2.RUN_POD_SANDBOX,
    "StopPodSandbox": nri_pb2.STOP_POD_SANDBOX,
    "RemovePodSandbox": nri_pb2.REMOVE_POD_SANDBOX,
}
_CONTAINER_CALLS: Final[Mapping[str, int]] = {
    "PostCreateContainer": nri_pb2.POST_CREATE_CONTAINER,
    "StartContainer": nri_pb2.START_CONTAINER,
    "PostStartContainer": nri_pb2.POST_START_CONTAINER,
    "PostUpdateContainer": nri_pb2.POST_UPDATE_CONTAINER,
    "RemoveContainer": nri_pb2.REMOVE_CONTAINER,
}
# Not subscribed, or called by no released runtime. An empty reply means: nothing to say, no objection.
_EMPTY_CALLS: Final = ("UpdatePodSandbox", "PostUpdatePodSandbox", "ValidateContainerAdjustment", "Shutdown")


@final
class Plugin:
    """Serves the calls of service ``Plugin``; ``runtime`` is None until the runtime has configured us."""

    def __init__(self, events: RuntimeEvents) -> None:
        self.runtime: RuntimeVersion | None = None
        self.request_timeout_s = DEFAULT_REQUEST_TIMEOUT_S
        self.is_synchronized = False
        self._events = events
        self._known: dict[str, Sandbox] = {}  # translated once: nothing that anybody reads of one ever changes
        self._listing: dict[str, Sandbox] = {}
        self._listed: list[Container] = []
        self._calls: Mapping[str, Callable[[bytes], bytes]] = {
            "Configure": self._configure,
            "Synchronize": self._synchronize,
            "CreateContainer": self._create_container,
            "UpdateContainer": self._update_container,
            "StopContainer": self._stop_container,
            "StateChange": self._state_change,
            **{method: partial(self._sandbox_call, event) for method, event in _SANDBOX_CALLS.items()},
            **{method: partial(self._container_call, event) for method, event in _CONTAINER_CALLS.items()},
            **dict.fromkeys(_EMPTY_CALLS, _nothing_to_say),
        }
        self._sandbox_acts: Mapping[int, _SandboxAct] = {
            nri_pb2.RUN_POD_SANDBOX: events.run_sandbox,
            nri_pb2.STOP_POD_SANDBOX: events.stop_sandbox,
            nri_pb2.REMOVE_POD_SANDBOX: self._remove_sandbox,
        }
        self._container_acts: Mapping[int, _ContainerAct] = {
            nri_pb2.POST_CREATE_CONTAINER: self._seen,
            nri_pb2.START_CONTAINER: self._seen,
            nri_pb2.POST_START_CONTAINER: self._started,
            nri_pb2.POST_UPDATE_CONTAINER: self._seen,
            nri_pb2.REMOVE_CONTAINER: events.remove_container,
        }

    def handle(self, service: str, method: str, payload: bytes) -> bytes:
        """Return the serialized reply to a call. Raises CallError for a call that cannot be served, NodeCpuError."""
        call = self._calls.get(method)
        if call is None or service != PLUGIN_SERVICE:
            raise CallError(Code.UNIMPLEMENTED, f"{service}/{method} is not implemented")
        try:
            return call(payload)
        except DecodeError as error:
            raise CallError(Code.INVALID_ARGUMENT, f"{method}: {len(payload)} bytes do not parse") from error

    def withdraw(self, method: str, payload: bytes) -> None:
        """Undo a call whose reply came too late to be sent: the container that it was to create does not come.

        CRI-O says nothing more about such a container, so its grants would stay until the next synchronisation.
        """
        if method == "CreateContainer":
            request = nri_read_pb2.Request.FromString(payload)
            self._events.remove_container(self._sandbox_of(request), _container(request, payload))

    def link_lost(self) -> None:
        """Forget what belonged to the link, and tell the service if it knew of it."""
        known = self.runtime is not None
        self.runtime = None
        self.request_timeout_s = DEFAULT_REQUEST_TIMEOUT_S
        self.is_synchronized = False
        self._known, self._listing, self._listed = {}, {}, []
        if known:
            self._events.runtime_lost()

    def _configure(self, payload: bytes) -> bytes:
        request = nri_pb2.ConfigureRequest.FromString(payload)
        runtime = runtime_version(request.runtime_name, request.runtime_version, request.NRI_version)
        if request.request_timeout > 0:  # absent before NRI 0.7
            self.request_timeout_s = request.request_timeout / 1000
        self.runtime = runtime
        self._events.runtime_connected(runtime)
        return nri_pb2.ConfigureResponse(events=event_mask(runtime.nri, SUBSCRIBED)).SerializeToString()

    def _synchronize(self, payload: bytes) -> bytes:
        request = nri_read_pb2.Listing.FromString(payload)
        claims = convert.CLAIM_MARK in payload
        self._listing |= {pod.id: self._sandbox(pod) for pod in request.pods}
        self._listed += [convert.container(one, claims=claims) for one in request.containers]
        if request.more:
            return nri_pb2.SynchronizeResponse(more=True).SerializeToString()
        listing, listed = self._listing, self._listed
        self._listing, self._listed = {}, []
        # Pods and containers are cut into messages independently, so only now is it known whose pod never came.
        containers = [container for container in listed if container.sandbox_id in listing]
        for container in listed:
            if container.sandbox_id not in listing:
                kv(_log, logging.WARNING, "container without a pod skipped", container_id=container.id)
        reply = convert.synchronize_reply(self._events.synchronize(tuple(listing.values()), containers))
        self.is_synchronized = True
        return reply

    def _create_container(self, payload: bytes) -> bytes:
        request = nri_read_pb2.Request.FromString(payload)
        container = _container(request, payload)
        return convert.creation_reply(
            self._events.create_container(self._sandbox(request.pod), container), container.id
        )

    def _update_container(self, payload: bytes) -> bytes:
        request = nri_read_pb2.Request.FromString(payload)
        container = _container(request, payload)
        wanted = convert.resources(request.linux_resources)
        updates = self._events.update_container(self._sandbox(request.pod), container, wanted)
        return convert.update_reply(updates, container.id)

    def _stop_container(self, payload: bytes) -> bytes:
        request = nri_read_pb2.Request.FromString(payload)
        container = _container(request, payload)
        return convert.stop_reply(self._events.stop_container(self._sandbox_of(request), container))

    def _state_change(self, payload: bytes) -> bytes:
        change = nri_read_pb2.Change.FromString(payload)
        event = change.event
        if event in self._sandbox_acts:
            self._sandbox_acts[event](self._sandbox(change.pod))
        elif event in self._container_acts:
            self._container_acts[event](self._sandbox_of(change), _container(change, payload))
        else:  # one we did not subscribe to, or that needs a reply, which this form has not
            kv(_log, logging.DEBUG, "state change ignored", state=str(event))
        return b""

    def _sandbox_call(self, event: int, payload: bytes) -> bytes:
        self._sandbox_acts[event](self._sandbox(nri_read_pb2.Request.FromString(payload).pod))
        return b""

    def _container_call(self, event: int, payload: bytes) -> bytes:
        request = nri_read_pb2.Request.FromString(payload)
        self._container_acts[event](self._sandbox_of(request), _container(request, payload))
        return b""

    def _remove_sandbox(self, sandbox: Sandbox) -> None:
        self._known.pop(sandbox.id, None)
        self._events.remove_sandbox(sandbox)

    def _seen(self, sandbox: Sandbox | None, container: Container) -> None:
        if sandbox is None:
            kv(_log, logging.DEBUG, "event without a pod ignored", container_id=container.id)
        else:
            self._events.container_seen(sandbox, container)

    def _started(self, sandbox: Sandbox | None, container: Container) -> None:
        """Take a container for running, though some runtimes tell the state that it had before (CRI-O)."""
        is_behind = container.state is ContainerState.CREATED
        self._seen(sandbox, replace(container, state=ContainerState.RUNNING) if is_behind else container)

    def _sandbox(self, pod: nri_read_pb2.Pod) -> Sandbox:
        known = self._known.get(pod.id)
        if known is None:
            known = convert.sandbox(pod)
            if known.uid:  # else the runtime had no more than an id left
                self._known[pod.id] = known
        return known

    def _sandbox_of(self, request: nri_read_pb2.Request | nri_read_pb2.Change) -> Sandbox | None:
        """Return the container's sandbox, None if neither the runtime nor we know it any more."""
        if request.pod.uid:  # not remembered: after its removal nothing would have it forgotten
            return self._known.get(request.pod.id) or convert.sandbox(request.pod)
        return self._known.get(request.container.pod_sandbox_id)


def _container(request: nri_read_pb2.Request | nri_read_pb2.Change, payload: bytes) -> Container:
    return convert.container(request.container, claims=convert.CLAIM_MARK in payload)


def _nothing_to_say(_payload: bytes) -> bytes:
    return b""
