# ruff: noqa: RUF009 - _setting() declares a field, as dataclasses.field() does
"""The tables of the configuration: every setting with its form, default, help and whether a reload applies it.

Defaults live nowhere else. ``config.py`` reads files by these declarations.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TypeVar, get_args

from nodecpu.config_forms import (
    AbsolutePath,
    Amount,
    Flag,
    Form,
    ListOf,
    OneOf,
    Seconds,
    Text,
    Whole,
)
from nodecpu.config_listen import NOWHERE, Listen, ListenText
from nodecpu.config_policy import ClassText, CpuChoiceText, NamespaceClass, QosClass
from nodecpu.ids import DNS_NAME
from nodecpu.policy.facts import QoS
from nodecpu.policy.scheduling import SchedulingClass
from nodecpu.policy.usable import NO_CHOICE, CpuChoice

Mode = Literal["topology-aware", "flat"]
Level = Literal["socket", "die", "numa", "l3"]
SharedFallback = Literal["reserved", "refuse"]
Sharing = Literal["allow", "pod", "container"]
MirroredRequests = Literal["auto", "always", "never"]
Grouping = Literal["numa", "socket", "die", "l3", "machine", "individual"]
Spread = Literal["none", "cores", "numa"]
HintSource = Literal["devices", "mounts", "pod-resources"]
CpuPriority = Literal["high", "normal", "low", "none"]
BurstableLevel = Literal["none", "system", "socket", "die", "numa", "l3"]
TopologyManagerPolicy = Literal["none", "best-effort", "restricted", "single-numa-node"]
LogLevel = Literal["debug", "info", "warning", "error"]

MAX_SOCKET_PATH_BYTES: Final = 107
"""Source: unix(7), sun_path less its terminating zero."""

_NAMESPACE_GLOB: Final = r"[a-z0-9*?\[\]!-]+"
_NAMESPACES: Final = "a namespace, in which * ? [ ] may stand for others"
_HANDLER_GLOB: Final = r"[a-z0-9*?\[\]!.-]+"

T = TypeVar("T")


def _setting(form: Form[T], default: T, help_text: str, *, reloadable: bool = False, key: str = "") -> T:
    """Declare a setting; ``key`` is its name in the file where that is not the attribute's."""
    assert form.read(form.write(default)) == default, f"default {default!r} does not read back"
    metadata = {"form": form, "help": help_text, "reloadable": reloadable, "key": key}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """This node in the cluster."""

    name: str = _setting(
        Text(f"({DNS_NAME})?", 'the name of a Kubernetes node, or "" for the kubelet\'s'),
        "",
        "The name of the Node object. Empty: the one in the kubelet's client certificate, else its "
        "`--hostname-override` in the files that set its flags, else the host name in small letters. `nodecpu check` "
        "tells the name and where it is from, and whether there is a Node of it; without one nothing is published.",
    )


