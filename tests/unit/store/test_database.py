"""Files are opened safely; what cannot be trusted is refused and left as it is."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nodecpu.cpuset import CpuSet, NodeSet
from nodecpu.errors import StateError
from nodecpu.ids import ClaimUID, ContainerID, PodUID, SandboxID
from nodecpu.policy.facts import ClaimRef, ContainerSpec, PodSpec, QoS
from nodecpu.policy.grants import ClaimGrant, ContainerGrant, Group, Link, ResultGrant
from nodecpu.policy.plan import Change
from nodecpu.store.claims import ClaimStore, Job
from nodecpu.store.containers import ContainerStore
from nodecpu.store.database import locked, open_database, private_directory
from nodecpu.store.rows import Row, from_row, to_row

CLAIM = ClaimGrant(
    uid=ClaimUID("00000001-0000-4000-8000-000000000000"),
    namespace="shop",
    name="web",
    results=(
        ResultGrant(request="cpus/big", pool="node", device="cpudevnuma001", cpus=CpuSet.parse("4-5"), share_id="x"),
    ),
    cdi_ids=("dra.cpu/cpu=claim-1-0",),
    released=True,
)
CONTAINER = ContainerGrant(
    id=ContainerID("c1"),
    sandbox_id=SandboxID("s1"),
    pod_uid=PodUID("p1"),
    namespace="shop",
    pod="web-0",
    name="main",
    group=Group.MIXED,
    pool="numa 1",
    qos=QoS.GUARANTEED,
    exclusive=CpuSet.parse("6"),
    portion_mcpu=500,
    uses_shared=True,
    links=(Link(claim_uid=CLAIM.uid, cpus=CpuSet.parse("4-5"), requests=("cpus",)),),
    mems=NodeSet.parse("1"),
    shares=1536,
)
POD = PodSpec(
    uid=PodUID("p1"),
    runtime_uid=PodUID("hash"),
    namespace="shop",
    name="web-0",
    qos=QoS.GUARANTEED,
    containers={"main": ContainerSpec(name="main", request_mcpu=1500, claims=(ClaimRef(claim="web", request="cpus"),))},
    annotations={"a": "b"},
)


@pytest.fixture
def claims(tmp_path: Path) -> Iterator[ClaimStore]:
    store = ClaimStore(tmp_path / "claims.db")
    yield store
    store.close()


@pytest.fixture
def containers(tmp_path: Path) -> Iterator[ContainerStore]:
    store = ContainerStore(tmp_path / "containers.db")
    yield store
    store.close()


def test_a_claim_is_read_back_as_it_was_written(claims: ClaimStore, tmp_path: Path) -> None:
    """R1."""
    claims.commit([Job(puts=(CLAIM,))])
    again = ClaimStore(tmp_path / "claims.db")
    assert again.load() == (CLAIM,)
    again.close()


def test_containers_and_pods_are_read_back_as_they_were_written(containers: ContainerStore) -> None:
    """R1, N1."""
    containers.load("boot")
    containers.commit(Change(put_containers=(CONTAINER,)))
    containers.commit_pods([POD], [])
    assert containers.load("boot") == ((CONTAINER,), (POD,))


def test_what_another_boot_left_is_dropped(containers: ContainerStore) -> None:
    """T7."""
    containers.load("boot")
    containers.commit(Change(put_containers=(CONTAINER,)))
    containers.commit_pods([POD], [])
    assert containers.load("next") == ((), ())


def test_a_change_is_written_whole(containers: ContainerStore) -> None:
    containers.load("boot")
    other = replace(CONTAINER, id=ContainerID("c2"))
    containers.commit(Change(put_containers=(CONTAINER, other)))
    containers.commit(Change(drop_containers=(CONTAINER.id,), put_containers=(other,)))
    assert containers.load("boot")[0] == (other,)


def test_a_file_of_a_newer_version_is_refused_and_left_alone(tmp_path: Path) -> None:
    """U43."""
    path = tmp_path / "claims.db"
    ClaimStore(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version=7")
    db.close()
    before = path.read_bytes()
    with pytest.raises(StateError, match="schema 7, this version knows up to 1"):
        ClaimStore(path)
    assert path.read_bytes() == before


def with_more(value: object) -> object:
    """Return JSON with a field in every object that no version knows today, unless its keys are names of their own."""
    match value:
        case dict():
            more = {} if not value or value.keys() & {"main", "a"} else {"of_a_later_version": {"some": ["thing"]}}
            return {key: with_more(inner) for key, inner in value.items()} | more
        case list():
            return [with_more(inner) for inner in value]
        case _:
            return value


def read_by_an_older_version(value: Row) -> Row:
    row = json.dumps(with_more(json.loads(to_row(value)))).encode()
    assert b"of_a_later_version" in row
    return from_row(type(value), "x", row)


def test_fields_that_a_later_version_added_do_not_keep_an_older_one_from_reading() -> None:
    """U43: a downgrade works; what such a field says is not known, what was there before is whole."""
    assert read_by_an_older_version(CLAIM) == CLAIM
    assert read_by_an_older_version(CONTAINER) == CONTAINER
    assert read_by_an_older_version(POD) == POD


def test_a_link_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("")
    (tmp_path / "claims.db").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StateError, match="cannot open"):
        ClaimStore(tmp_path / "claims.db")


def test_a_failed_migration_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    open_database(path, migrations=("CREATE TABLE a (x)",), synced=False).close()
    with pytest.raises(StateError):
        open_database(path, migrations=("CREATE TABLE a (x)", "CREATE TABLE b (x); CREATE TABLE a (x)"), synced=False)
    db = open_database(path, migrations=("CREATE TABLE a (x)",), synced=False)
    assert [name for (name,) in db.execute("SELECT name FROM sqlite_master")] == ["a"]
    db.close()


def test_files_and_directories_are_for_us_alone(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o755)
    private_directory(tmp_path / "state")
    ClaimStore(tmp_path / "state" / "claims.db").close()
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "state" / "claims.db").stat().st_mode & 0o777 == 0o600


def test_a_directory_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "state").symlink_to(tmp_path / "real")
    with pytest.raises(StateError, match=r"is a symbolic link, which is not followed \(name the directory"):
        private_directory(tmp_path / "state")


def test_a_directory_that_cannot_be_made_is_told_with_cause_and_next_step(tmp_path: Path) -> None:
    """Not every failure is one of owner and mode."""
    with pytest.raises(StateError, match=r"No such file or directory.*\(see \[paths\] in the configuration"):
        private_directory(Path("/proc/nope"))
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match=r"File exists.*\(remove what is there"):
        private_directory(tmp_path / "file")
    with pytest.raises(StateError, match=r"Not a directory.*\(see \[paths\]"):
        private_directory(tmp_path / "file" / "state")


def test_a_second_daemon_is_refused_by_the_lock(tmp_path: Path) -> None:
    with (
        locked(tmp_path / "lock"),
        pytest.raises(StateError, match="held by another process"),
        locked(tmp_path / "lock"),
    ):
        pass
    with locked(tmp_path / "lock"):
        pass
