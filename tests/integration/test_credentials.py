"""Credentials are read again when their files change and when they are refused (U111)."""

from __future__ import annotations

import json
from contextlib import aclosing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from nodecpu.errors import LinkError
from nodecpu.kube.client import ApiError, KubeClient
from nodecpu.kube.credentials import files_of, stamps_of
from nodecpu.lab.jsontree import JsonObject
from nodecpu.lab.objects import PODS
from tests.apiserver import cluster, kubeconfig
from tests.kubelet import run
from tests.unit.kube.test_certificate import NODE, token

NODE_PATH = "/api/v1/nodes/node1"
POD: JsonObject = {"metadata": {"name": "web"}, "spec": {}}


def config_file(directory: Path, url: str, user: dict[str, str]) -> Path:
    config = json.loads(json.dumps(kubeconfig(url)))
    config["users"][0]["user"] = user
    path = directory / "kubeconfig"
    path.write_text(json.dumps(config))
    return path


def ends(client: KubeClient) -> float | None:
    return client.credentials_expire_at


def test_token_that_is_refused_is_read_again(tmp_path: Path) -> None:
    """U111: rotated between two calls, within the second in which files are not looked at."""

    async def test() -> None:
        async with cluster() as one:
            one.server.tokens = frozenset({"old"})
            (tmp_path / "token").write_text("old")
            client = KubeClient(config_file(tmp_path, one.server.url, {"tokenFile": "token"}), timeout_s=5)
            try:
                await client.get(NODE_PATH)
                one.server.tokens = frozenset({"new"})
                (tmp_path / "token").write_text("new")
                await client.get(NODE_PATH)
                one.server.tokens = frozenset({"newer"})
                (tmp_path / "token").write_text("newer")
                async with aclosing(client.watch("/api/v1/pods", {"watch": "true"}, silence_s=5)) as lines:
                    one.server.store.create(PODS, "shop", POD)
                    assert b"ADDED" in await anext(lines)
            finally:
                client.close()

    run(test)


def test_credentials_that_stay_refused_are_an_error_after_one_more_try(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster() as one:
            one.server.tokens = frozenset()
            (tmp_path / "token").write_text("bad")
            client = KubeClient(config_file(tmp_path, one.server.url, {"tokenFile": "token"}), timeout_s=5)
            try:
                with pytest.raises(ApiError) as refused:
                    await client.get(NODE_PATH)
                assert refused.value.status == 401
                assert "bad" not in str(refused.value)
                assert len(one.calls("GET")) == 2
            finally:
                client.close()

    run(test)


def test_changed_file_is_noticed_without_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """U111: by a link that is set anew, as the kubelet does."""
    monkeypatch.setattr("nodecpu.kube.client._LOOK_S", 0.0)

    async def test() -> None:
        async with cluster() as one:
            for name in ("old", "new"):
                (tmp_path / name).write_text(token(exp=1_800_000_000 if name == "old" else 1_900_000_000))
            (tmp_path / "token").symlink_to("old")
            client = KubeClient(config_file(tmp_path, one.server.url, {"tokenFile": "token"}), timeout_s=5)
            try:
                assert ends(client) is None
                await client.get(NODE_PATH)
                assert ends(client) == 1_800_000_000
                (tmp_path / "token").unlink()
                (tmp_path / "token").symlink_to("new")
                await client.get(NODE_PATH)
                assert ends(client) == 1_900_000_000
            finally:
                client.close()

    run(test)


def test_end_of_a_client_certificate_is_told(tmp_path: Path) -> None:
    """The first to end counts; that nobody listens does not matter."""
    (tmp_path / "c.pem").write_bytes(NODE)
    (tmp_path / "k.pem").write_text("not needed before somebody listens")

    async def test() -> None:
        user = {"client-certificate": "c.pem", "client-key": "k.pem", "token": token(exp=1_900_000_000)}
        client = KubeClient(config_file(tmp_path, "https://127.0.0.1:1", user), timeout_s=5)
        try:
            with pytest.raises(LinkError):
                await client.get(NODE_PATH)
            assert ends(client) == datetime(2027, 11, 30, 14, 27, 39, tzinfo=UTC).timestamp()
        finally:
            client.close()

    run(test)


def test_kubeconfig_that_is_half_written_leaves_the_old_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("nodecpu.kube.client._LOOK_S", 0.0)

    async def test() -> None:
        async with cluster() as one:
            path = config_file(tmp_path, one.server.url, {"token": "secret-token"})
            whole = path.read_text()
            client = KubeClient(path, timeout_s=5)
            try:
                await client.get(NODE_PATH)
                path.write_text(whole[: len(whole) // 2])
                await client.get(NODE_PATH)
                path.write_text(whole)
                await client.get(NODE_PATH)
            finally:
                client.close()

    run(test)
    assert "credentials cannot be read again, the old ones stay" in caplog.text
    assert "secret-token" not in caplog.text


def test_kubeconfigs_files_are_those_of_its_current_context(tmp_path: Path) -> None:
    config = {
        "current-context": "here",
        "contexts": [
            {"name": "there", "context": {"cluster": "b", "user": "b"}},
            {"name": "here", "context": {"cluster": "a", "user": "a"}},
        ],
        "clusters": [{"name": "a", "cluster": {"certificate-authority": "/etc/ca.pem", "server": "https://x"}}],
        "users": [
            {"name": "b", "user": {"tokenFile": "other"}},
            {"name": "a", "user": {"client-certificate": "pki/c.pem", "client-key": "pki/k.pem"}},
        ],
    }
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(config))
    assert files_of(path) == (path, tmp_path / "pki/c.pem", tmp_path / "pki/k.pem", Path("/etc/ca.pem"))
    assert stamps_of([tmp_path / "pki/c.pem"]) == {tmp_path / "pki/c.pem": None}


@pytest.mark.parametrize("text", ["", "[", "- a", "contexts: 3", "users: [3]\ncontexts: [{name: ''}]"])
def test_kubeconfig_of_another_form_is_one_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    assert files_of(path) == (path,)
