"""Which memory a container gets: zones, what fits in them, and who moves for whom (pure; M1, P2).

A zone is the memory nodes of a pool, of the kinds that are wanted. What containers count for is their memory limit, or
request where there is none. A container gets the zone of its pool; where that does not fit, of the nearest pool above
in which it does, at last all there is. A Guaranteed container does not go elsewhere because of Burstable ones: these
are widened to the zone above, the largest first, until it fits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nodecpu.cpuset import NodeSet
from nodecpu.ids import ContainerID
from nodecpu.policy.facts import QoS
from nodecpu.policy.grants import ContainerGrant
from nodecpu.policy.ledger import Ledger, gives_way
from nodecpu.policy.plan import Change
from nodecpu.policy.pools import Pool
from nodecpu.policy.requests import Request
from nodecpu.topology.model import MemoryKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The memory nodes for a container, and a word on why these, where they are not its pool's."""

    mems: NodeSet
    note: str = ""


def memory_room(ledger: Ledger, request: Request) -> Sequence[int]:
    """Return by pool how many bytes more fit into its zone and those above it, for such a request.

    For a Guaranteed one what gives way counts as room.
    """
    kinds = request.preferences.memory_types or ()
    stays = request.qos is QoS.GUARANTEED
    found: dict[int, int] = {}
    rooms: list[int] = []
    for pool in ledger.tree.pools:  # parents before children
        nodes = pool.zone(kinds)
        if nodes.mask not in found:
            found[nodes.mask] = -_excess(ledger, nodes, stays=stays)
        room = found[nodes.mask]
        rooms.append(min(room, rooms[pool.ancestors[1]]) if pool.depth else room)
    return rooms


def memory_for(ledger: Ledger, home: Pool, request: Request) -> Given:
    """Return the memory for a container whose pool is ``home``: its zone, or a wider one in which it fits."""
    kinds = request.preferences.memory_types or ()
    missing = [kind.value for kind in kinds if not home.memory.get(kind)]
    note = f"no {' or '.join(missing)} memory near {home.name}" if missing else ""
    pool = home
    if request.memory_bytes:
        stays = request.qos is QoS.GUARANTEED
        pool = ledger.tree.root
        for inner in reversed([*ledger.tree.upwards(home)]):  # down from the root, as far as it fits
            if _excess(ledger, inner.zone(kinds), stays=stays) + request.memory_bytes > 0:
                break
            pool = inner
    mems = pool.zone(kinds)
    if mems != home.zone(kinds):
        note = f"memory of {pool.name}, that of {home.name} is full"
    return Given(mems=mems, note=note)


def _excess(ledger: Ledger, nodes: NodeSet, *, stays: bool = False) -> int:
    """Return by how many bytes a zone is over-committed, below 0 what is left; ``stays``: without what gives way."""
    return ledger.memory_within(nodes, stays=stays) - ledger.tree.size_of(nodes)


def make_memory_room(ledger: Ledger, grant: ContainerGrant) -> tuple[ContainerGrant, ...]:
    """Return the containers that are widened to zones above, so that a Guaranteed one has its memory (M1).

    ``grant`` is not in the books yet. Burstable containers without claims give way, the largest first.
    """
    if grant.qos is not QoS.GUARANTEED or not grant.memory_bytes or not grant.mems:
        return ()
    zones = (pool.zone(grant.memory_kinds) for pool in ledger.tree.pools)
    # Nothing is wider than all there is, and limits often come to more than that: nobody needs to be looked at then.
    everything = ledger.tree.root.zone(tuple(MemoryKind))
    within = {nodes for nodes in zones if grant.mems <= nodes and not everything <= nodes}
    around = sorted(within, key=lambda nodes: (len(nodes), nodes.mask))
    if all(_excess(ledger, nodes) + grant.memory_bytes <= 0 for nodes in around):
        return ()
    trial = ledger.copy()
    trial.apply(Change(put_containers=(grant,)))
    moved: dict[ContainerID, ContainerGrant] = {}
    for nodes in around:
        for other in _giving_way(trial, nodes):
            if _excess(trial, nodes) <= 0:
                break
            wider = _widened(trial, other, nodes)
            if wider is not None:
                trial.apply(Change(put_containers=(wider,)))
                moved[wider.id] = wider
    return tuple(moved.values())


def _giving_way(ledger: Ledger, nodes: NodeSet) -> list[ContainerGrant]:
    """Return who gives way within these nodes, the largest first."""
    found = [one for one in ledger.containers.values() if gives_way(one) and one.mems <= nodes]
    return sorted(found, key=lambda one: (-one.memory_bytes, one.id))


def _widened(ledger: Ledger, grant: ContainerGrant, nodes: NodeSet) -> ContainerGrant | None:
    """Return a container with the memory of the nearest pool above that reaches beyond these nodes, if there is one."""
    for pool in ledger.tree.upwards(ledger.pool_of(grant)):
        wider = pool.zone(grant.memory_kinds)
        if grant.mems <= wider and not wider <= nodes:
            reason = f"{grant.reason.partition('; memory of')[0]}; memory of {pool.name}, for a Guaranteed container"
            return replace(grant, mems=wider, reason=reason)
    return None
