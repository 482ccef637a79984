"""What cannot be read is set aside as a copy and the store begins anew; what is not ours alone is refused."""

from __future__ import annotations

import os
import random
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from nodecpu.errors import StateError
from nodecpu.ids import ClaimUID
from nodecpu.policy.grants import ClaimGrant
from nodecpu.policy.plan import Change
from nodecpu.store.claims import ADOPTED, ClaimStore, Job
from nodecpu.store.containers import ContainerStore
from tests.support import need_root
from tests.unit.store.test_database import CLAIM, CONTAINER, POD


def copies(path: Path) -> list[Path]:
    return sorted(
        one for one in path.parent.glob(f"{path.name}.unreadable-*") if not one.name.endswith(("-wal", "-shm"))
    )


def filled(path: Path, count: int = 200) -> bytes:
    """Return the bytes of a file with so many claims, its log written back."""
    store = ClaimStore(path)
    uids = [ClaimUID(f"{number:08d}-0000-4000-8000-000000000000") for number in range(count)]
    store.commit([Job(puts=tuple(replace(CLAIM, uid=uid) for uid in uids))])
    store.close()
    return path.read_bytes()


def damage_a_row(path: Path, *others: ClaimGrant) -> None:
    """Leave a file whose claims are known to be all there are, with a row that cannot be read beside others."""
    store = ClaimStore(path)
    store.commit([Job(puts=others)])
    store.set_meta(ADOPTED, "yes")
    store.close()
    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO claims VALUES ('u1', ?)", (b'{"uid": 3}',))
    db.close()


def test_a_file_that_is_no_database_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "claims.db"
    path.write_bytes(b"not a database at all" * 100)
    store = ClaimStore(path)
    assert (store.load(), store.is_rebuilt) == ((), True)
    store.close()
    assert [one.read_bytes()[:14] for one in copies(path)] == [b"not a database"]
    assert "database cannot be read, the books are rebuilt" in caplog.text


def test_a_database_whose_error_quotes_what_is_no_text_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "claims.db"
    filled(path, 1)
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA writable_schema=ON")
        db.execute("UPDATE sqlite_master SET name = CAST(x'6395' AS TEXT), sql = 'bogus' WHERE name = 'claims'")
    db.close()
    store = ClaimStore(path)
    assert (store.load(), store.is_rebuilt) == ((), True)
    store.close()
    assert len(copies(path)) == 1


def test_a_row_nested_too_deep_costs_itself_alone(tmp_path: Path) -> None:
    path = tmp_path / "claims.db"
    filled(path, 2)
    with sqlite3.connect(path) as db:
        deep = b'{"uid": "x", "more": ' + b"[" * 5000 + b"]" * 5000 + b"}"
        db.execute("UPDATE claims SET row = ? WHERE uid LIKE '00000001%'", (deep,))
    db.close()
    store = ClaimStore(path)
    assert len(store.load()) == 1
    store.close()


def test_an_empty_file_is_a_first_start(tmp_path: Path) -> None:
    path = tmp_path / "claims.db"
    path.touch()
    store = ClaimStore(path)
    assert (store.load(), store.is_rebuilt) == ((), False)
    store.close()
    assert copies(path) == []


@pytest.mark.parametrize("version", [0, 1])
def test_somebody_elses_database_is_set_aside(tmp_path: Path, version: int) -> None:
    path = tmp_path / "claims.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE bookmarks (url TEXT)")
        db.execute(f"PRAGMA user_version={version}")
    db.close()
    store = ClaimStore(path)
    assert store.is_rebuilt
    store.close()
    assert len(copies(path)) == 1


@pytest.mark.parametrize("version", [-1, -(2**31)])
def test_a_version_that_never_was_is_damage(tmp_path: Path, version: int) -> None:
    path = tmp_path / "claims.db"
    filled(path, 1)
    with sqlite3.connect(path) as db:
        db.execute(f"PRAGMA user_version={version}")
    db.close()
    store = ClaimStore(path)
    assert (store.load(), store.is_rebuilt) == ((), True)
    store.close()


@pytest.mark.parametrize("word", [b"(key TEXT", b"value TEXT", b"(uid TEXT", b"row BLOB"])
def test_a_flipped_bit_in_the_name_of_a_column_has_the_file_set_aside(tmp_path: Path, word: bytes) -> None:
    """U38: SQLite takes it for sound, and each start would fail at the first query."""
    path = tmp_path / "claims.db"
    data = bytearray(filled(path, 1))
    data[data.index(word) + 1] ^= 0x02
    path.write_bytes(data)
    store = ClaimStore(path)
    assert (store.load(), store.meta("boot_id"), store.is_rebuilt) == ((), None, True)
    store.close()
    assert len(copies(path)) == 1


