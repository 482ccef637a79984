"""The composition root: builds everything, owns the task group, talks to systemd (shell).

Order at start: lock, books, CDI specs, then the link to the runtime, which is served at once; grpc and the kubernetes
client, slow to load, are loaded on a thread meanwhile; then the kubelet's sockets, and READY. Order at the end: no new
requests, what is in hand is finished and saved, sockets removed, exit 0.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import logging
import os
import signal
import time
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from nodecpu import log
from nodecpu.admin.machine import machine_of
from nodecpu.admin.server import AdminServer
from nodecpu.admin.state import Links, LinkState, NodeState, TrialRow
from nodecpu.admin.view import Surroundings, enforcement_state, finding_states, node_state
from nodecpu.arrangement import Arrangement, arrange
from nodecpu.aside import Aside, AsideClaims, AsideRuntime
from nodecpu.claims import Claims, Doors
from nodecpu.config import Config, load
from nodecpu.cpuset import CpuSet
from nodecpu.dra.cdi import CdiDirectory
from nodecpu.dra.condition import Condition
from nodecpu.dra.files import ClaimFiles
from nodecpu.dra.metadata import MetadataFiles, describer
from nodecpu.dra.podresources import PodResources
from nodecpu.dra.residence import refuse_second
from nodecpu.ending import HELD_OFF, being_stopped, hold_off, listed, terminating
from nodecpu.enforce.audit import Audit, CgroupProbe, Means
from nodecpu.enforce.cgroups import Cgroups
from nodecpu.enforce.quota import CpuQuotas
from nodecpu.enforce.systemd import Systemd
from nodecpu.errors import NodeCpuError
from nodecpu.export import Export
from nodecpu.failpoints import reach
from nodecpu.hotplug import Hotplug
from nodecpu.ids import ClaimUID
from nodecpu.kube.latesource import LateSource
from nodecpu.locality import Locality
from nodecpu.log import kv
from nodecpu.manager import ServiceManager
from nodecpu.measured import MeasuredClaims
from nodecpu.metrics import Counters, render
from nodecpu.nri import connection as nri
from nodecpu.nri.plugin import Plugin
from nodecpu.nri.unasked import Unasked
from nodecpu.offer import Offer
from nodecpu.policy.grants import ClaimGrant
from nodecpu.preflight.checks import RuntimeLink
from nodecpu.preflight.watch import Preflight, Views
from nodecpu.reconfigure import reconfigure
from nodecpu.remembering import Remembering
from nodecpu.scrape import ScrapeServer
from nodecpu.service import Service, Watchers
from nodecpu.startup import Started, rules_of, start
from nodecpu.store.claims import COUNTED, NODE_UID, Disk, Job
from nodecpu.store.database import locked, private_directory
from nodecpu.topology.model import Topology
from nodecpu.trial import tried

if TYPE_CHECKING:
    from nodecpu.dra.health import HealthService
    from nodecpu.dra.registration import KubeletPlugin, KubeletStatus
    from nodecpu.kube.claims import ClaimReader
    from nodecpu.kube.client import KubeClient
    from nodecpu.reconcile import Reconciler

_LOG = logging.getLogger(__name__)

_LATE_MODULES = (
    "nodecpu.dra.registration",
    "nodecpu.dra.publish",
    "nodecpu.kube.client",
    "nodecpu.kube.claims",
    "nodecpu.kube.events",
    "nodecpu.reconcile",
)
_HEAD_START_S = 1.0
"""How long the loading of slow libraries waits for the runtime's first synchronisation, which it would slow down."""

_UMASK = 0o077
"""What others may read is given its mode by name; the unit says the same."""

_CLOSED_AFTER_S = 300.0
"""With the runtime away for so long no more pods are to be sent here (D5)."""


def run(config_path: Path) -> int:
    """Run the daemon until SIGTERM or SIGINT; return the exit code. Raises NodeCpuError if it cannot start."""
    config = load(config_path)
    log.setup(config.log.level)
    os.umask(_UMASK)
    private_directory(config.paths.state)
    private_directory(config.paths.run)
    with locked(config.paths.run / "lock"):
        refuse_second(config.paths.kubelet / "plugins" / config.dra.driver / "dra.sock")
        cgroups = Cgroups(config.paths.cgroup)
        daemon = Daemon(config, config_path, start(config, cgroups), cgroups)
        try:
            asyncio.run(daemon.run())
        except BaseExceptionGroup as group:
            raise _cause(group) from group
    return 0


