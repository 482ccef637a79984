"""NRI messages as a runtime under a kubelet sends them: as many environment entries, mounts and annotations.

Source: sizes of recorded CreateContainer calls of Kubernetes 1.36 over containerd 2.4 (4.4 kB).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from nodecpu.proto import nri_pb2

NAMESPACE = "shop"
CPUS_PER_CONTAINER = "100m"
SHARES_PER_CONTAINER = 102


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod; its container ``n`` is called ``c<n>``."""

    name: str
    uid: str
    claim: str = ""

    @property
    def sandbox_id(self) -> str:
        """The id that the runtime gave it."""
        return f"{self.uid.replace('-', ''):0<64}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A container of a pod; ``env`` is added to what every container has."""

    pod: Pod
    name: str
    id: str
    env: Sequence[str] = field(default=())

    @property
    def path(self) -> str:
        """The path of its cgroup, as cgroupfs has it."""
        return f"/kubepods/burstable/pod{self.pod.uid}/{self.id}"


_MOUNTS = (
    ("/proc", "proc", "proc"),
    ("/dev", "tmpfs", "tmpfs"),
    ("/dev/pts", "devpts", "devpts"),
    ("/dev/mqueue", "mqueue", "mqueue"),
    ("/sys", "sysfs", "sysfs"),
    ("/sys/fs/cgroup", "cgroup", "cgroup"),
    ("/etc/hosts", "bind", "/var/lib/kubelet/pods/{uid}/etc-hosts"),
    ("/dev/termination-log", "bind", "/var/lib/kubelet/pods/{uid}/containers/c/be95fd7f"),
    ("/etc/hostname", "bind", "/var/lib/containerd/io.containerd.grpc.v1.cri/sandboxes/{sandbox}/hostname"),
    ("/etc/resolv.conf", "bind", "/var/lib/containerd/io.containerd.grpc.v1.cri/sandboxes/{sandbox}/resolv.conf"),
    ("/dev/shm", "bind", "/run/containerd/io.containerd.grpc.v1.cri/sandboxes/{sandbox}/shm"),
)
_ENV = (
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOSTNAME=web-1",
    "KUBERNETES_PORT=tcp://10.0.0.1:443",
    "KUBERNETES_PORT_443_TCP=tcp://10.0.0.1:443",
    "KUBERNETES_PORT_443_TCP_ADDR=10.0.0.1",
    "KUBERNETES_PORT_443_TCP_PORT=443",
    "KUBERNETES_PORT_443_TCP_PROTO=tcp",
    "KUBERNETES_SERVICE_HOST=10.0.0.1",
    "KUBERNETES_SERVICE_PORT=443",
    "KUBERNETES_SERVICE_PORT_HTTPS=443",
)
_NOTES = (
    "io.kubernetes.container.hash",
    "io.kubernetes.container.restartCount",
    "io.kubernetes.container.terminationMessagePath",
    "io.kubernetes.container.terminationMessagePolicy",
    "io.kubernetes.cri.container-name",
    "io.kubernetes.cri.container-type",
    "io.kubernetes.cri.image-name",
    "io.kubernetes.cri.sandbox-id",
    "io.kubernetes.cri.sandbox-name",
    "io.kubernetes.cri.sandbox-namespace",
    "io.kubernetes.cri.sandbox-uid",
    "io.kubernetes.pod.terminationGracePeriod",
)


def pod_message(pod: Pod) -> nri_pb2.PodSandbox:
    """Return a pod as NRI has it."""
    message = nri_pb2.PodSandbox(id=pod.sandbox_id, name=pod.name, uid=pod.uid, namespace=NAMESPACE, pid=4688)
    for name in ("oci_runtime_type", "io.kubernetes.pod.uid", "io.kubernetes.pod.name", "io.kubernetes.pod.namespace"):
        message.labels[name] = pod.uid
    for name in _NOTES:
        message.annotations[f"{name}-of-the-sandbox"] = pod.uid
    message.linux.cgroup_parent = f"/kubepods/burstable/pod{pod.uid}"
    message.linux.cgroups_path = f"/kubepods/burstable/pod{pod.uid}/{pod.sandbox_id}"
    message.linux.resources.cpu.shares.value = 2
    return message


def box_message(box: Box, *, cpus: str = "", running: bool = False) -> nri_pb2.Container:
    """Return a container as NRI has it; ``cpus`` is the cpuset that the runtime thinks it has."""
    pod = box.pod
    message = nri_pb2.Container(id=box.id, pod_sandbox_id=pod.sandbox_id, name=box.name)
    message.state = nri_pb2.CONTAINER_RUNNING if running else nri_pb2.CONTAINER_CREATED
    for name in ("io.kubernetes.pod.uid", "io.kubernetes.pod.name", "io.kubernetes.container.name"):
        message.labels[name] = pod.uid
    for name in _NOTES:
        message.annotations[name] = pod.uid
    message.args.extend(("/bin/sh", "-c", "trap 'exit 0' TERM; sleep 100000 & wait"))
    message.env.extend((*_ENV, *box.env))
    for destination, kind, source in _MOUNTS:
        mount = message.mounts.add(destination=destination, type=kind)
        mount.source = source.format(uid=pod.uid, sandbox=pod.sandbox_id)
        mount.options.extend(("nosuid", "noexec", "nodev"))
    linux = message.linux
    for kind in ("pid", "ipc", "uts", "mount", "network", "cgroup"):
        linux.namespaces.add(type=kind, path=f"/proc/4688/ns/{kind}")
    linux.oom_score_adj.value = 985
    linux.cgroups_path = box.path
    linux.resources.cpu.shares.value = SHARES_PER_CONTAINER
    linux.resources.cpu.period.value = 100000
    linux.resources.cpu.cpus = cpus
    linux.resources.devices.add(access="rwm")
    return message


def create_call(box: Box) -> bytes:
    """Return the CreateContainer call for a container."""
    return nri_pb2.CreateContainerRequest(pod=pod_message(box.pod), container=box_message(box)).SerializeToString()


def stop_call(box: Box) -> bytes:
    """Return the StopContainer call for a container."""
    message = nri_pb2.StopContainerRequest(pod=pod_message(box.pod), container=box_message(box, running=True))
    return message.SerializeToString()


def event_call(box: Box, event: nri_pb2.Event.ValueType) -> bytes:
    """Return the StateChange call that tells an event of a container."""
    message = box_message(box, running=event != nri_pb2.REMOVE_CONTAINER)
    return nri_pb2.StateChangeEvent(event=event, pod=pod_message(box.pod), container=message).SerializeToString()


def synchronize_calls(boxes: Sequence[tuple[Box, str]], *, at_once: int = 500) -> list[bytes]:
    """Return the Synchronize calls that list containers with their cpusets, cut as a runtime cuts what is too long."""
    pods = {box.pod.uid: box.pod for box, _ in boxes}
    calls = []
    for start in range(0, max(len(boxes), 1), at_once):
        part = boxes[start : start + at_once]
        call = nri_pb2.SynchronizeRequest(more=start + at_once < len(boxes))
        if not start:
            call.pods.extend(pod_message(pod) for pod in pods.values())
        call.containers.extend(box_message(box, cpus=cpus, running=True) for box, cpus in part)
        calls.append(call.SerializeToString())
    return calls