def test_a_damaged_schema_format_has_the_file_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "claims.db"
    data = bytearray(filled(path, 1))
    data[47] ^= 0x80  # the schema format number. Source: sqlite.org/fileformat2.html, 1.3.10
    path.write_bytes(data)
    store = ClaimStore(path)
    assert (store.load(), store.is_rebuilt) == ((), True)
    store.close()


def test_a_row_that_has_become_a_number_costs_itself_alone(tmp_path: Path) -> None:
    """U38: a flipped bit can make an integer of it, for all that the column says."""
    path = tmp_path / "claims.db"
    filled(path, 2)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE claims SET row = 7 WHERE uid LIKE '00000001%'")
    db.close()
    store = ClaimStore(path)
    assert (len(store.load()), store.is_rebuilt) == (1, True)
    store.close()


def test_a_cut_file_is_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "claims.db"
    whole = filled(path)
    path.write_bytes(whole[: len(whole) // 2])
    store = ClaimStore(path)
    assert (store.load(), store.is_rebuilt) == ((), True)
    store.close()
    assert copies(path)[0].read_bytes()[:100] == whole[:100]


@pytest.mark.parametrize("seed", range(20))
def test_overwritten_pages_end_in_a_store_that_works(tmp_path: Path, seed: int) -> None:
    """Whatever the damage: every claim that is told is one that was stored, or what was lost is known to be lost."""
    rng = random.Random(seed)
    path = tmp_path / "claims.db"
    data = bytearray(filled(path))
    for _ in range(rng.choice((1, 3, 30))):
        at = rng.randrange(len(data))
        data[at : at + 200] = rng.randbytes(len(data[at : at + 200]))
    path.write_bytes(data)
    store = ClaimStore(path)
    found = store.load()
    assert store.is_rebuilt or len(found) == 200
    store.commit([Job(puts=(replace(CLAIM, uid=ClaimUID("new")),))])
    store.close()


def test_a_row_that_cannot_be_read_costs_that_row_only(tmp_path: Path) -> None:
    """R2: the others stay; that claims may be missing is known, so they are looked for."""
    path = tmp_path / "claims.db"
    damage_a_row(path, CLAIM)
    store = ClaimStore(path)
    assert (store.load(), store.is_rebuilt, store.meta(ADOPTED)) == ((CLAIM,), True, None)
    assert store.load() == (CLAIM,)
    store.close()
    with sqlite3.connect(copies(path)[0]) as db:
        assert db.execute("SELECT count(*) FROM claims").fetchone() == (2,)
    db.close()


def test_rows_that_cannot_be_read_stay_until_it_is_on_disk_that_claims_may_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R2: killed in between, the next start must not take the claims that are left for all there are."""
    path = tmp_path / "claims.db"
    damage_a_row(path)
    store = ClaimStore(path)
    with monkeypatch.context() as killed:
        killed.setattr(store, "pay", lambda: None)
        store.load()
    store.close()
    again = ClaimStore(path)
    assert (again.load(), again.is_rebuilt, again.meta(ADOPTED)) == ((), True, None)
    again.close()


def test_an_unreadable_file_of_containers_is_set_aside_as_well(tmp_path: Path) -> None:
    path = tmp_path / "containers.db"
    path.write_bytes(b"\0" * 5000)
    store = ContainerStore(path)
    assert (store.load("boot"), store.is_rebuilt) == (((), ()), True)
    store.commit(Change(put_containers=(CONTAINER,)))
    store.commit_pods([POD], [])
    store.close()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE pods SET row = 'nonsense'")
    db.close()
    store = ContainerStore(path)
    assert (store.load("boot"), store.is_rebuilt) == (((CONTAINER,), ()), True)
    store.close()
    assert len(copies(path)) == 2


def test_the_number_of_copies_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "claims.db"
    for _ in range(12):
        path.write_bytes(b"broken again" * 100)
        ClaimStore(path).close()
    assert len(copies(path)) == 9


@pytest.mark.parametrize("way", ["hard link", "another user's"])
def test_a_file_that_is_not_ours_alone_is_refused(tmp_path: Path, way: str) -> None:
    path = tmp_path / "claims.db"
    ClaimStore(path).close()
    if way == "hard link":
        (tmp_path / "other").hardlink_to(path)
    else:
        need_root()
        os.chown(path, 12345, 12345)
    with pytest.raises(StateError, match="not a regular file of ours alone"):
        ClaimStore(path)
    assert copies(path) == []
