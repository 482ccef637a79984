"""The node's own token is renewed in time, for the same account and node (U111)."""

from __future__ import annotations

import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nodecpu.errors import HostError
from nodecpu.kube.client import ApiError, KubeClient
from nodecpu.kube.renewal import TokenRenewal, read_token
from nodecpu.lab.apiserver import Fault, unsigned_token
from nodecpu.lab.jsontree import text
from nodecpu.lab.objects import ACCOUNTS
from tests.apiserver import Cluster, cluster
from tests.integration.test_credentials import config_file
from tests.kubelet import run

YEAR = 365 * 86400


@dataclass
class Case:
    """A cluster that accepts one token, its file, and who renews it; ``now`` is the time."""

    one: Cluster
    client: KubeClient
    path: Path
    renewal: TokenRenewal
    now: float = 0.0

    def issue(self, *, node: str = "node1", issued: int = 0, uid: str = "", life_s: int = YEAR) -> str:
        about: dict[str, Any] = {"namespace": "nodecpu", "serviceaccount": {"name": "nodecpu", "uid": uid or self.uid}}
        if node:
            about["node"] = {"name": node, "uid": "n"}
        token = unsigned_token({"iat": issued, "exp": issued + life_s, "aud": ["api"], "kubernetes.io": about})
        self.one.server.tokens = frozenset({token})
        self.path.write_text(token)
        return token

    @property
    def uid(self) -> str:
        (account,) = self.one.server.store.find(ACCOUNTS)
        return text(account, "metadata", "uid")


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


@asynccontextmanager
async def case(directory: Path) -> AsyncIterator[Case]:
    async with cluster() as one:
        one.server.store.create(ACCOUNTS, "nodecpu", {"metadata": {"name": "nodecpu"}})
        path = directory / "token"
        kubeconfig = config_file(directory, one.server.url, {"tokenFile": "token"})
        path.write_text("none yet")
        client = KubeClient(kubeconfig, timeout_s=5)
        made = Case(one, client, path, TokenRenewal(client, kubeconfig, node="node1", now=lambda: made.now))
        try:
            yield made
        finally:
            client.close()


@pytest.mark.parametrize(("life_s", "pause_s"), [(YEAR, 3600), (3600, 300), (600, 50)])
def test_short_lives_are_looked_at_more_often(tmp_path: Path, life_s: int, pause_s: float) -> None:
    """U111: the token of an hour, a quarter old at the start, is renewed in time, after a failed try or two too."""

    async def test() -> None:
        async with case(tmp_path) as made:
            made.issue(life_s=life_s)
            made.now = life_s / 4
            assert not await made.renewal.look()
            assert made.renewal.pause_s == pause_s

    run(test)


def test_token_is_renewed_when_half_of_its_life_is_over(tmp_path: Path) -> None:
    """U111: the new one is used from then on, for the same account, node, audience and lifetime."""

    async def test() -> None:
        async with case(tmp_path) as made:
            old = made.issue()
            made.now = 0.49 * YEAR
            assert not await made.renewal.look()
            assert made.path.read_text() == old
            made.now = 0.51 * YEAR
            assert await made.renewal.look()
            new = read_token(made.path.read_text())
            assert new is not None
            assert (new.account, new.node, new.node_uid, new.audiences) == ("nodecpu", "node1", "n", ("api",))
            assert new.expires_at - new.issued_at == YEAR
            assert stat.S_IMODE(made.path.stat().st_mode) == 0o600
            assert names(tmp_path) == {"kubeconfig", "token"}
            made.one.server.tokens = frozenset({made.path.read_text()})
            await made.client.get("/api/v1/nodes/node1")

    run(test)


@pytest.mark.parametrize("node", ["", "node2"], ids=["not bound", "of another node"])
def test_other_tokens_are_left_alone(tmp_path: Path, node: str) -> None:
    async def test() -> None:
        async with case(tmp_path) as made:
            made.issue(node=node)
            made.now = 2.0 * YEAR
            assert not await made.renewal.look()
            made.path.write_text("opaque")
            assert not await made.renewal.look()
            made.path.unlink()
            assert not await made.renewal.look()
            assert made.one.calls("create") == []

    run(test)


def test_link_in_the_tokens_place_is_followed(tmp_path: Path) -> None:
    """The kubeconfig is in /etc, the token where the daemon may write."""
    (tmp_path / "state").mkdir()

    async def test() -> None:
        async with case(tmp_path) as made:
            old = made.issue()
            made.path.rename(tmp_path / "state" / "token")
            made.path.symlink_to("state/token")
            made.now = 0.9 * YEAR
            assert await made.renewal.look()
            assert made.path.is_symlink()
            assert (tmp_path / "state" / "token").read_text() != old

    run(test)


@pytest.mark.parametrize("status", [403, 500])
def test_refused_renewal_leaves_the_old_token(tmp_path: Path, status: int) -> None:
    async def test() -> None:
        async with case(tmp_path) as made:
            old = made.issue()
            made.now = 0.9 * YEAR
            made.one.server.add_fault(Fault(verb="create", plural="serviceaccounts", status=status))
            with pytest.raises(ApiError):
                await made.renewal.look()
            assert made.path.read_text() == old

    run(test)


def test_token_that_cannot_be_written_is_an_error_without_secrets(tmp_path: Path) -> None:
    async def test() -> None:
        async with case(tmp_path) as made:
            old = made.issue()
            made.now = 0.9 * YEAR
            (tmp_path / ".token.new").mkdir()
            with pytest.raises(HostError, match="tokenFile: /var/lib/nodecpu/token") as refused:
                await made.renewal.look()
            assert old not in str(refused.value)
            assert made.path.read_text() == old

    run(test)


@pytest.mark.parametrize(
    "token", ["", "a.b", "a.b.c", unsigned_token({"exp": 1}), unsigned_token({"exp": 1, "iat": 0, "kubernetes.io": 3})]
)
def test_what_is_no_account_token_is_none(token: str) -> None:
    assert read_token(token) is None


def test_token_of_another_account_under_that_name_is_not_taken(tmp_path: Path) -> None:
    """The account was deleted and made anew: the old token is dead in any case."""

    async def test() -> None:
        async with case(tmp_path) as made:
            old = made.issue(uid="an-earlier-account")
            made.now = 0.9 * YEAR
            with pytest.raises(Exception, match="not for the account and node"):
                await made.renewal.look()
            assert made.path.read_text() == old

    run(test)
