"""The kubelet's side of the Container Runtime Interface, as tests need it: pods and containers in its cgroups."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import grpc
from google.protobuf.message import Message

from tests.containerd import cri_pb2 as cri
from tests.containerd.image import IMAGE

CALL_TIMEOUT_S = 30.0
_Reply = TypeVar("_Reply", bound=Message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod as the kubelet names it; ``cgroup`` is ``parent``, or what the kubelet's cgroupfs driver would make.

    ``attempt`` counts its sandboxes: what is left of another one keeps its name.
    """

    name: str
    uid: str
    namespace: str = "default"
    qos: str = "besteffort"
    parent: str = ""
    attempt: int = 0

    @property
    def cgroup(self) -> str:
        if self.parent:
            return self.parent
        middle = "" if self.qos == "guaranteed" else f"/{self.qos}"
        return f"/kubepods{middle}/pod{self.uid}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningPod:
    """A pod with its sandbox."""

    pod: Pod
    sandbox_id: str
    config: cri.PodSandboxConfig = field(repr=False)

    def cgroup_of(self, container_id: str) -> str:
        return f"{self.pod.cgroup}/{container_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A container that sleeps; ``shares`` are CPU shares (2: no CPU request), ``cdi`` qualified CDI device names.

    ``quota_us`` is the CFS quota of each 100 ms, 0 for none; ``attempt`` counts from 0 and makes the name the runtime's
    own: what is left of a failed one keeps its.
    """

    name: str = "main"
    cdi: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    shares: int = 2
    quota_us: int = 0
    attempt: int = 0


class Cri:
    """Calls on the runtime's socket; every call has a deadline and raises ``grpc.RpcError``."""

    def __init__(self, socket: Path, *, logs: Path, timeout_s: float = CALL_TIMEOUT_S) -> None:
        backoff = [("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 200)]
        self._channel = grpc.insecure_channel(f"unix:{socket}", options=backoff)
        self._logs = logs
        self._timeout_s = timeout_s

    def close(self) -> None:
        self._channel.close()

    def wait(self) -> None:
        """Return when the runtime serves: its socket answers before its CRI service does, with UNAVAILABLE."""
        end = time.monotonic() + self._timeout_s
        while True:
            try:
                self._call("Version", cri.VersionRequest(), cri.VersionResponse)
            except grpc.RpcError as error:
                if grpc.StatusCode.UNAVAILABLE.name not in str(error) or time.monotonic() > end:
                    raise
                time.sleep(0.02)
            else:
                return

    def run_pod(self, pod: Pod) -> RunningPod:
        """Run the pod's sandbox on the host's network, with the labels that the kubelet gives."""
        on_host = cri.NamespaceOption(network=cri.NODE, pid=cri.CONTAINER)
        config = cri.PodSandboxConfig(
            metadata=cri.PodSandboxMetadata(name=pod.name, uid=pod.uid, namespace=pod.namespace, attempt=pod.attempt),
            log_directory=str(self._logs / pod.uid),
            labels=_labels(pod),
            linux=cri.LinuxPodSandboxConfig(
                cgroup_parent=pod.cgroup,
                security_context=cri.LinuxSandboxSecurityContext(namespace_options=on_host),
            ),
        )
        reply = self._call("RunPodSandbox", cri.RunPodSandboxRequest(config=config), cri.RunPodSandboxResponse)
        return RunningPod(pod=pod, sandbox_id=reply.pod_sandbox_id, config=config)

    def run_container(self, running: RunningPod, container: Container) -> str:
        """Create and start a container; returns its id."""
        container_id = self.create_container(running, container)
        self.start_container(container_id)
        return container_id

    def create_container(self, running: RunningPod, container: Container) -> str:
        """Create a container; returns its id."""
        on_host = cri.NamespaceOption(network=cri.NODE, pid=cri.CONTAINER)
        config = cri.ContainerConfig(
            metadata=cri.ContainerMetadata(name=container.name, attempt=container.attempt),
            image=cri.ImageSpec(image=IMAGE),
            envs=[cri.KeyValue(key=key, value=value) for key, value in container.environment],
            labels={**_labels(running.pod), "io.kubernetes.container.name": container.name},
            log_path=f"{container.name}.log",
            linux=cri.LinuxContainerConfig(
                resources=cri.LinuxContainerResources(
                    cpu_period=100_000, cpu_shares=container.shares, cpu_quota=container.quota_us
                ),
                security_context=cri.LinuxContainerSecurityContext(namespace_options=on_host),
            ),
            CDI_devices=[cri.CDIDevice(name=device) for device in container.cdi],
        )
        request = cri.CreateContainerRequest(
            pod_sandbox_id=running.sandbox_id, config=config, sandbox_config=running.config
        )
        return self._call("CreateContainer", request, cri.CreateContainerResponse).container_id

    def start_container(self, container_id: str) -> None:
        """Start a container."""
        self._call("StartContainer", cri.StartContainerRequest(container_id=container_id), cri.StartContainerResponse)

    def update_container(self, container_id: str, resources: cri.LinuxContainerResources) -> None:
        """Change a container's resources; those that are 0 stay."""
        request = cri.UpdateContainerResourcesRequest(container_id=container_id, linux=resources)
        self._call("UpdateContainerResources", request, cri.UpdateContainerResourcesResponse)

    def state(self, container_id: str) -> cri.ContainerStatusResponse:
        """Return the container's status; ``info`` holds the runtime's own words (its OCI spec among them)."""
        request = cri.ContainerStatusRequest(container_id=container_id, verbose=True)
        return self._call("ContainerStatus", request, cri.ContainerStatusResponse)

    def stop_container(self, container_id: str, *, grace_s: int = 0) -> None:
        """Have the container end of itself, and be killed if it has not after ``grace_s``; returns when it is gone."""
        request = cri.StopContainerRequest(container_id=container_id, timeout=grace_s)
        self._call("StopContainer", request, cri.StopContainerResponse, more_s=grace_s)

    def remove_container(self, container_id: str) -> None:
        """Stop the container at once and remove it."""
        self.stop_container(container_id)
        self._call(
            "RemoveContainer", cri.RemoveContainerRequest(container_id=container_id), cri.RemoveContainerResponse
        )

    def stop_pod(self, running: RunningPod) -> None:
        """Stop the sandbox with all that is in it."""
        request = cri.StopPodSandboxRequest(pod_sandbox_id=running.sandbox_id)
        self._call("StopPodSandbox", request, cri.StopPodSandboxResponse)

    def remove_pod(self, running: RunningPod) -> None:
        """Stop and remove the sandbox with all that is in it."""
        self.stop_pod(running)
        request = cri.RemovePodSandboxRequest(pod_sandbox_id=running.sandbox_id)
        self._call("RemovePodSandbox", request, cri.RemovePodSandboxResponse)

    def _call(self, method: str, request: Message, reply: type[_Reply], *, more_s: float = 0.0) -> _Reply:
        call: grpc.UnaryUnaryMultiCallable[Message, _Reply] = self._channel.unary_unary(
            f"/runtime.v1.RuntimeService/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=reply.FromString,
        )
        return call(request, timeout=self._timeout_s + more_s, wait_for_ready=True)


def _labels(pod: Pod) -> dict[str, str]:
    return {
        "io.kubernetes.pod.name": pod.name,
        "io.kubernetes.pod.namespace": pod.namespace,
        "io.kubernetes.pod.uid": pod.uid,
    }
