"""What a start does before anything can be asked of us: read the machine, restore the books (shell; R1, T5, T7)."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from nodecpu.arrangement import Arrangement, arrange, not_reserved, reserved_hint
from nodecpu.books import Books
from nodecpu.config import Config
from nodecpu.cpuset import NO_CPUS, CpuSet, union
from nodecpu.dra.told import claims_in_specs
from nodecpu.enforce.cgroups import Cgroups
from nodecpu.failpoints import reach
from nodecpu.ids import ClaimUID
from nodecpu.log import kv
from nodecpu.policy.evidence import Evidence, unproven_grants
from nodecpu.policy.facts import PodSpec
from nodecpu.policy.grants import ClaimGrant, ContainerGrant
from nodecpu.policy.ledger import Ledger
from nodecpu.policy.pools import Level
from nodecpu.policy.priority import Priority
from nodecpu.policy.rules import Mirrored, Rules, Sharing
from nodecpu.policy.wishes import Spread, Wishes
from nodecpu.preflight.nodename import NodeName, find_node_name
from nodecpu.store.claims import ADOPTED, ADOPTING, COUNTED, ClaimStore
from nodecpu.store.containers import ContainerStore
from nodecpu.topology.model import Topology
from nodecpu.topology.sysfs import read_boot_id, read_topology

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The node as it is known when the sockets may open."""

    node: str
    topology: Topology
    arranged: Arrangement
    books: Books
    claim_store: ClaimStore
    container_store: ContainerStore
    pods: tuple[PodSpec, ...]
    adopting: bool
    containers_lost: bool
    counted: bool


def node_name(config: Config) -> str:
    """Return the name of this node: the configured one, else what the kubelet's files tell, else the host's."""
    return named(config).name


def named(config: Config) -> NodeName:
    """Return the name of this node, and what told it."""
    return find_node_name(config.paths.root, config.paths.kubelet, configured=config.node.name)


def rules_of(config: Config, *, counted: bool = False) -> Rules:
    """Return the operator's choices for the policy; ``counted``: the API server keeps the node-allocatable mapping."""
    policy, claims = config.policy, config.claims
    return Rules(
        driver=config.dra.driver,
        is_flat=policy.mode == "flat",
        reserved_namespaces=policy.reserved_namespaces,
        sharing=Sharing(claims.sharing),
        mirrored=Mirrored(claims.mirrored_requests),
        mapping_published=config.dra.node_allocatable and counted,
        token_request_mcpu=claims.token_request_mcpu,
        fallback_reserved=policy.shared_fallback == "reserved",
        min_shared=policy.min_shared,
        pin_memory=policy.pin_memory and policy.mode != "flat",
        prefer_isolated=policy.prefer_isolated,
        wishes=Wishes(
            full_cores=policy.full_cores,
            spread=None if policy.spread == "none" else Spread(policy.spread),
            same_l3=policy.align_l3,
        ),
        require_cpuset=config.dra.require_cpuset,
        hint_sources=frozenset(policy.topology_hints),
        colocate_pods=policy.colocate_pods,
        colocate_namespaces=policy.colocate_namespaces,
        prefer_shared=policy.prefer_shared,
        priority=Priority(policy.cpu_priority),
        unlimited_burstable=_burstable_level(policy.unlimited_burstable),
        lift_exclusive_quota=policy.lift_exclusive_quota,
        lift_pod_quota=claims.lift_pod_quota,
        ignored_handlers=policy.ignored_handlers,
        annotation_domain=config.annotations.domain,
        may_preserve=config.annotations.may_preserve,
        may_use_reserved=config.annotations.may_use_reserved,
        may_be_realtime=config.annotations.may_be_realtime,
        scheduling_classes={one.name: one for one in config.scheduling.classes},
        namespace_scheduling=config.scheduling.namespaces,
        qos_scheduling=config.scheduling.qos,
    )


def _burstable_level(word: str) -> Level | None:
    return None if word == "none" else Level.ROOT if word == "system" else Level(word)


