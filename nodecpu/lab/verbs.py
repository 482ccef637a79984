"""The verbs that a scenario's steps may use, as one table (pure): the parser, the help and the player go by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

STEP_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One key that a verb takes; ``kinds`` are the types of its value."""

    kinds: tuple[type, ...]
    help: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """What a step can do. ``words`` are the values allowed, none: a name; ``options`` beside those of every step."""

    help: str
    words: tuple[str, ...] = ()
    of: str = ""
    options: Mapping[str, Option] = field(default_factory=dict)


def _options(**options: tuple[tuple[type, ...], str]) -> Mapping[str, Option]:
    return MappingProxyType({name: Option(kinds=kinds, help=text) for name, (kinds, text) in options.items()})


PATIENCE: Final = 5
"""How often the kubelet tries unless a failure is wanted: a pod not seen yet by the daemon is refused retryably."""

_TEXT: Final = (str,)
_ERROR: Final = (_TEXT, "the step must fail, with this in the message")
_TRIES: Final = ((int,), f"how often the kubelet tries ({PATIENCE}; 1 with error)")
_CPUS: Final = (_TEXT, "CPUs, exactly")

COMMON: Final = _options(
    say=(_TEXT, "a sentence printed above the step"),
    within_s=((int, float), f"how long what is expected may take ({STEP_TIMEOUT_S:g})"),
)
VERBS: Final[Mapping[str, Verb]] = MappingProxyType(
    {
        "daemon": Verb(
            help="start, stop (SIGTERM), kill (SIGKILL), restart the daemon, or have it reload (SIGHUP)",
            words=("start", "stop", "kill", "restart", "reload"),
            options=_options(
                wait=((bool,), "wait until it is registered and has published, or has reloaded (true)"),
                config=((dict,), "change these settings first, as in [daemon]"),
            ),
        ),
        "runtime": Verb(help="start, stop or restart the runtime", words=("start", "stop", "restart", "drop")),
        "kubelet": Verb(help="start, stop or restart the kubelet", words=("start", "stop", "restart")),
        "api": Verb(
            help="start, stop, or restart the API server, break its connections, forget its history, heal its faults",
            words=("start", "stop", "restart", "break", "forget", "heal"),
            options=_options(
                kubernetes=(_TEXT, "with start and restart: the version it plays from now on, such as 1.36"),
                gates=((dict,), "with kubernetes: feature gates that are not as by default"),
            ),
        ),
        "fault": Verb(
            help='let "VERB PLURAL" calls to the API server go wrong',
            options=_options(
                status=((int,), "HTTP status answered"),
                retry_after_s=((int,), "with status: when to ask again"),
                delay_s=((int, float), "wait first"),
                drop=((list,), "paths lost on writing"),
                close=((bool,), "end the connection"),
                times=((int,), "how often (-1: until healed)"),
            ),
        ),
        "claim": Verb(help="create a claim and have it allocated", of="claims", options=_options(error=_ERROR)),
        "reallocate": Verb(
            help="deallocate a claim and allocate it with other results",
            of="claims",
            options=_options(results=((list,), "as in [claims]"), error=_ERROR),
        ),
        "deallocate": Verb(
            help="clear a claim's allocation as after its last pod, without a word to the driver",
            of="claims",
            options=_options(forgotten=((bool,), "the kubelet has lost its checkpoint too")),
        ),
        "peer": Verb(help="start or stop another vendor's driver, gpu.example.com", words=("start", "stop")),
        "unpublish": Verb(help="delete slices by hand", words=("one", "all")),
        "claim_all": Verb(help="create all claims and have them allocated, in their order", words=("claims",)),
        "prepare_all": Verb(
            help="have all claims prepared at once, in one call or in one call each; no CPU goes to two",
            words=("together", "apart"),
            options=_options(size=((int,), "CPUs of each claim")),
        ),
        "unprepare_all": Verb(help="have all claims unprepared at once", words=("claims",)),
        "start_all": Verb(
            help="create all pods and start them at once", words=("pods",), options=_options(error=_ERROR, tries=_TRIES)
        ),
        "contend": Verb(
            help="have a claim prepared, unprepared and prepared at once, again and again",
            of="claims",
            options=_options(times=((int,), "how often (10)")),
        ),
        "delete": Verb(help="delete a claim's object whatever uses it", of="claims"),
        "prepare": Verb(
            help="have a claim prepared as for a pod, without a pod",
            of="claims",
            options=_options(cpus=_CPUS, error=_ERROR, tries=_TRIES, again=((bool,), "though it is prepared already")),
        ),
        "unprepare": Verb(help="have a claim unprepared", options=_options(error=_ERROR)),
        "start": Verb(
            help="create a pod and start it: prepare, sandbox, containers",
            of="pods",
            options=_options(error=_ERROR, tries=_TRIES, prepares=((int,), "prepare calls made, exactly")),
        ),
        "pod": Verb(help="create a pod, which reserves its claims; the kubelet is slow to see it", of="pods"),
        "sandbox": Verb(
            help="create a pod, prepare, make its sandbox, no container",
            of="pods",
            options=_options(error=_ERROR, tries=_TRIES),
        ),
        "run": Verb(
            help="create and start one container of a pod", of="pods", options=_options(error=_ERROR, tries=_TRIES)
        ),
        "crash": Verb(
            help="kill a container's process; the kubelet makes a new container",
            of="pods",
            options=_options(late=((bool,), "the stop event comes after the new container")),
        ),
        "end": Verb(
            help="let a container's process end and tell of it",
            of="pods",
            options=_options(told=((bool,), "whether plugins are told (true)")),
        ),
        "resize": Verb(
            help="change a container's CPU request and limit in place",
            of="pods",
            options=_options(cpu=(_TEXT, "request"), cpu_limit=(_TEXT, "limit"), error=_ERROR),
        ),
        "stop": Verb(help="delete a pod and see it off", of="pods", options=_options(error=_ERROR, tries=_TRIES)),
        "terminate": Verb(help="ask for a pod's deletion, which the kubelet is slow to see to", of="pods"),
        "lose": Verb(help="delete a claim's CDI spec file", of="claims"),
        "forget": Verb(
            help="delete the stopped daemon's books: the claims' database, or all", words=("claims", "everything")
        ),
        "predecessor": Verb(
            help="make it as if another driver had prepared everything, the daemon being stopped",
            words=("dra-driver-cpu",),
        ),
        "mark": Verb(help="remember how often each cpuset, and what of the API server, was written", words=("writes",)),
        "see": Verb(
            help="look at a container",
            of="pods",
            options=_options(
                cpus=_CPUS,
                mems=(_TEXT, "memory nodes, exactly"),
                within=(_TEXT, "CPUs that hold its own"),
                size=((int,), "how many CPUs"),
                shares=((int,), "CPU shares"),
                quota_us=((int,), "CFS quota, -1 for none"),
                time=((str, int, float), 'CPUs of time that quotas leave it up to kubepods, "all" for no limit'),
                unwritten=((bool,), "its cpuset was not written since the mark"),
            ),
        ),
        "see_claim": Verb(
            help="look at a claim's CDI spec",
            of="claims",
            options=_options(cpus=_CPUS, spec=((bool,), "whether there is one")),
        ),
        "see_metadata": Verb(
            help="look at the device metadata that is mounted into a container",
            of="pods",
            options=_options(cpus=_CPUS, path=(_TEXT, "part of the path in the container")),
        ),
        "see_devices": Verb(help="compare the published capacities with a table device = CPUs"),
        "see_slices": Verb(
            help="compare the slices, which must be a complete pool, with a table of slices, devices, most (in one),"
            " generation, with and without (words in them)"
        ),
        "see_calls": Verb(
            help="count the daemon's calls to the API server for a kind since the mark",
            options=_options(
                writes=((int,), "those that write, exactly"), refused=((int,), "those refused as invalid, exactly")
            ),
        ),
        "see_unwritten": Verb(help="no cpuset of a running container was written since the mark", words=("all",)),
        "see_log": Verb(
            help="look for text in the daemon's log", options=_options(times=((int,), "at least so often (1)"))
        ),
        "see_event": Verb(
            help="look for text in the events of a pod",
            of="pods",
            options=_options(text=(_TEXT, "part of the message"), reason=(_TEXT, "the reason")),
        ),
        "see_claim_event": Verb(
            help="look for text in the events of a claim",
            of="claims",
            options=_options(text=(_TEXT, "part of the message"), reason=(_TEXT, "the reason")),
        ),
        "online": Verb(help="let the machine have these CPUs online, by sysfs and in its cgroups (a list of CPUs)"),
        "see_health": Verb(
            help="look at what the kubelet was told of a device",
            options=_options(health=(_TEXT, "HEALTHY, UNHEALTHY or UNKNOWN"), text=(_TEXT, "part of the message")),
        ),
        "see_faults": Verb(help="each fault that was to happen a number of times has", words=("none",)),
        "see_topology": Verb(
            help="look at a value of the node's NodeResourceTopology, by zone/resource/field or zone/attribute",
            options=_options(value=(_TEXT, "the value"), writes=((int,), "how often it was written so far, exactly")),
        ),
        "see_state": Verb(
            help="look at a value of `nodecpu status --json`, by its path",
            options=_options(value=((int, float, str, bool), "the value"), at_least=((int, float), "a bound")),
        ),
    }
)
