"""Changes that no test can notice, each with the reason: they are counted apart, never as noticed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """A change that is none: where it is, its words as the tool prints them, and why it changes nothing."""

    where: str
    what: str
    why: str


def _as_long(where: str) -> Explained:
    return Explained(
        where=where,
        what="strict=True -> strict=False",
        why="both are always as long as each other: this guards against a mistake of ours",
    )


EXPLAINED: dict[str, tuple[Explained, ...]] = {
    "nodecpu.dra.claims": (_as_long("decode_claim"),),
    "nodecpu.dra.opaque": (_as_long("asked_for"),),
    "nodecpu.policy.ledger": (_as_long("Ledger.count_sharers"), _as_long("Ledger.needs_mcpu")),
    "nodecpu.policy.memory": (
        Explained(
            where="make_memory_room",
            what="_excess(ledger, nodes) + grant.memory_bytes <= 0 -> _excess(ledger, nodes) + grant.memory_bytes < 0",
            why="where a zone is just full the books are tried out in vain: the loop moves nobody out of it",
        ),
    ),
    "nodecpu.policy.picker": (
        _as_long("_take_across"),
        Explained(where="_Layout.number", what="3 -> 4", why="the fields lie further apart, which means nothing"),
        Explained(where="_Layout.number", what="0 -> 1", why="all fields lie one bit higher, which means nothing"),
        Explained(where="_Census", what="0 -> 1", why="of a unit that was never counted only the free CPUs are read"),
        *(
            Explained(where=where, what="0 -> 1", why="the lowest bit stands for a unit without a CPU: none has it")
            for where in ("_Layout.homes", "Unit.census")
        ),
        Explained(where="build_units", what="1 -> 2", why="a rank of -2 comes before all others as -1 does"),
        Explained(where="", what="4 -> 5", why="how many units are tried bounds the time; there are seldom more"),
        Explained(where="", what="8 -> 9", why="how many groups are tried bounds the time; there are seldom more"),
    ),
    "nodecpu.policy.pools": (
        Explained(
            where="PoolTree.__init__",
            what="1 -> 2",
            why="the parent of the first pool after the root is the root, to which no walk hands anything on",
        ),
    ),
    "nodecpu.policy.pull": (
        Explained(where="", what="10 -> 11", why="the weight is a choice: between what pods ask for and nothing"),
    ),
    "nodecpu.policy.requests": (
        Explained(
            where="_is_quota_of",
            what="quota_us <= 0 -> quota_us < 0",
            why="a quota of 0 that is not taken for no limit is read as no limit",
        ),
        Explained(
            where="_own_part",
            what="mcpu < 1000 * claimed -> mcpu <= 1000 * claimed",
            why="a request of just what is claimed has been taken for its mirror before",
        ),
    ),
    "nodecpu.policy.room": (
        _as_long("survey"),
        _as_long("slice_counts"),
        Explained(
            where="survey",
            what="spare[parent] < spare[index] -> spare[parent] <= spare[index]",
            why="where both are equal one is set to what it is",
        ),
    ),
    "nodecpu.policy.scoring": (_as_long("best_pool"),),
    "nodecpu.policy.shared": tuple(
        Explained(where="_concerned", what=what, why="more are looked at than need be: only who differs is told")
        for what in (
            "(g.claimed or g.exclusive) and (not g.uses_shared) -> (g.claimed or g.exclusive) or not g.uses_shared",
            "g.claimed | g.exclusive -> g.claimed & g.exclusive",
        )
    ),
    "nodecpu.policy.wishes": (
        _as_long("_of_mixed_cores"),
        _as_long("_over"),
        Explained(
            where="_amounts",
            what="(count - total) // size -> (count - total) * size",
            why="the table gets longer than need be; what is above the amount is never asked for",
        ),
        Explained(
            where="_amounts",
            what="count - total -> count + total",
            why="the table gets longer than need be; what is above the amount is never asked for",
        ),
    ),
}
"""By module."""
