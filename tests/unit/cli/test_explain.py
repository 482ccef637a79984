"""``nodecpu explain``: found by every name, told in words, with what was refused and what would have to change."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from nodecpu.admin.state import CounterState, NodeState, RefusalState, ResultState, TrialRow
from nodecpu.cli.explain import MAX_FILE_BYTES, read_objects
from nodecpu.cli.render.explain import explained, explanation_lines, trial_lines
from nodecpu.cli.render.tables import status_lines
from nodecpu.errors import HostError, NodeCpuError
from tests.unit.nodestates import n4c16


def refusal(kind: str, name: str, uid: str, message: str = "6 CPUs asked, 2 free", count: int = 1) -> RefusalState:
    return RefusalState(
        kind=kind,
        name=name,
        uid=uid,
        code="no-capacity",
        message=message,
        hint="free some",
        count=count,
        last="2026-11-30T14:00:00Z",
    )


def state(*refusals: RefusalState) -> NodeState:
    return msgspec.structs.replace(n4c16(), refusals=refusals)


@pytest.mark.parametrize("name", ["web", "shop/web", "uid-shop-web"])
def test_claim_is_found_by_each_of_its_names(name: str) -> None:
    (one,) = explained(state(), name)
    assert (one.kind, one.name, one.cpus) == ("claim", "shop/web", "4-5")
    assert one.why == (
        "request cpus: 2 CPUs of device cpudevnuma001, as the scheduler chose;"
        " 4-5 were free there: NUMA node 1, 1 whole core",
        "held by shop/web-0/app",
    )


@pytest.mark.parametrize("name", ["db-0", "db-0/app", "shop/db-0", "shop/db-0/app", "db-0-id"])
def test_container_is_found_by_each_of_its_names(name: str) -> None:
    (one,) = explained(state(), name)
    assert (one.kind, one.name, one.cpus) == ("container", "shop/db-0/app", "8-9")
    assert "CPUs 8-9 are its own" in one.why


def test_released_claim_tells_what_its_cpus_wait_for() -> None:
    (one,) = explained(state(), "batch")
    assert one.change == ("it is released: its CPUs return when its last container has ended",)


def test_holder_that_shares_is_told_how_to_be_alone() -> None:
    holder = msgspec.structs.replace(n4c16().containers[0], group="shared", claim_uids=("uid-shop-web",))
    (one,) = explained(msgspec.structs.replace(n4c16(), containers=(holder,)), holder.pod)
    assert one.change == ("for its claims' CPUs alone: no CPU request beside them, or one that repeats the claims",)
    (alone,) = explained(n4c16(), holder.pod)
    assert alone.change == ()


def test_shared_container_tells_its_pool_and_how_to_get_more() -> None:
    (one,) = explained(state(), "log-0")
    assert one.why[-1] == "pool root shares CPUs 0-14 among containers that ask for 1500m in all"
    assert one.change == ("for CPUs of its own: a claim, or a Guaranteed pod that asks for whole CPUs",)


def test_drift_is_told() -> None:
    whole = n4c16()
    moved = tuple(
        msgspec.structs.replace(one, confirmed="0-15") if one.pod == "db-0" else one for one in whole.containers
    )
    (one,) = explained(msgspec.structs.replace(whole, containers=moved), "db-0")
    assert one.change == ("the kernel has it on CPUs 0-15 at the moment: this is being put right",)


def test_wishes_that_were_not_met_are_told() -> None:
    whole = n4c16()
    missed = (ResultState(request="cpus", device="cpudevnuma001", cpus="4-5", missed=("one L3 cache",)),)
    claims = tuple(msgspec.structs.replace(one, results=missed) for one in whole.claims)
    (one,) = explained(msgspec.structs.replace(whole, claims=claims), "shop/web")
    assert one.why[0].endswith("; without one L3 cache, which could not be had")


def test_refused_claim_that_is_not_in_the_books_tells_why_and_what_to_do() -> None:
    """U133: the cause and the remedy, on the node itself."""
    found = explained(state(refusal("claim", "shop/late", "u9", count=3)), "late")
    assert list(explanation_lines(found)) == [
        "claim shop/late",
        "  now       not in the books",
        "  refused   3 times, the last at 2026-11-30T14:00:00Z (no-capacity)",
        "            6 CPUs asked, 2 free",
        "  to do     free some",
        "  uid       u9",
    ]


def test_refusals_stand_with_what_is_in_the_books() -> None:
    first = refusal("claim", "shop/web", "uid-shop-web")
    other = refusal("claim", "shop/web", "an-earlier-uid")
    resize = refusal("resize", "shop/db-0/app", "pod-uid")
    web, earlier = explained(state(first, other, resize), "shop/web")
    assert (web.refusals, earlier.refusals) == ((first,), (other,))
    (db,) = explained(state(first, other, resize), "db-0")
    assert db.refusals == (resize,)
    assert "  resize refused  once, at 2026-11-30T14:00:00Z (no-capacity)" in explanation_lines([db])


def test_containers_of_a_pod_are_found_together() -> None:
    found = explained(state(refusal("container", "shop/x-0/a", "p"), refusal("container", "shop/x-0/b", "p")), "x-0")
    assert [one.name for one in found] == ["container shop/x-0/a", "container shop/x-0/b"]


def test_unknown_name_is_an_error_that_names_near_ones() -> None:
    with pytest.raises(NodeCpuError, match="nothing of the name shop/wep") as caught:
        explained(state(), "shop/wep")
    assert caught.value.hint.startswith("did you mean shop/web")
    with pytest.raises(NodeCpuError) as caught:
        explained(state(), "qqqq")
    assert caught.value.hint == "see nodecpu claims and nodecpu containers"


def test_names_from_outside_cannot_move_the_cursor() -> None:
    found = explained(state(refusal("claim", "shop/a\x1b[2J", "u", message="\x1b]0;x\x07")), "u")
    assert not any("\x1b" in line or "\x07" in line for line in explanation_lines(found))


def test_trial_is_told_in_lines() -> None:
    result = ResultState(request="cpus", device="cpudevnuma000", cpus="0-1")
    rows = (
        TrialRow(
            kind="claim", name="shop/web", fits=True, cpus="0-1", results=(result,), moves=("shop/a/b: 0-7 -> 2-7",)
        ),
        TrialRow(
            kind="container", name="shop/x/y", fits=True, cpus="2-7", group="shared", pool="numa0", reason="r: shared"
        ),
        TrialRow(kind="claim", name="shop/db", fits=False, code="no-capacity", message="none free", hint="wait"),
    )
    assert list(trial_lines(rows)) == [
        "claim shop/web: fits",
        "  gets      CPUs 0-1",
        "  parts     cpus: 0-1 of cpudevnuma000",
        "  moves     shop/a/b: 0-7 -> 2-7",
        "",
        "container shop/x/y: fits",
        "  runs on   CPUs 2-7",
        "  why       r: shared, pool numa0",
        "",
        "claim shop/db: would be refused",
        "  why       none free (no-capacity)",
        "  to do     wait",
    ]


def test_objects_of_yaml_and_json_files_come_as_json(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text('# first\n---\na: 1\nt: 2026-11-30T14:00:00Z\n---\n---\n{"b": [true]}\n')
    first, second = read_objects(file)
    assert json.loads(first)["a"] == 1
    assert json.loads(second) == {"b": [True]}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("a: [", "is no YAML or JSON", id="broken"),
        pytest.param("!!python/object:os.system x", "is no YAML or JSON", id="a tag that would run code"),
        pytest.param("a: !!set {b, c}\n? [1]\n: 2", "is no YAML or JSON", id="what JSON cannot hold"),
        pytest.param("x" * (MAX_FILE_BYTES + 1), "is larger than", id="large"),
        pytest.param("a: &a " + "x" * 1000 + "\nb: [" + "*a," * 1000 + "]", "becomes larger", id="grows"),
    ],
)
def test_files_that_are_none_are_refused(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(text)
    with pytest.raises(HostError, match=words):
        read_objects(file)


def test_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="cannot be read") as told:
        read_objects(tmp_path / "none")
    assert "claims and pods as YAML or JSON" in str(told.value.hint)


@pytest.mark.parametrize("name", ["late-0", "shop/late-0", "late-0/app", "shop/late-0/app"])
def test_pod_whose_claim_was_refused_leads_to_the_claim(name: str) -> None:
    refused = state(refusal("claim", "shop/late-0-cpus-x7k2q", "u1"))
    with pytest.raises(NodeCpuError) as caught:
        explained(refused, name)
    assert "late-0-cpus-x7k2q" in caught.value.hint


def test_status_tells_who_was_refused_last_and_that_the_node_stands_aside() -> None:
    many = [refusal("claim", f"shop/c{n}", f"u{n}", f"claim shop/c{n}: no", count=n) for n in range(1, 7)]
    shown = msgspec.structs.replace(state(*many, refusal("resize", "a/b/c", "u", "no")), aside="why")
    told = list(status_lines(msgspec.structs.replace(shown, counters=CounterState(started_at=1e9))))
    assert told[0] == "n4c16, nodecpu 0.1.0, since 2001-09-09T01:46:40Z"
    assert told[1] == "  aside       nothing is pinned: why; see nodecpu check"
    start = next(number for number, line in enumerate(told) if line.startswith("REFUSED LAST"))
    assert [line.split("  ", 1)[1].strip() for line in told[start + 1 : start + 6]] == [
        "once     resize a/b/c: no",
        *(f"{n} times  claim shop/c{n}: no" for n in (6, 5, 4, 3)),
    ]
    assert told[start + 6] == "and 2 others; nodecpu explain NAME tells what to do"