def _cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the error to report: ours if nothing but such errors ended the tasks, else everything, for a traceback."""
    ours, others = group.split(NodeCpuError)
    leaf: BaseException | None = ours
    while isinstance(leaf, BaseExceptionGroup):
        leaf = leaf.exceptions[0]
    return group if others is not None or leaf is None else leaf


class Daemon:
    """One run of the daemon; ``run`` returns when it was told to stop."""

    def __init__(self, config: Config, config_path: Path, started: Started, cgroups: Cgroups) -> None:
        self._config = config
        self._config_path = config_path
        self._node = started.node
        self._systemd = ServiceManager()
        self._counters = Counters()
        self._stopping = asyncio.Event()
        self._status = ""
        self._source = LateSource()
        self._nri_state = self._kubelet = LinkState(state="away")
        self._api: KubeClient | None = None
        self._reconciler: Reconciler | None = None
        self._health: HealthService | None = None
        self._started = started
        self._cgroups = cgroups
        self._disk = Disk(self._started.claim_store)
        self._specs = _claim_files(config, started)
        self._remembering = Remembering(started.claim_store, self._disk, self._restore_specs)
        self._pod_resources = PodResources(config.paths.kubelet)
        self._service = Service(
            self._started.books,
            started.arranged.machine,
            rules_of(config, counted=started.counted),
            pods=self._started.container_store,
            probe=CgroupProbe(cgroups),
            counters=self._counters,
            watchers=Watchers(
                pending=lambda: self._audit.kick(),
                freed=lambda: self._claims.notify(),
                released=lambda uid: self._claims.forget_row(uid),
                hinted=self._pod_resources.ask,
            ),
            quotas=CpuQuotas(config.paths.cgroup),
        )
        self._service.pods.restore(self._started.pods)
        self._service.adopting = self._started.adopting
        self._service.asking.locality = Locality(config.paths.root, started.topology, self._pod_resources.given)
        self._export = Export(config.paths.run / "export", started.books, enabled=config.export.enabled)
        self._service.mount_of = self._export.create
        started.books.exported = self._export.changed
        self._service.containers_lost = self._started.containers_lost
        self._aside = Aside(self._aside_changed, self._counters)
        self._preflight = Preflight(
            Views(
                config=lambda: self._config,
                link=self._runtime_link,
                api=lambda: self._api,
                published=lambda: self._offer.published,
            ),
            self._aside,
            node=self._node,
        )
        self._plugin = Plugin(AsideRuntime(self._service, self._aside))
        self._unasked = Unasked(self._plugin)
        doors = Doors(source=self._source, disk=self._disk, specs=self._specs)
        self._claims = Claims(self._service, doors, self._counters, wait_s=config.claims.wait_s)
        self._claims.with_metadata = config.dra.device_metadata
        self._audit = self._made_audit(cgroups)
        self._synchronized = asyncio.Event()
        self._lost_at: float | None = None  # when the link to the runtime was last lost, by the monotonic clock
        self._offer = Offer(
            self._service,
            started.arranged,
            is_open=self._synchronized.is_set,
            is_closed=lambda: self._is_away_for_long() or bool(self._aside.reason),
            node=self._node,
        )
        self._offer.counted = config.dra.node_allocatable
        self._surroundings = Surroundings(
            node=self._node, machine=machine_of(self._started.topology), available=started.arranged.available
        )
        self._hotplug = Hotplug(
            config.paths.root, cgroups, started.topology, arrange=self._arrange, taken=self._machine_changed
        )

    def _made_audit(self, cgroups: Cgroups) -> Audit:
        means = Means(unasked=self._unasked, systemd=Systemd())
        audit = Audit(self._service, cgroups, means, self._counters, period_s=self._config.enforce.period_s)
        audit.before_walk = self._look_at_machine
        audit.after_walk = self._after_walk
        audit.is_aside = lambda: bool(self._aside.reason)
        return audit

    async def run(self) -> None:
        """Serve until told to stop, then save and leave nothing behind but the state."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        admin = AdminServer(self._config.paths.run, self._state, self._try)
        admin.bind()
        self._disk.start()
        try:
            # Before the runtime can create anything: containers of prepared claims need their specs (C11).
            await self._remembering.restore_files()
            reach("start-specs-restored")
            self._preflight.decide()
            async with asyncio.TaskGroup() as tasks:
                settings = nri.LinkSettings(
                    socket=self._config.nri.socket,
                    plugin_name=self._config.nri.plugin_name,
                    plugin_index=self._config.nri.plugin_index,
                )
                link = nri.Link(settings, self._plugin, self)
                self._unasked.link = link
                running = [
                    tasks.create_task(work, name=name)
                    for name, work in (
                        ("nri", self._serve_runtime(link)),
                        ("admin", admin.serve()),
                        ("disk", self._disk.watch()),
                        ("audit", self._audit.run()),
                        ("export", self._export.run()),
                        ("watchdog", self._systemd.feed_watchdog(lambda: self._disk.is_alive)),
                        ("preflight", self._preflight.run()),
                        ("metrics", ScrapeServer(self._config.metrics.listen, self._metrics).run()),
                        ("cluster", self._serve_cluster()),
                    )
                ]
                await self._stopping.wait()
                self._systemd.tell("STOPPING=1")
                link.close()
                for task in running[1:]:
                    task.cancel()
        finally:
            await self._disk.stop()
            self._started.claim_store.close()
            self._started.container_store.close()
            kv(_LOG, logging.INFO, "stopped", count=len(self._service.books.ledger.claims))

    async def _serve_runtime(self, link: nri.Link) -> None:
        """Register as soon as that holds up nobody (R6), and stay linked."""
        await hold_off(
            self._being_stopped,
            limit_s=self._config.nri.hold_off_s,
            clock=time.monotonic,
            pause=self._is_told_to_stop_within,
            told=self._tell_held_off,
        )
        await link.run()

    def _being_stopped(self) -> tuple[str, ...]:
        containers = self._service.books.ledger.containers.values()
        return being_stopped(containers, self._service.spec_of, self._cgroups.is_populated)

    async def _is_told_to_stop_within(self, seconds: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        return self._stopping.is_set()

    def _tell_held_off(self, words: str) -> None:
        kv(_LOG, logging.WARNING, "runtime link held off", state=words)
        self._nri_state = LinkState(state=HELD_OFF, reason=words)
        self._lost_at = self._lost_at or time.monotonic()
        self._tell_status()

    def link_changed(self, state: nri.LinkState, detail: str) -> None:
        """Take note of how the link to the runtime fares."""
        runtime = self._plugin.runtime
        is_up = state is nri.LinkState.SYNCHRONIZED
        self._nri_state = LinkState(
            state="connected" if is_up else state.value,
            name="" if runtime is None else runtime.name,
            version="" if runtime is None else runtime.version,
            reason=detail,
        )
        if is_up:
            self._lost_at = None
            if self._synchronized.is_set():
                self._counters.nri_reconnects += 1
            self._synchronized.set()
            self._preflight.look_soon()
            self._restore_specs().add_done_callback(_log_failure)
            self._offer.publish()
        elif self._lost_at is None:
            self._lost_at = time.monotonic()
        if self._health is not None:
            self._health.changed()
        self._tell_status()

    async def _serve_cluster(self) -> None:
        """Load what the kubelet's and the API server's side need, then serve both until cancelled."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_HEAD_START_S):
                await self._synchronized.wait()
        await asyncio.to_thread(_load_late_modules)
        gc.collect()
        gc.freeze()  # what is loaded stays: a collection need not go through it each time
        gc.enable()  # switched off by the command line
        from nodecpu.dra.health import HealthService  # noqa: PLC0415 - slow to load, see _load_late_modules
        from nodecpu.dra.registration import KubeletPlugin  # noqa: PLC0415 - see _load_late_modules

        self._health = HealthService(self._conditions)
        kubelet = KubeletPlugin(
            driver=self._config.dra.driver,
            kubelet=self._config.paths.kubelet,
            claims=MeasuredClaims(AsideClaims(self._claims, self._aside), self._service.books, self._counters),
            health=self._health,
            on_status=self._kubelet_told,
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(kubelet.run(), name="kubelet")
            tasks.create_task(self._tell_ready(kubelet), name="ready")
            if self._config.kube.enabled:
                for work in self._api_work():
                    tasks.create_task(work)

    def _api_work(self) -> tuple[Coroutine[None, None, None], ...]:
        """Return what runs against the API server."""
        from nodecpu.dra.publish import SlicePublisher  # noqa: PLC0415 - see _load_late_modules
        from nodecpu.kube.claims import ClaimReader  # noqa: PLC0415 - see _load_late_modules
        from nodecpu.kube.client import KubeClient  # noqa: PLC0415 - see _load_late_modules
        from nodecpu.kube.events import Events  # noqa: PLC0415 - see _load_late_modules
        from nodecpu.kube.pods import PodWatch  # noqa: PLC0415 - see _load_late_modules
        from nodecpu.kube.renewal import TokenRenewal  # noqa: PLC0415 - see _load_late_modules
        from nodecpu.reconcile import Notes, Reconciler  # noqa: PLC0415 - see _load_late_modules

        api = self._api = KubeClient(self._config.kube.kubeconfig, timeout_s=self._config.kube.server_timeout_s)
        reader = self._source.reader = ClaimReader(api, driver=self._config.dra.driver, node=self._node)
        publisher = self._offer.publisher = SlicePublisher(api, driver=self._config.dra.driver, node=self._node)
        publisher.settled = self._published_anew
        watch = PodWatch(api, node=self._node, sink=self._service)
        watch.after = self._renew_status
        events = Events(api, node=self._node)
        self._claims.reports = self._service.reports = self._aside.reports = events
        self._reconciler = Reconciler(
            self._claims,
            self._service,
            reader,
            notes=Notes(node_uid=self._started.claim_store.meta(NODE_UID), store=self._note),
            period_s=self._config.kube.reconcile_s,
            gone_after_s=self._config.claims.gone_after_s,
        )
        self._reconciler.proved = self._offer.publish
        work = [watch.run(), publisher.run(), self._publish_first(), self._reconciler.run(), events.run()]
        work.append(TokenRenewal(api, self._config.kube.kubeconfig, node=self._node).run())
        if self._config.kube.node_topology:
            work.append(self._topology_work(api, reader))
        return tuple(work)

    async def _topology_work(self, api: KubeClient, reader: ClaimReader) -> None:
        """Publish the pools once they are what the runtime's containers make of them (X2)."""
        from nodecpu.kube.nrt import TopologyPublisher, node_topology  # noqa: PLC0415 - see _load_late_modules

        await self._synchronized.wait()
        books, policy = self._service.books, self._config.kube.topology_manager_policy
        topology = TopologyPublisher(
            api,
            reader,
            lambda: node_topology(self._service.books.ledger, self._hotplug.topology, policy=policy),
            node=self._node,
        )
        books.changed = topology.changed
        await topology.run()

    def _note(self, key: str, value: str) -> None:
        """Have a fact stored with the claims; not waited for, since it is found out again."""
        store = self._started.claim_store
        self._disk.submit(Job(after=lambda: store.set_meta(key, value))).add_done_callback(_log_failure)

    async def _publish_first(self) -> None:
        """Publish devices once the runtime is synchronised: before that no claim could be served (D5)."""
        await self._synchronized.wait()
        self._offer.publish()

    def _published_anew(self) -> None:
        """Have containers to come judged by whether the scheduler counts claims now; remember it for a start (G13)."""
        published = self._offer.published
        counted = published is not None and published.counted
        if counted != self._service.rules.mapping_published:
            self._service.rules = replace(self._service.rules, mapping_published=counted)
            self._note(COUNTED, "yes" if counted else "no")
            kv(
                _LOG,
                logging.INFO,
                "whether the scheduler counts claims as CPU requests",
                state="yes" if counted else "no",
            )

    def _aside_changed(self) -> None:
        """Have everybody told that we stand aside, or not any more: then the audit puts right what it finds (E2)."""
        self._offer.publish()
        self._service.tell_pending()
        self._tell_status()

    def _runtime_link(self) -> RuntimeLink:
        words = ", ".join(filter(None, (self._nri_state.state, self._nri_state.reason)))
        return RuntimeLink(is_up=self._nri_state.state == "connected", state=words, version=self._plugin.runtime)

    def _arrange(self, topology: Topology, kubepods: CpuSet | None) -> Arrangement:
        """Return what the configuration in force makes of a machine."""
        return arrange(self._config, topology, kubepods, node=self._node)

    async def _look_at_machine(self) -> None:
        await self._hotplug.look(self._service)

    def _machine_changed(self, arranged: Arrangement) -> None:
        """Have everybody follow a machine that has changed (T6): devices, health, locality, what is shown."""
        topology = self._hotplug.topology
        self._follow(arranged)
        self._service.asking.locality = Locality(self._config.paths.root, topology, self._pod_resources.given)
        self._specs.describe_by(describer(topology, self._config.dra.driver))
        self._surroundings = replace(self._surroundings, machine=machine_of(topology))
        self._offer.publish()
        if self._health is not None:
            self._health.changed()

    def _follow(self, arranged: Arrangement) -> None:
        self._offer.arrange_anew(arranged)
        self._surroundings = replace(self._surroundings, available=arranged.available)

    def _after_walk(self) -> None:
        """Take note of what has changed without anybody telling: what can be offered, and how devices are."""
        self._remembering.try_again()
        self._offer.publish()
        self._renew_status()
        if self._health is not None:
            self._health.look_again()

    def _is_away_for_long(self) -> bool:
        """Return whether the runtime has been away for so long that no more pods are to be sent here (D5)."""
        return self._lost_at is not None and time.monotonic() - self._lost_at > _CLOSED_AFTER_S

    def _conditions(self) -> tuple[Condition, ...]:
        """Return how each device is now (D6)."""
        root, topology, reports = self._config.paths.root, self._hotplug.topology, self._claims.reports
        return self._offer.conditions(root, topology, reports, runtime_away=self._is_away_for_long())

    def _kubelet_told(self, status: KubeletStatus) -> None:
        """Take note of what the kubelet says of our registration."""
        self._kubelet = LinkState(state="connected" if status.registered else "refused", reason=status.error)
        self._tell_status()

    async def _tell_ready(self, kubelet: KubeletPlugin) -> None:
        await kubelet.bound.wait()
        kv(_LOG, logging.INFO, "ready")
        self._systemd.tell("READY=1")
        self._tell_status()

    def _reload(self) -> None:
        """Take over what can change while running; a bad file changes nothing (SIGHUP)."""
        self._systemd.tell_reloading()
        try:
            wanted = load(self._config_path)
            config = self._config.reloaded(wanted)
            units = self._offer.arranged.machine.units
            topology, kubepods = self._hotplug.topology, self._cgroups.kubepods()
            arranged = arrange(config, topology, kubepods, node=self._node, units=units)
            # Whether claims are counted changes with what is published, and for containers to come alone.
            rules = replace(rules_of(config), mapping_published=self._service.rules.mapping_published)
            reconfigure(self._service, arranged, rules)
        except NodeCpuError as err:
            kv(_LOG, logging.ERROR, "configuration not reloaded, the old one stays", path=self._config_path, err=err)
        else:
            for change in self._config.changes(wanted):
                how = "applied" if change.reloadable else "needs a restart"
                kv(_LOG, logging.INFO, "setting changed", state=f"{change.key}: {change.old} -> {change.new}, {how}")
            self._take_over(config, arranged)
        self._systemd.tell("READY=1")
        self._tell_status()

    def _take_over(self, config: Config, arranged: Arrangement) -> None:
        """Let a new configuration hold that the service has taken in."""
        self._config = config
        self._offer.counted = config.dra.node_allocatable
        self._follow(arranged)
        self._claims.wait_s = config.claims.wait_s
        self._claims.with_metadata = config.dra.device_metadata
        if self._reconciler is not None:
            self._reconciler.period_s = config.kube.reconcile_s
            self._reconciler.gone_after_s = config.claims.gone_after_s
        self._audit.period_s = config.enforce.period_s
        self._export.enabled = config.export.enabled
        log.set_level(config.log.level)
        self._offer.publish()

    def _restore_specs(self) -> asyncio.Future[None]:
        """Have missing CDI specs written, and once the runtime is synchronised those removed that are over (C11)."""
        grants, used = self._claims.specs_due()
        return self._disk.submit(Job(after=lambda: _restore(self._specs, grants, used)))

    def _links(self) -> Links:
        return Links(runtime=self._nri_state, kubelet=self._kubelet, api=self._api_link())

    def _api_link(self) -> LinkState:
        """Return how the API server is, by its last answer and by what became of publishing."""
        api, published = self._api, self._offer.published
        if not self._config.kube.enabled:
            return LinkState(state="off")
        if api is None or published is None or api.answered is None:
            return LinkState(state="not asked yet")
        error = published.error or ("" if api.answered else "the last call was not answered")
        ends = api.credentials_expire_at
        return LinkState(
            state="away" if error else "connected",
            reason=error,
            credentials_expire_at=msgspec.UNSET if ends is None else ends,
        )

    def _state(self) -> NodeState:
        counters, refusals = self._counters.state(), self._counters.last_refusals.all
        state = node_state(self._service.books, self._surroundings, self._links(), counters, refusals)
        runtime, published = self._plugin.runtime, self._offer.published
        enforcement = enforcement_state(self._audit, unasked=runtime is not None and runtime.safe_unsolicited)
        return msgspec.structs.replace(
            state,
            preflight=finding_states((*self._remembering.findings, *self._preflight.findings)),
            aside=self._aside.reason,
            enforcement=enforcement,
            terminating=terminating(self._service.books.ledger.containers.values(), self._service.spec_of),
            published=published is not None and published.in_step and not published.withheld,
        )

    def _metrics(self) -> bytes:
        return render(self._state(), compatible=self._config.metrics.compatible_names)

    def _try(self, objects: Sequence[bytes]) -> tuple[TrialRow, ...]:
        return tried(self._service, self._config.dra.driver, objects)

    def _tell_status(self) -> None:
        self._status = self._status_line()
        self._systemd.tell(self._status)

    def _renew_status(self) -> None:
        """Tell it where it has changed."""
        if self._status_line() != self._status:
            self._tell_status()

    def _status_line(self) -> str:
        ledger = self._service.books.ledger
        links = self._links()
        runtime = " ".join(part for part in (links.runtime.name, links.runtime.version) if part) or "runtime"
        aside = "standing aside, see nodecpu check; " if self._aside.reason else ""
        ending = terminating(ledger.containers.values(), self._service.spec_of)
        awaited = f"; a planned restart waits for {listed(ending)}" if ending else ""
        return (
            f"STATUS={aside}{self._remembering.words}{runtime} {links.runtime.state}, kubelet {links.kubelet.state},"
            f" API server {links.api.state}; {len(ledger.claims)} claims, {len(ledger.containers)} containers{awaited}"
        )


def _claim_files(config: Config, started: Started) -> ClaimFiles:
    specs = CdiDirectory(config.paths.cdi, driver=config.dra.driver)
    metadata = MetadataFiles(
        specs,
        config.paths.kubelet / "plugins" / config.dra.driver,
        driver=config.dra.driver,
        describe=describer(started.topology, config.dra.driver),
    )
    return ClaimFiles(specs, metadata)


def _restore(specs: ClaimFiles, grants: tuple[ClaimGrant, ...], used: frozenset[ClaimUID] | None) -> None:
    specs.restore(grants, used=used)


def _load_late_modules() -> None:
    for name in _LATE_MODULES:
        importlib.import_module(name)


def _log_failure(done: asyncio.Future[None]) -> None:
    if not done.cancelled() and (err := done.exception()) is not None:
        kv(_LOG, logging.ERROR, "the disk did not do what was not waited for", err=err)
