"""The policy room as a state machine: claims and containers come and go on small machines.

What is expected is computed here, beside the ledger's books and sums, from the machine's own record of what was granted
and not given back yet.
"""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from nodecpu.cpuset import CpuSet, union
from nodecpu.errors import BadRequest, NoCapacity
from nodecpu.ids import ClaimUID, ContainerID, PodUID
from nodecpu.policy.allocate import resized_grant
from nodecpu.policy.annotations import preferences_of
from nodecpu.policy.claims import claim_grant
from nodecpu.policy.facts import AllocatedClaim, QoS
from nodecpu.policy.grants import ClaimGrant, ContainerGrant, Group
from nodecpu.policy.ledger import Ledger, violations
from nodecpu.policy.plan import Change, Placement
from nodecpu.policy.pools import Pool
from nodecpu.policy.requests import Told, request_of
from nodecpu.policy.room import capacity_mcpu, make_room, slice_counts, sliceable, spare_mcpu, survey
from nodecpu.policy.rules import Mirrored, Rules
from nodecpu.policy.shared import placement, shared_cpus, shared_updates
from tests.unit.policy.given import annotated, claim, container, create, sandbox
from tests.unit.policy.machines import N4C16, Books, Shape, books

SHAPES = (
    N4C16,
    replace(N4C16, isolated="4-5,12"),
    Shape(sockets=2, nodes=1, cores=2),
    Shape(cores=4, l3_cores=2),
    Shape(nodes=2, cores=3, single_cores=(1, 3)),
    Shape(sockets=2, nodes=2, cores=2, threads=1),
)
RULES = st.builds(
    Rules,
    mirrored=st.sampled_from(Mirrored),
    mapping_published=st.booleans(),
    fallback_reserved=st.booleans(),
    min_shared=st.sampled_from((-1, 0, 2)),
    prefer_isolated=st.booleans(),
    pin_memory=st.booleans(),
)
AMOUNTS = st.sampled_from((None, 5, 100, 700, 1000, 1500, 2000, 2500, 3000))
ANNOTATIONS = st.sampled_from(
    (
        {},
        {},
        {"prefer-shared-cpus": "true"},
        {"prefer-shared-cpus": "false"},
        {"require-isolated-cpus": "true"},
        {"hide-hyperthreads": "true"},
        {"claimed-cpus-only": "false"},
    )
)
CROWDS = st.lists(st.sampled_from((None, 300, 900, 1700, 2800, 4500, 7000)), min_size=2, max_size=5)


