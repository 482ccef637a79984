"""The books against a plain model: whatever changes, sums are what a recount from the grants gives (C4, P3)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from nodecpu.cpuset import NO_CPUS, CpuSet, NodeSet, union
from nodecpu.ids import ClaimUID, ContainerID, PodUID, SandboxID
from nodecpu.policy.facts import QoS
from nodecpu.policy.grants import ClaimGrant, ContainerGrant, Group, Link, ResultGrant
from nodecpu.policy.ledger import Ledger, violations
from nodecpu.policy.plan import Change
from tests.unit.policy.machines import books

NODE = books()
EVERYTHING = NODE.usable.all
POOLS = tuple(pool.name for pool in NODE.ledger.tree.pools)
UIDS = tuple(ClaimUID(f"claim-{i}") for i in range(3))
NAMES = {ContainerID(one): name for one, name in zip("abcde", ("app", "app", "log", "app", "app"), strict=True)}

cpu_sets = st.sets(st.integers(0, 15), max_size=5).map(CpuSet)


@st.composite
def claims(draw: st.DrawFn, uid: ClaimUID) -> ClaimGrant:
    cpus, part = draw(cpu_sets), draw(cpu_sets)
    parts = [one for one in (cpus & part, cpus - part) if one]
    results = tuple(ResultGrant(request=f"r{i}", pool="", device="", cpus=one) for i, one in enumerate(parts))
    return ClaimGrant(uid=uid, namespace="shop", name=uid, results=results, moved=draw(st.booleans()))


@st.composite
def containers(draw: st.DrawFn, container_id: ContainerID) -> ContainerGrant:
    pod = "other" if container_id == "d" else "web"
    namespace = "bank" if container_id == "e" else "shop"
    return ContainerGrant(
        id=container_id,
        sandbox_id=SandboxID(pod),
        pod_uid=PodUID(pod),
        namespace=namespace,
        pod=pod,
        name=NAMES[container_id],
        group=Group.SHARED,
        pool=draw(st.sampled_from(POOLS)),
        qos=draw(st.sampled_from(QoS)),
        exclusive=draw(cpu_sets),
        portion_mcpu=draw(st.sampled_from((0, 1, 300))),
        uses_shared=draw(st.booleans()),
        links=tuple(Link(claim_uid=uid, cpus=NO_CPUS) for uid in sorted(draw(st.sets(st.sampled_from(UIDS))))),
        mems=NodeSet(draw(st.sets(st.integers(0, 1)))),
        memory_bytes=draw(st.sampled_from((0, 1, 1 << 30))),
    )


@dataclass
class Model:
    """Grants alone; everything is counted anew on each question."""

    claims: dict[ClaimUID, ClaimGrant] = field(default_factory=dict)
    containers: dict[ContainerID, ContainerGrant] = field(default_factory=dict)
    last: dict[tuple[PodUID, str, str, str], ContainerID] = field(default_factory=dict)

    def granted(self) -> CpuSet:
        owned = union(claim.cpus for claim in self.claims.values() if not claim.moved)
        return owned | union(one.exclusive for one in self.containers.values())

    def apply(self, change: Change) -> Change:
        """Do a change; return it with every CPU given to the first who wants it."""
        for uid in (*change.drop_claims, *(claim.uid for claim in change.put_claims)):
            self.claims.pop(uid, None)
        for container_id in (*change.drop_containers, *(one.id for one in change.put_containers)):
            self.containers.pop(container_id, None)
        for claim in change.put_claims:
            taken = self.granted()
            results = tuple(replace(one, cpus=one.cpus - taken) for one in claim.results)
            self.claims[claim.uid] = replace(claim, results=results)
        for one in change.put_containers:
            self.containers[one.id] = replace(one, exclusive=one.exclusive - self.granted())
            self.last[one.pod_uid, one.namespace, one.pod, one.name] = one.id
        return replace(
            change,
            put_claims=tuple(self.claims[claim.uid] for claim in change.put_claims),
            put_containers=tuple(self.containers[one.id] for one in change.put_containers),
        )


@st.composite
def changes(draw: st.DrawFn) -> Change:
    uids, ids = st.sets(st.sampled_from(UIDS)), st.sets(st.sampled_from(sorted(NAMES)))
    return Change(
        put_claims=tuple(draw(claims(uid)) for uid in sorted(draw(uids))),
        drop_claims=tuple(sorted(draw(uids))),
        put_containers=tuple(draw(containers(one)) for one in sorted(draw(ids))),
        drop_containers=tuple(sorted(draw(ids))),
    )


def agree(ledger: Ledger, model: Model, held: CpuSet) -> None:
    """Compare everything that the books tell of the grants."""
    assert (ledger.claims, ledger.containers) == (model.claims, model.containers)
    free = EVERYTHING - model.granted()
    assert (ledger.free(EVERYTHING), ledger.grantable(EVERYTHING)) == (free, free - held)
    for cpu in EVERYTHING:
        owner = ledger.owner(cpu)
        cpus = NO_CPUS if owner is None else owner.exclusive if isinstance(owner, ContainerGrant) else owner.cpus
        assert (cpu in cpus) is (cpu not in free)
    for uid in UIDS:
        linked = {one.id for one in model.containers.values() if uid in {link.claim_uid for link in one.links}}
        assert {one.id for one in ledger.holders(uid)} == linked
    for pod in ("web", "other"):
        ids = {one.id for one in model.containers.values() if one.pod_uid == pod}
        assert {one.id for one in ledger.of_pod(PodUID(pod))} == ids
    for key, container_id in model.last.items():
        assert ledger.named(*key) == model.containers.get(container_id)
    _agree_on_pools(ledger, model)
    memory: dict[tuple[int, bool], int] = {}
    for one in model.containers.values():
        if one.mems and one.memory_bytes:
            where = one.mems.mask, one.qos is QoS.BURSTABLE and not one.links
            memory[where] = memory.get(where, 0) + one.memory_bytes
    assert ledger.memory == memory
    for nodes in {pool.mems for pool in ledger.tree.pools}:
        inside = [(moves, size) for (mask, moves), size in memory.items() if not mask & ~nodes.mask]
        assert ledger.memory_within(nodes) == sum(size for _, size in inside)
        assert ledger.memory_within(nodes, stays=True) == sum(size for moves, size in inside if not moves)
    assert [wrong for wrong in violations(ledger) if "is linked to claim" not in wrong] == []


def _agree_on_pools(ledger: Ledger, model: Model) -> None:
    sharing = [one for one in model.containers.values() if one.uses_shared]
    for pool in ledger.tree.pools:
        mine = [one for one in sharing if one.pool == pool.name]
        within = [one for one in sharing if pool.index in ledger.pool_of(one).ancestors]
        bare = sum(one.portion_mcpu == 0 for one in within)
        portions = sum(one.portion_mcpu for one in within)
        assert dict(ledger.sharers(pool)) == {one.id: one for one in mine}
        assert (ledger.bare(pool), ledger.portions_mcpu(pool)) == (bare, portions)
        assert ledger.need_mcpu(pool) == ledger.needs_mcpu()[pool.index] == portions + min(bare, 1)
        assert ledger.grantable_counts()[pool.index] == len(ledger.grantable(pool.sharable))
        own_bare = sum(one.portion_mcpu == 0 for one in mine)
        assert ledger.count_sharers(bare=True)[pool.index] == own_bare
        assert ledger.count_sharers(bare=False)[pool.index] == len(mine) - own_bare


@settings(max_examples=40)
@given(steps=st.lists(changes(), max_size=6), held=cpu_sets, anew=st.sampled_from(sorted(NAMES)))
def test_books_agree_with_a_recount_from_the_grants(steps: list[Change], held: CpuSet, anew: ContainerID) -> None:
    """C4, C5, C12, G11, P3, M1: after every change, and so do copies to try things on."""
    ledger, model = Ledger(NODE.ledger.tree), Model()
    agree(ledger, model, NO_CPUS)
    ledger.hold(UIDS[0], held)
    for step in steps:
        before = model.granted()
        change = model.apply(step)
        assert ledger.apply(change) == (before | model.granted()) - (before & model.granted())
        agree(ledger, model, held)
    agree(ledger.copy(), replace(model, last={}), held)
    if (one := model.containers.get(anew)) is not None:
        rest = {key: other for key, other in model.containers.items() if key != anew}
        agree(ledger.without(one), replace(model, containers=rest, last={}), held | one.exclusive)
    ledger.unhold(UIDS[0])
    agree(ledger, model, NO_CPUS)
