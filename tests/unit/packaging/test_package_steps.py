"""What the packages' scripts ask before they start or remove: credentials, claims in the books."""

from __future__ import annotations

import importlib.util
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from nodecpu.config import parse
from nodecpu.ids import ClaimUID
from nodecpu.policy.grants import ClaimGrant
from nodecpu.store.claims import ClaimStore, Job
from tests.support import ROOT
from tests.unit.nodestates import answering, n4c16


@pytest.fixture
def steps() -> ModuleType:
    spec = importlib.util.spec_from_file_location("package_steps", ROOT / "packaging" / "files" / "package_steps.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "nodecpu.toml"
    file.write_text(f'[paths]\nstate = "{tmp_path}/state"\n[kube]\nkubeconfig = "{tmp_path}/kubeconfig"\n')
    return file


def books(tmp_path: Path, *names: str) -> None:
    (tmp_path / "state").mkdir(exist_ok=True)
    with closing(sqlite3.connect(tmp_path / "state" / "claims.db")) as db:
        db.execute("CREATE TABLE claims (uid TEXT PRIMARY KEY, row BLOB NOT NULL)")
        rows = [(name, f'{{"namespace": "shop", "name": "{name}"}}') for name in names]
        db.executemany("INSERT INTO claims VALUES (?, ?)", rows)
        db.commit()


def test_it_may_not_run_without_credentials(steps: ModuleType, config: Path, tmp_path: Path) -> None:
    assert steps.main("may-run", config) == 1
    (tmp_path / "kubeconfig").touch()
    assert steps.main("may-run", config) == 0


def test_it_may_run_without_credentials_that_it_does_not_use(steps: ModuleType, config: Path) -> None:
    config.write_text("[kube]\nenabled = false\n")
    assert steps.main("may-run", config) == 0


def test_it_may_not_run_where_the_configuration_leaves_it_no_cpu(
    steps: ModuleType, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text('[kube]\nenabled = false\n[policy]\navailable = "60000"\n')
    assert steps.main("may-run", config) == 1
    assert "policy.available names none of CPUs" in capsys.readouterr().err


def test_it_may_restart_where_no_daemon_can_tell_what_terminates(
    steps: ModuleType, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(f'[paths]\nrun = "{tmp_path}/run"\n')
    assert steps.main("may-restart", config) == 0
    assert "the daemon is not running" in capsys.readouterr().err


def test_it_may_not_restart_while_a_container_is_being_terminated(steps: ModuleType, tmp_path: Path) -> None:
    """R6: after the wait, which packages bound, the old daemon goes on."""
    state = msgspec.structs.replace(n4c16(), terminating=("shop/web-0/app",))
    config = parse(f'[paths]\nrun = "{tmp_path}"\n', "x")
    with answering(tmp_path, state):
        (problem,) = steps.may_restart(config, wait_s=0.0)
    assert problem.startswith("not restarted: shop/web-0/app did not end within 0 s")


def test_it_may_be_removed_after_the_last_claim_was_released(steps: ModuleType, config: Path, tmp_path: Path) -> None:
    """C12: the row of one that was unprepared is dropped later; the books as the daemon itself writes them."""
    (tmp_path / "state").mkdir()
    grant = ClaimGrant(uid=ClaimUID("u"), namespace="shop", name="web", results=())
    for stored, answer in ((grant, 1), (replace(grant, released=True), 0)):
        store = ClaimStore(tmp_path / "state" / "claims.db")
        store.commit([Job(puts=(stored,))])
        store.close()
        assert steps.main("may-remove", config) == answer


@pytest.mark.parametrize("claims", [None, ()])
def test_it_may_be_removed_without_claims(
    steps: ModuleType, config: Path, tmp_path: Path, claims: tuple[str, ...] | None
) -> None:
    if claims is not None:
        books(tmp_path, *claims)
    assert steps.main("may-remove", config) == 0


def test_removal_is_refused_with_the_claims_by_name(
    steps: ModuleType, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """R5."""
    books(tmp_path, *(f"claim-{n:02}" for n in range(12)))
    assert steps.main("may-remove", config) == 1
    said = capsys.readouterr().err
    assert "12 claims hold CPUs" in said
    assert "claim shop/claim-09" in said
    assert "claim-10" not in said
    assert "and 2 more" in said
    assert "NODECPU_FORCE_REMOVE=1" in said


def test_books_that_cannot_be_read_count_as_claims(
    steps: ModuleType, config: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "claims.db").write_text("this is no database, and longer than a header of one: " * 4)
    assert steps.main("may-remove", config) == 1
    assert "cannot be read" in capsys.readouterr().err


def test_wrong_configuration_does_not_keep_the_package(steps: ModuleType, config: Path) -> None:
    config.write_text("nonsense")
    if not Path("/var/lib/nodecpu/claims.db").exists():
        assert steps.main("may-remove", config) == 0