class Node(RuleBasedStateMachine):
    """A node's books, driven as the service drives them; ``claims`` and ``containers`` are the record beside them."""

    prepared = Bundle("prepared")
    created = Bundle("created")

    def __init__(self) -> None:
        super().__init__()
        self.node: Books = books()
        self.cpus_of: dict[str, CpuSet] = {}
        self.numbers = 0
        self.placements: dict[ContainerID, Placement | None] = {}
        self.claims: dict[ClaimUID, ClaimGrant] = {}
        self.containers: dict[ContainerID, ContainerGrant] = {}

    @initialize(shape=st.sampled_from(SHAPES), reserved=st.sampled_from(("", "1", "0-1")), rules=RULES)
    def boot(self, shape: Shape, reserved: str, rules: Rules) -> None:
        self.node = books(shape, reserved=reserved, rules=rules)
        self.cpus_of = {pool.name: pool.cpus for pool in self.ledger.tree.pools}

    @property
    def ledger(self) -> Ledger:
        return self.node.ledger

    # What is true by the grants alone

    def note(self, change: Change) -> None:
        """Take a change into the record."""
        for uid in change.drop_claims:
            del self.claims[uid]
        for container_id in change.drop_containers:
            del self.containers[container_id]
        self.claims |= {grant.uid: grant for grant in change.put_claims}
        self.containers |= {grant.id: grant for grant in change.put_containers}

    def granted(self) -> CpuSet:
        claimed = union(grant.cpus for grant in self.claims.values())
        return claimed | union(grant.exclusive for grant in self.containers.values())

    def sharing(self, pool: Pool) -> list[ContainerGrant]:
        shared = [grant for grant in self.containers.values() if grant.uses_shared]
        return [grant for grant in shared if self.cpus_of[grant.pool] <= pool.cpus]

    def need_mcpu(self, pool: Pool) -> int:
        below = self.sharing(pool)
        return sum(grant.portion_mcpu for grant in below) + any(not grant.portion_mcpu for grant in below)

    # What happens

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def enact(self, change: Change) -> None:
        """Apply a change and check that exactly those are told whom it concerns (G8, G9)."""
        flipped = self.ledger.apply(change)
        self.note(change)
        told = {one.container_id: one.placement for one in shared_updates(self.ledger, change, flipped)}
        now = {grant.id: placement(self.ledger, grant) for grant in self.ledger.containers.values()}
        for container_id, where in now.items():
            if container_id in told:
                assert told[container_id] == where
            else:
                assert self.placements[container_id] == where
        put = {grant.id for grant in change.put_containers}
        assert all(self.ledger.containers[one].uses_shared for one in told if one not in put)
        self.placements = now

    @rule(target=prepared, data=st.data())
    def prepare(self, data: st.DataObject) -> object:
        """C2, C3, C5, C14."""
        devices = sorted(self.node.machine.devices)
        amounts = st.tuples(st.integers(0, len(devices) - 1), st.integers(1, 4))
        wanted = claim(self.number(), *data.draw(st.lists(amounts, min_size=1, max_size=3)))
        before = self.node.usable.grantable - self.granted()
        try:
            grant = self.decided(wanted)
        except (NoCapacity, BadRequest):
            assert self.is_refusal_due(wanted, before)
            return multiple()
        taken = CpuSet()
        for result, asked in zip(grant.results, wanted.results, strict=True):
            assert len(result.cpus) == asked.cpus
            assert result.cpus <= before & self.node.machine.devices[asked.device]
            assert result.cpus.isdisjoint(taken)
            taken |= result.cpus
        self.enact(Change(put_claims=(grant,), put_containers=make_room(self.ledger, grant.cpus)))
        return grant

    def decided(self, wanted: AllocatedClaim) -> ClaimGrant:
        """Decide a claim twice, the second time by books filled in another order: equal inputs give equal answers."""
        copy = Ledger(self.ledger.tree)
        copy.apply(
            Change(
                put_claims=tuple(reversed(list(self.ledger.claims.values()))),
                put_containers=tuple(reversed(list(self.ledger.containers.values()))),
            )
        )
        grant = claim_grant(self.ledger, self.node.machine, self.node.rules, wanted)
        assert claim_grant(copy, self.node.machine, self.node.rules, wanted) == grant
        lifted = {one.id: one for one in make_room(self.ledger, grant.cpus)}
        assert {one.id: one for one in make_room(copy, grant.cpus)} == lifted
        return grant

    def is_refusal_due(self, wanted: AllocatedClaim, free: CpuSet) -> bool:
        """Return whether a device has too few free CPUs, or too few would be left for shared containers."""
        asked: dict[str, int] = {}
        for result in wanted.results:
            asked[result.device] = asked.get(result.device, 0) + result.cpus
        if any(count > len(free & self.node.machine.devices[device]) for device, count in asked.items()):
            return True
        sharable = free & self.node.usable.sharable
        least = self.node.rules.least_shared(self.node.usable.reserved)
        return len(sharable) - sum(asked.values()) < least

    @rule(grant=consumes(prepared))
    def unprepare(self, grant: ClaimGrant) -> None:
        """C12: its CPUs return with its last container."""
        if self.ledger.holders(grant.uid):
            self.enact(Change(put_claims=(replace(grant, released=True),)))
        else:
            self.enact(Change(drop_claims=(grant.uid,)))

    @rule(
        target=created,
        mcpu=AMOUNTS,
        burstable=st.booleans(),
        namespace=st.sampled_from(("shop", "shop", "shop", "kube-system")),
        annotations=ANNOTATIONS,
        data=st.data(),
    )
    def create(
        self,
        mcpu: int | None,
        data: st.DataObject,
        namespace: str,
        annotations: dict[str, str],
        *,
        burstable: bool,
    ) -> object:
        """G1 to G5, G16."""
        live = [grant for grant in self.ledger.claims.values() if not grant.released and namespace == "shop"]
        claims = data.draw(st.lists(st.sampled_from(live), max_size=2, unique=True)) if live else []
        qos = QoS.BEST_EFFORT if mcpu is None else QoS.BURSTABLE if burstable else QoS.GUARANTEED
        before = self.node.usable.grantable - self.granted()
        pod = f"pod-{self.number()}"
        try:
            grant = create(
                self.node, pod, mcpu=mcpu, qos=qos, claims=claims, namespace=namespace, annotations=annotations
            )
        except NoCapacity:
            assert self.ledger.named(PodUID(f"pod-{pod}"), namespace, pod, "app") is None
            assert qos is QoS.GUARANTEED, "only exclusive CPUs can be refused"
            return multiple()
        self.note(Change(put_containers=(grant,)))
        assert grant.exclusive <= before
        assert grant.claimed == union(one.cpus for one in claims)
        assert grant.claimed.isdisjoint(grant.exclusive)
        if not grant.exclusive.isdisjoint(self.node.usable.sharable):  # sliced off: the root too still covers the rest
            top = self.ledger.tree.root
            assert self.need_mcpu(top) - grant.portion_mcpu <= 1000 * len(top.sharable - self.granted())
        # Created through the books' own path, so the update fan-out is checked on the same change again.
        self.ledger.apply(Change(drop_containers=(grant.id,)))
        self.enact(Change(put_containers=(grant,)))
        return grant

    @rule(target=created, amounts=CROWDS)
    def crowd(self, amounts: list[int | None]) -> object:
        """P3, G16: shared containers are never refused while any CPU is left."""
        grants = []
        for mcpu in amounts:
            qos = QoS.BEST_EFFORT if mcpu is None else QoS.BURSTABLE
            grants.append(create(self.node, f"pod-{self.number()}", mcpu=mcpu, qos=qos))
            self.note(Change(put_containers=(grants[-1],)))
            self.every_pool_but_the_root_covers_its_containers()
        self.placements = {one.id: placement(self.ledger, one) for one in self.ledger.containers.values()}
        return multiple(*grants)

    @rule(grant=created, more=st.sampled_from((1000, 2000, -1000, 500, 3000, -2000, -700)), annotations=ANNOTATIONS)
    def resize_one(self, grant: ContainerGrant, more: int, annotations: dict[str, str]) -> None:
        """G12."""
        self.resize(grant, more, annotations)

    def resize(self, grant: ContainerGrant, more: int, annotations: dict[str, str]) -> None:
        """G12: claimed CPUs stay, own ones grow around what there is or shrink within it, or nothing changes."""
        now = self.ledger.containers.get(grant.id)
        if now is None or now.qos is QoS.BEST_EFFORT:
            return
        mcpu = max(now.told_mcpu + more, 100)
        told = Told(mcpu=mcpu, limit_mcpu=None, qos=now.qos, may_own=now.qos is QoS.GUARANTEED)
        asked = request_of(
            self.node.rules,
            sandbox(now.pod, namespace=now.namespace),
            container(now.name, pod=now.pod),
            None,
            now.claimed,
            reserved=bool(self.node.usable.reserved),
            preferences=preferences_of(self.node.rules, now.namespace, "app", annotated(annotations)).preferences,
            told=told,
        )
        free = self.node.usable.grantable - self.granted()
        try:
            new = resized_grant(self.ledger, self.node.machine, self.node.rules, now, asked)
        except NoCapacity:
            assert asked.exclusive > len(now.exclusive)
            return
        assert (new.claimed, new.links, new.group) == (now.claimed, now.links, asked.group)
        assert len(new.exclusive) == asked.exclusive
        assert new.exclusive <= now.exclusive or now.exclusive <= new.exclusive
        assert new.exclusive - now.exclusive <= free
        isolated = new.exclusive & self.node.usable.isolated
        assert isolated in (CpuSet(), new.exclusive) or isolated == now.exclusive & self.node.usable.isolated
        self.enact(Change(put_containers=(new,)))

    @rule(
        target=created,
        mcpu=st.sampled_from((2000, 1000, 1500, 3000)),
        steps=st.lists(st.sampled_from((1000, 2000, -1000, 500)), min_size=1, max_size=4),
    )
    def own(self, mcpu: int, steps: list[int]) -> object:
        """G12: one that has CPUs of its own from the start."""
        try:
            grant = create(self.node, f"pod-{self.number()}", mcpu=mcpu)
        except NoCapacity:
            return multiple()
        self.note(Change(put_containers=(grant,)))
        self.placements = {one.id: placement(self.ledger, one) for one in self.ledger.containers.values()}
        for more in steps:
            self.resize(grant, more, {})
        return grant

    @rule(grant=consumes(created))
    def stop(self, grant: ContainerGrant) -> None:
        """G11, C12."""
        self.enact(Change(drop_containers=(grant.id,)))
        for uid in {link.claim_uid for link in grant.links}:
            self.drop_if_over(uid)

    def drop_if_over(self, uid: ClaimUID) -> None:
        claimed = self.ledger.claims.get(uid)
        if claimed is not None and claimed.released and not self.ledger.holders(uid):
            self.enact(Change(drop_claims=(uid,)))

    # What always holds

    @invariant()
    def books_are_sound(self) -> None:
        """C4."""
        assert violations(self.ledger) == []

    @invariant()
    def every_cpu_has_one_owner_and_the_rest_is_free(self) -> None:
        """C4, T5: counted from the grants alone."""
        owners = [grant.cpus for grant in self.claims.values()]
        owners += [grant.exclusive for grant in self.containers.values()]
        assert sum(len(cpus) for cpus in owners) == len(self.granted())
        assert self.granted() <= self.node.usable.grantable
        assert self.ledger.free(self.node.usable.all) == self.node.usable.all - self.granted()

    @invariant()
    def nothing_is_lost_and_nothing_is_left_behind(self) -> None:
        """C12, G11, P3: each pool's supply is its capacity minus what was granted and not given back."""
        assert self.ledger.claims == self.claims
        assert self.ledger.containers.keys() == self.containers.keys()
        granted = self.granted()
        for pool in self.ledger.tree.pools:
            for cpus in (pool.cpus, pool.sharable, pool.isolated):
                assert self.ledger.free(cpus) == self.ledger.grantable(cpus) == cpus - granted, pool.name
            supply = 1000 * len(pool.sharable - granted) - self.need_mcpu(pool)
            assert capacity_mcpu(self.ledger, pool) == supply, pool.name
            assert self.ledger.portions_mcpu(pool) == sum(one.portion_mcpu for one in self.sharing(pool)), pool.name

    @invariant()
    def every_pool_but_the_root_covers_its_containers(self) -> None:
        """P3, C14."""
        for pool in self.ledger.tree.pools[1:]:
            free = len(pool.sharable - self.granted())
            assert self.need_mcpu(pool) <= 1000 * free, pool.name

    @invariant()
    def survey_agrees_with_each_pools_own_figures(self) -> None:
        """P3."""
        room, slices = survey(self.ledger), slice_counts(self.ledger)
        for pool in self.ledger.tree.pools:
            assert room.capacity_mcpu[pool.index] == capacity_mcpu(self.ledger, pool)
            assert room.spare_mcpu[pool.index] == spare_mcpu(self.ledger, pool)
            assert slices[pool.index] == len(sliceable(self.ledger, self.node.machine.units, pool))

    @invariant()
    def shared_containers_always_have_cpus_that_are_nobody_elses(self) -> None:
        """C14, G9, G10."""
        for pool in self.ledger.tree.pools:
            shared = shared_cpus(self.ledger, pool)
            assert shared
            assert shared.isdisjoint(self.granted() | self.node.usable.isolated)

    @invariant()
    def every_container_runs_where_it_may_and_nowhere_else(self) -> None:
        """G2 to G5, G9."""
        for grant in self.ledger.containers.values():
            where = placement(self.ledger, grant)
            assert where is not None
            assert where.cpus
            own = grant.claimed | grant.exclusive
            assert where.cpus <= self.node.usable.all
            hidden = where.cpus & own if grant.hides_threads else own
            assert grant.claimed | hidden <= where.cpus
            own = grant.claimed | hidden
            assert bool(hidden) == bool(grant.claimed | grant.exclusive)
            assert (where.cpus - own).isdisjoint(self.granted())
            if not grant.uses_shared and grant.group is not Group.RESERVED:
                assert where.cpus == own
            assert bool(where.mems) == self.node.rules.pin_memory


Node.TestCase.settings = settings(max_examples=100, stateful_step_count=25, deadline=None)
TestNode = Node.TestCase
