"""What a start does before anything can be asked of us: read the machine, restore the books (shell; R1, T5, T7)."""

from __future__ import annotations

import logging
import socket
from dataclasses import dataclass, replace

from nodecpu.books import Books
from nodecpu.config import Config
from nodecpu.dra.devices import Device, grouped_devices
from nodecpu.enforce.cgroups import Cgroups
from nodecpu.log import kv
from nodecpu.policy.allocate import Machine
from nodecpu.policy.facts import PodSpec
from nodecpu.policy.grants import ClaimGrant
from nodecpu.policy.ledger import Ledger
from nodecpu.policy.picker import build_units
from nodecpu.policy.pools import Level, build_pools
from nodecpu.policy.rules import Mirrored, Rules, Sharing
from nodecpu.policy.usable import usable_cpus
from nodecpu.store.claims import ClaimStore, Job
from nodecpu.store.containers import ContainerStore
from nodecpu.topology.model import Topology
from nodecpu.topology.sysfs import read_boot_id, read_topology

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The node as it is known when the sockets may open."""

    topology: Topology
    machine: Machine
    devices: tuple[Device, ...]
    books: Books
    claim_store: ClaimStore
    container_store: ContainerStore
    pods: tuple[PodSpec, ...]


def node_name(config: Config) -> str:
    """Return the name of this node: the configured one, else the host name as the kubelet takes it."""
    return config.node.name or socket.gethostname().lower()


def rules_of(config: Config) -> Rules:
    """Return the operator's choices for the policy."""
    policy, claims = config.policy, config.claims
    return Rules(
        driver=config.dra.driver,
        is_flat=policy.mode == "flat",
        reserved_namespaces=policy.reserved_namespaces,
        sharing=Sharing(claims.sharing),
        mirrored=Mirrored(claims.mirrored_requests),
        token_request_mcpu=claims.token_request_mcpu,
        fallback_reserved=policy.shared_fallback == "reserved",
        min_shared=policy.min_shared,
        pin_memory=policy.pin_memory,
        prefer_isolated=policy.prefer_isolated,
    )


def start(config: Config, cgroups: Cgroups) -> Started:
    """Return the node with its books restored; raises HostError or StateError if that cannot be trusted."""
    topology = read_topology(config.paths.root)
    usable = usable_cpus(
        online=topology.online,
        isolated=topology.isolated,
        available=config.policy.available,
        kubepods=cgroups.kubepods(),
        reserved=config.policy.reserved,
    )
    levels = () if config.policy.mode == "flat" else tuple(Level(name) for name in config.policy.levels)
    tree = build_pools(topology, usable, levels)
    devices = grouped_devices(topology, usable, grouping=config.dra.grouping, driver=config.dra.driver)
    claim_store = ClaimStore(config.paths.state / "claims.db")
    container_store = ContainerStore(config.paths.run / "containers.db")
    boot_id = read_boot_id(config.paths.root)
    claims = _claims_of_this_machine(claim_store, boot_id, topology.fingerprint())
    containers, pods = container_store.load(boot_id)
    books = Books(Ledger(tree), container_store)
    over = books.restore(claims, containers)
    claim_store.commit([Job(drops=over)])
    kv(
        _LOG,
        logging.INFO,
        "books loaded",
        count=len(books.ledger.claims),
        state=f"{len(books.ledger.claims)} claims, {len(containers)} containers, {len(pods)} pods, {len(over)} over",
        cpus=usable.all,
    )
    _report_conflicts(books)
    return Started(
        topology=topology,
        machine=Machine(
            units=build_units(topology),
            devices={device.name: device.cpus for device in devices},
            pool=node_name(config),
        ),
        devices=devices,
        books=books,
        claim_store=claim_store,
        container_store=container_store,
        pods=pods,
    )


def _claims_of_this_machine(store: ClaimStore, boot_id: str, fingerprint: str) -> tuple[ClaimGrant, ...]:
    """Return the stored claims; after a reboot into another machine their CPUs are to be picked anew (T7)."""
    claims = store.load()
    rebooted = store.meta("boot_id") not in (None, boot_id)
    if rebooted and store.meta("fingerprint") != fingerprint and claims:
        claims = tuple(replace(claim, moved=True) for claim in claims)
        store.commit([Job(puts=claims)])
        kv(_LOG, logging.WARNING, "the machine changed over a reboot: claims get other CPUs", count=len(claims))
    store.set_meta("boot_id", boot_id)
    store.set_meta("fingerprint", fingerprint)
    return claims


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