def start(config: Config, cgroups: Cgroups) -> Started:
    """Return the node with its books restored; raises HostError or StateError if that cannot be trusted."""
    topology = read_topology(config.paths.root)
    node = named(config)
    kv(_LOG, logging.INFO, "this node", state=f"{node.name}, by {node.source}")
    arranged = arrange(config, topology, cgroups.kubepods(), node=node.name)
    _report_devices(config, arranged)
    if lacking := not_reserved(config, arranged.usable):
        kv(_LOG, logging.WARNING, "CPUs are not reserved", state=lacking, hint=reserved_hint(arranged.usable))
    claim_store = ClaimStore(config.paths.state / "claims.db", spare=config.paths.run)
    container_store = ContainerStore(config.paths.run / "containers.db")
    boot_id = read_boot_id(config.paths.root)
    claims = _claims_of_this_machine(claim_store, boot_id, topology.fingerprint())
    containers, pods = container_store.load(boot_id)
    books = Books(Ledger(arranged.tree), container_store)
    adopting = _is_adopting(claim_store, claims)
    traces = _traces(config, claims, containers) if adopting else ()
    restored = books.restore((*claims, *traces), containers)
    if restored.over or restored.parted:
        claim_store.owe(puts=restored.parted, drops=restored.over)
    reach("start-books-loaded")
    count = len(books.ledger.claims)
    kv(
        _LOG,
        logging.INFO,
        "books loaded",
        count=count,
        state=f"{count} claims, {len(containers)} containers, {len(pods)} pods, {len(restored.over)} over",
        cpus=arranged.usable.all,
    )
    _report_conflicts(books)
    return Started(
        node=node.name,
        topology=topology,
        arranged=arranged,
        books=books,
        claim_store=claim_store,
        container_store=container_store,
        pods=pods,
        adopting=adopting,
        counted=claim_store.meta(COUNTED) == "yes",
        containers_lost=container_store.is_rebuilt and config.kube.enabled,
    )


def _claims_of_this_machine(store: ClaimStore, boot_id: str, fingerprint: str) -> tuple[ClaimGrant, ...]:
    """Return the stored claims; after a reboot into another machine their CPUs are to be picked anew (T7)."""
    claims = store.load()
    rebooted = store.meta("boot_id") not in (None, boot_id)
    if rebooted and store.meta("fingerprint") != fingerprint and claims:
        claims = tuple(replace(claim, moved=True) for claim in claims)
        store.owe(puts=claims)
        kv(_LOG, logging.WARNING, "the machine changed over a reboot: claims get other CPUs", count=len(claims))
    store.set_meta("boot_id", boot_id)
    store.set_meta("fingerprint", fingerprint)
    return claims


def _is_adopting(store: ClaimStore, claims: tuple[ClaimGrant, ...]) -> bool:
    """Return whether claims may live that the books do not know, until all were judged: restarts do not end it."""
    if store.meta(ADOPTED) is not None:
        return False
    adopting = not claims or store.is_rebuilt or store.meta(ADOPTING) is not None
    if adopting:
        store.set_meta(ADOPTING, "yes")
    return adopting


def _traces(
    config: Config, claims: tuple[ClaimGrant, ...], containers: tuple[ContainerGrant, ...]
) -> tuple[ClaimGrant, ...]:
    """Return what is known of claims without a database: of links in the containers' one, and of CDI specs (R2)."""
    linked: dict[ClaimUID, CpuSet] = {}
    for container in containers:
        for link in container.links:
            linked[link.claim_uid] = linked.get(link.claim_uid, NO_CPUS) | link.cpus
    told = claims_in_specs(config.paths.cdi, driver=config.dra.driver)
    specified = {one.uid for one in told if linked.get(one.uid, NO_CPUS) <= one.cpus}
    missing = [Evidence(uid=uid, cpus=cpus, requests={}) for uid, cpus in linked.items() if uid not in specified]
    taken = union(container.exclusive for container in containers) | union(c.cpus for c in claims if not c.moved)
    grants = unproven_grants((*missing, *told), [claim.uid for claim in claims], taken)
    for grant in grants:
        kv(
            _LOG,
            logging.WARNING,
            "claim found by its traces, to be confirmed by the API server",
            claim_uid=grant.uid,
            cpus=grant.cpus,
        )
    return grants


def _report_conflicts(books: Books) -> None:
    """Log claims on CPUs that may not be given any more: they keep them, nothing new comes from there (R3)."""
    grantable = books.ledger.tree.usable.grantable
    for claim in books.ledger.claims.values():
        if not claim.moved and not claim.cpus <= grantable:
            kv(
                _LOG,
                logging.WARNING,
                "claim keeps CPUs that the configuration or the machine took away",
                claim=f"{claim.namespace}/{claim.name}",
                claim_uid=claim.uid,
                cpus=claim.cpus - grantable,
            )


def _report_devices(config: Config, arranged: Arrangement) -> None:
    """Log what no claim can ask for, though there is something to give."""
    if arranged.usable.grantable and not any(device.cpus for device in arranged.devices):
        kv(_LOG, logging.WARNING, "no device has CPUs to give", state=f"dra.grouping = {config.dra.grouping}")