_WRITABLE: Final = " The unit may write to the default alone: another one needs `ReadWritePaths=` in a drop-in."


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """Where things are. There is seldom a reason to change any of these."""

    root: Path = _setting(AbsolutePath(), Path("/"), "Directory that holds `sys` and `proc`.")
    cgroup: Path = _setting(AbsolutePath(), Path("/sys/fs/cgroup"), "Mount point of the cgroup hierarchy.")
    cdi: Path = _setting(
        AbsolutePath(),
        Path("/var/run/cdi"),
        "Directory for CDI spec files. It must be among those that the container runtime reads." + _WRITABLE,
    )
    kubelet: Path = _setting(
        AbsolutePath(),
        Path("/var/lib/kubelet"),
        "Root directory of the kubelet. The plugin sockets are made below it." + _WRITABLE,
    )
    state: Path = _setting(
        AbsolutePath(),
        Path("/var/lib/nodecpu"),
        "Directory for what outlives a reboot: which claim has which CPUs." + _WRITABLE,
    )
    run: Path = _setting(
        AbsolutePath(max_bytes=MAX_SOCKET_PATH_BYTES - len("/admin.sock")),
        Path("/run/nodecpu"),
        "Directory for what does not outlive a reboot: containers, the lock, the socket of the command line."
        + _WRITABLE,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Nri:
    """The link to the container runtime."""

    socket: Path = _setting(
        AbsolutePath(max_bytes=MAX_SOCKET_PATH_BYTES), Path("/var/run/nri/nri.sock"), "The runtime's NRI socket."
    )
    plugin_name: str = _setting(
        Text("[A-Za-z0-9_.+-]+", "letters, digits and _.+-", 63),
        "nodecpu",
        "The name under which the plugin registers.",
    )
    plugin_index: str = _setting(
        Text("[0-9]{2}", 'two digits in quotes, such as "90"'),
        "90",
        "Place among the runtime's plugins: they are called in rising order, and a later one has the last word.",
    )
    hold_off_s: float = _setting(
        Seconds(0, 3600),
        120.0,
        "How long the daemon, just started, waits before it registers while containers are being terminated:"
        " containerd creates nothing from a registration on until such a stop has ended.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Kube:
    """The link to the API server."""

    enabled: bool = _setting(
        Flag(),
        default=True,
        help_text="Whether to talk to the API server at all. Without it no new claim can be prepared.",
    )
    kubeconfig: Path = _setting(
        AbsolutePath(empty=Path("/etc/nodecpu/kubeconfig")),
        Path("/etc/nodecpu/kubeconfig"),
        "The kubeconfig file with the credentials. It and the files that it names (token, certificate, key, authority) "
        "are read again when they change. Empty: `/etc/nodecpu/kubeconfig`.",
    )
    server_timeout_s: float = _setting(Seconds(0.1, 60), 5.0, "How long one call to the API server may take.")
    node_topology: bool = _setting(
        Flag(),
        default=False,
        help_text="Whether to publish the pools as a NodeResourceTopology object, for the scheduler plugin of that "
        "name and for people. The cluster needs its CRD.",
    )
    topology_manager_policy: TopologyManagerPolicy = _setting(
        OneOf(get_args(TopologyManagerPolicy)),
        "best-effort",
        "The policy that a NodeResourceTopology tells the scheduler plugin to assume. With `single-numa-node` it keeps "
        "pods away whose CPU requests fit no NUMA node.",
    )
    reconcile_s: float = _setting(
        Seconds(1, 86400),
        600.0,
        "Time between two comparisons of the claims in the books with the API server. Only claims that no container "
        "uses are asked for.",
        reloadable=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Dra:
    """What is published for dynamic resource allocation."""

    driver: str = _setting(
        Text(DNS_NAME, "a DNS name of at most 63 characters", 63),
        "dra.cpu",
        "The driver's name, as DeviceClasses and claims select it.",
    )
    grouping: Grouping = _setting(
        OneOf(get_args(Grouping)),
        "numa",
        'What one published device is: the CPUs of one NUMA node, `"socket"`, `"die"` or L3 cache, the whole '
        '`"machine"`, or one CPU (`"individual"`). Claims allocated under another grouping are served as before.',
        reloadable=True,
    )
    split_isolated: bool = _setting(
        Flag(),
        default=False,
        help_text="Whether the kernel's isolated CPUs are devices of their own, beside those of the other CPUs, so "
        "that claims choose between them by the attribute `isolated`. Otherwise a device has both.",
        reloadable=True,
    )
    pcie_roots: bool = _setting(
        Flag(),
        default=False,
        help_text="Whether devices tell the PCIe roots near their CPUs, a list, so that claims can have CPUs beside a "
        "GPU or network card. The cluster needs the feature DRAListTypeAttributes; where it is off the list is left "
        "out.",
        reloadable=True,
    )
    node_allocatable: bool = _setting(
        Flag(),
        default=False,
        help_text="Whether devices say that their CPUs are the node's, so that the scheduler counts claims as CPU "
        "requests. The cluster needs Kubernetes 1.36 and the feature DRANodeAllocatableResources; where it is off "
        "claims are not counted.",
        reloadable=True,
    )
    require_cpuset: bool = _setting(
        Flag(),
        default=False,
        help_text='Whether a claim on the device `"machine"` has to say in its configuration which CPUs it takes. '
        "Otherwise the CPUs of one that does not are picked here.",
        reloadable=True,
    )
    device_metadata: bool = _setting(
        Flag(),
        default=False,
        help_text="Whether containers of newly prepared claims get a file that tells core, cache, NUMA node and socket "
        "of each of their CPUs. Preparing a claim then writes two more small files per request.",
        reloadable=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Which CPUs there are to give, and to whom."""

    mode: Mode = _setting(
        OneOf(get_args(Mode)),
        "topology-aware",
        '`"topology-aware"`: a tree of pools, exclusive CPUs also for containers without a claim. `"flat"`: one pool, '
        "exclusive CPUs by claim only, no reserved group.",
        reloadable=True,
    )
    levels: tuple[Level, ...] = _setting(
        ListOf(OneOf(get_args(Level))),
        ("socket", "die", "numa", "l3"),
        "The levels of the tree of pools below the whole machine. One that adds nothing on this machine is left out.",
        reloadable=True,
    )
    available: CpuChoice = _setting(
        CpuChoiceText(),
        NO_CHOICE,
        "The only CPUs to use, reserved ones included; of an amount the node chooses which. Empty: all that are "
        "online.",
        reloadable=True,
    )
    reserved: CpuChoice = _setting(
        CpuChoiceText(),
        NO_CHOICE,
        "CPUs kept for the reserved group: never given to claims or exclusively. An amount is rounded up to whole "
        "CPUs, which the node chooses. Empty: none.",
        reloadable=True,
    )
    reserved_namespaces: tuple[str, ...] = _setting(
        ListOf(Text(_NAMESPACE_GLOB, _NAMESPACES, 63)),
        ("kube-system",),
        "Namespaces whose containers make up the reserved group. `*`, `?` and `[...]` match as in a shell.",
        reloadable=True,
    )
    shared_fallback: SharedFallback = _setting(
        OneOf(get_args(SharedFallback)),
        "reserved",
        'When claims would take the last CPU that shared containers run on: `"reserved"` moves those to the reserved '
        'CPUs, `"refuse"` refuses the claim.',
        reloadable=True,
    )
    min_shared: int = _setting(
        Whole(-1, 65536),
        -1,
        "CPUs left for shared containers and kept out of what is published. -1: none with reserved CPUs, else 1.",
        reloadable=True,
    )
    pin_memory: bool = _setting(
        Flag(),
        default=True,
        help_text="Whether containers are bound to the memory near their CPUs.",
        reloadable=True,
    )
    prefer_isolated: bool = _setting(
        Flag(),
        default=True,
        help_text="Whether exclusive CPUs are taken from the kernel's isolated ones where those suffice.",
        reloadable=True,
    )
    full_cores: bool = _setting(
        Flag(),
        default=False,
        help_text="Whether exclusive CPUs are full cores only: devices are published in steps of a core, and what is "
        "no full core is refused.",
        reloadable=True,
    )
    spread: Spread = _setting(
        OneOf(get_args(Spread)),
        "none",
        'Whether exclusive CPUs are spread where nobody says otherwise: `"cores"`, one thread of each core as far as '
        'possible; `"numa"`, evenly over the NUMA nodes where more than one is needed.',
        reloadable=True,
    )
    prefer_shared: bool = _setting(
        Flag(),
        default=False,
        help_text="Whether containers share CPUs that could have exclusive ones, unless an annotation says otherwise.",
        reloadable=True,
    )
    cpu_priority: CpuPriority = _setting(
        OneOf(get_args(CpuPriority)),
        "none",
        "Which CPUs are preferred for exclusive use where the machine has faster and slower ones: by core type, base "
        'frequency or energy preference. `"none"`: no matter which.',
        reloadable=True,
    )
    unlimited_burstable: BurstableLevel = _setting(
        OneOf(get_args(BurstableLevel)),
        "none",
        'The level of pools for Burstable containers without a CPU limit. `"none"`: as for others.',
        reloadable=True,
    )
    ignored_handlers: tuple[str, ...] = _setting(
        ListOf(Text(_HANDLER_GLOB, "a runtime handler, in which * ? [ ] may stand for others", 63)),
        ("kata", "kata-*"),
        "Runtime handlers whose containers are left alone, since they keep the host's cpusets out. Their claims are "
        "refused.",
        reloadable=True,
    )
    lift_exclusive_quota: bool = _setting(
        Flag(),
        default=True,
        help_text="Whether the CPU quota is lifted for containers that run on exclusive CPUs alone. For those that "
        "hold claims it always is.",
        reloadable=True,
    )
    topology_hints: tuple[HintSource, ...] = _setting(
        ListOf(OneOf(get_args(HintSource))),
        ("devices",),
        "What of a container without a claim decides near which NUMA node it is placed, where its annotations say "
        'nothing: the `"devices"` it is given, the file systems of its `"mounts"`, its `"pod-resources"`, that is the '
        "devices of device plugins, which the kubelet is asked for with each new pod. Empty: nothing.",
        reloadable=True,
    )
    colocate_pods: bool = _setting(
        Flag(),
        default=False,
        help_text="Whether containers of one pod are drawn to the same pool.",
        reloadable=True,
    )
    colocate_namespaces: bool = _setting(
        Flag(),
        default=False,
        help_text="Whether containers of one namespace are drawn to the same pool.",
        reloadable=True,
    )
    align_l3: bool = _setting(
        Flag(),
        default=False,
        help_text="Whether exclusive CPUs are those of one L3 cache wherever one has room, even at the price of parts "
        "of cores.",
        reloadable=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """How claims and the containers that hold them are treated."""

    sharing: Sharing = _setting(
        OneOf(get_args(Sharing)),
        "allow",
        'Who may hold a claim together: `"allow"`, all whom the claim is reserved for; `"pod"`, the containers of one '
        'pod; `"container"`, one container.',
        reloadable=True,
    )
    mirrored_requests: MirroredRequests = _setting(
        OneOf(get_args(MirroredRequests)),
        "auto",
        'Whether a holder\'s own CPU request only repeats the claim: `"always"`, `"never"`, or `"auto"`: it pays for '
        "the claim unless the scheduler counts claims itself.",
        reloadable=True,
    )
    token_request_mcpu: int = _setting(
        Amount(),
        10,
        "A holder's CPU request below this counts as none: it is there for the QoS class alone.",
        reloadable=True,
        key="token_request",
    )
    lift_pod_quota: bool = _setting(
        Flag(),
        default=True,
        help_text="Whether a pod's CPU quota, which the kubelet sets, is raised where it would throttle CPUs that "
        "containers of the pod own.",
        reloadable=True,
    )
    wait_s: float = _setting(
        Seconds(0, 40),
        30.0,
        "How long a prepare may wait for what can come right soon, such as the API server or CPUs still in use. The "
        "kubelet itself waits 45 seconds.",
        reloadable=True,
    )
    gone_after_s: float = _setting(
        Seconds(1, 86400),
        90.0,
        "How far apart two looks are that both must find a claim's object gone, or of no more use on this node, before "
        "its CPUs are taken back without the kubelet's word.",
        reloadable=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Annotations:
    """What pods may ask for by annotation. Each list names the namespaces whose pods may."""

    domain: str = _setting(
        Text(DNS_NAME, "a DNS name"),
        "resource-policy.nri.io",
        "What the keys of annotations end in, as in `hide-hyperthreads.resource-policy.nri.io/pod`.",
    )
    may_preserve: tuple[str, ...] = _setting(
        ListOf(Text(_NAMESPACE_GLOB, _NAMESPACES, 63)),
        ("kube-system",),
        "Who may be left alone, on whatever CPUs and memory the runtime gives: `cpu.preserve` and `memory.preserve`.",
        reloadable=True,
    )
    may_use_reserved: tuple[str, ...] = _setting(
        ListOf(Text(_NAMESPACE_GLOB, _NAMESPACES, 63)),
        ("kube-system",),
        "Who may run on the reserved CPUs: `prefer-reserved-cpus`. The namespaces of the reserved group always may.",
        reloadable=True,
    )
    may_be_realtime: tuple[str, ...] = _setting(
        ListOf(Text(_NAMESPACE_GLOB, _NAMESPACES, 63)),
        ("kube-system",),
        "Who may choose a `scheduling-class` that comes before others: real-time policies and I/O, negative nice "
        "values.",
        reloadable=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling:
    """Scheduling classes: how the processes of containers are scheduled. Needs NRI 0.11 in the runtime."""

    classes: tuple[SchedulingClass, ...] = _setting(
        ListOf(ClassText()),
        (),
        "The classes there are, each in a line: `policy` (other, fifo, rr, batch, idle, deadline), `priority`, `nice`, "
        "`flags`, `io` (rt, be or idle, and after a slash the priority), for deadline `runtime_ns`, `deadline_ns` and "
        "`period_ns`.",
        reloadable=True,
    )
    namespaces: tuple[tuple[str, str], ...] = _setting(
        ListOf(NamespaceClass()),
        (),
        "The class of pods that ask for none, by namespace, the first that matches.",
        reloadable=True,
    )
    qos: tuple[tuple[QoS, str], ...] = _setting(
        ListOf(QosClass()),
        (),
        "The class of pods that neither ask for one nor get one by their namespace.",
        reloadable=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Enforce:
    """Reading back what the kernel really does."""

    period_s: float = _setting(
        Seconds(0.1, 3600), 10.0, "Time between two audits of all containers' cpusets.", reloadable=True
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """Telling containers what they got."""

    enabled: bool = _setting(
        Flag(),
        default=False,
        help_text="Whether containers get a file, `/.nodecpu/resources`, with the CPUs and the memory nodes they have. "
        "It is kept up to date. Those created without it do not get it later.",
        reloadable=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Metrics for Prometheus, for this machine only."""

    listen: Listen = _setting(
        ListenText(),
        NOWHERE,
        "Where `/metrics` is served: an address of the loopback interface with a port, or a socket file. Empty: "
        "nowhere.",
    )
    compatible_names: bool = _setting(
        Flag(),
        default=False,
        help_text="Whether the metrics of dra-driver-cpu are told by their names as well.",
        reloadable=True,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What is logged."""

    level: LogLevel = _setting(OneOf(get_args(LogLevel)), "info", "The least grave lines to log.", reloadable=True)
