"""The node's own token, renewed by the daemon (shell; U111).

Only a token that is bound to this very node and stands in a file of its own is renewed: for the same account, audience
and lifetime, bound to the same Node. It is asked for when half of its life is over, so that an outage of many months
would be needed to lose it (of a token for a year). The new one is on disk, whole, before the old one is used no more.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from nodecpu.errors import HostError, LinkError, NodeCpuError
from nodecpu.kube.client import Api, api_path
from nodecpu.kube.credentials import token_file
from nodecpu.log import kv

_PERIOD_S: Final = 3600.0
_LOOKS: Final = 12
"""At least so many looks in a token's life, so that half a dozen tries fail before it ends."""

_LEAST_LIFE_S: Final = 600
"""The API server gives no token a shorter life. Source: TokenRequest validation."""

_log = logging.getLogger(__name__)


class _Named(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    uid: str


class _Kubernetes(msgspec.Struct, frozen=True, kw_only=True):
    namespace: str
    serviceaccount: _Named
    node: _Named | None = None


class _Payload(msgspec.Struct, frozen=True, kw_only=True):
    exp: int
    iat: int
    kubernetes: _Kubernetes = msgspec.field(name="kubernetes.io")
    aud: tuple[str, ...] = ()


class _Status(msgspec.Struct, frozen=True, kw_only=True):
    token: str


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    status: _Status


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeToken:
    """A token that is bound to a Node. Times are Unix seconds."""

    namespace: str
    account: str
    account_uid: str
    node: str
    node_uid: str
    audiences: tuple[str, ...]
    issued_at: int
    expires_at: int

    def is_due(self, now: float) -> bool:
        """Return whether half of its life is over."""
        return now > (self.issued_at + self.expires_at) / 2


def read_token(text: str) -> NodeToken | None:
    """Return what a token says of itself, None unless it is one of a ServiceAccount bound to a Node. Not verified."""
    parts = text.strip().split(".")
    if len(parts) != 3:
        return None
    try:
        found = msgspec.json.decode(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)), type=_Payload)
    except (ValueError, msgspec.MsgspecError, RecursionError):
        return None
    about = found.kubernetes
    if about.node is None:
        return None
    return NodeToken(
        namespace=about.namespace,
        account=about.serviceaccount.name,
        account_uid=about.serviceaccount.uid,
        node=about.node.name,
        node_uid=about.node.uid,
        audiences=found.aud,
        issued_at=found.iat,
        expires_at=found.exp,
    )


class TokenRenewal:
    """Renews the token of a kubeconfig, if it is one that can be."""

    def __init__(self, api: Api, kubeconfig: Path, *, node: str, now: Callable[[], float] = time.time) -> None:
        self._api = api
        self._kubeconfig = kubeconfig
        self._node = node
        self._now = now
        self._told = ""
        self._life_s = _PERIOD_S * _LOOKS

    @property
    def pause_s(self) -> float:
        """How long until the next look: an hour, less for a token with a short life."""
        return min(_PERIOD_S, self._life_s / _LOOKS)

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            try:
                await self.look()
                self._told = ""
            except NodeCpuError as error:
                if self._told != error.message:
                    self._told = error.message
                    kv(_log, logging.WARNING, "the node's token is not renewed, it is tried again", err=error)
            await asyncio.sleep(self.pause_s * random.uniform(0.8, 1.0))

    async def look(self) -> bool:
        """Renew the token if it is time; return whether that was done. Raises LinkError, ApiError and HostError."""
        path = await asyncio.to_thread(token_file, self._kubeconfig)
        old = None if path is None else read_token(await asyncio.to_thread(_read, path))
        if path is None or old is None or old.node != self._node:
            return False
        self._life_s = old.expires_at - old.issued_at
        if not old.is_due(self._now()):
            return False
        text = await self._ask(old)
        new = read_token(text)
        if new is None or (new.account_uid, new.node_uid) != (old.account_uid, old.node_uid):
            raise LinkError("API server: the new token is not for the account and node of the old one")
        if new.expires_at <= old.expires_at:
            raise LinkError("API server: the new token ends no later than the old one")
        await asyncio.to_thread(_write, path, text)
        self._life_s = new.expires_at - new.issued_at
        kv(_log, logging.INFO, "the node's token was renewed", path=path)
        return True

    async def _ask(self, old: NodeToken) -> str:
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {
                "audiences": list(old.audiences),
                "expirationSeconds": max(old.expires_at - old.issued_at, _LEAST_LIFE_S),
                "boundObjectRef": {"apiVersion": "v1", "kind": "Node", "name": old.node, "uid": old.node_uid},
            },
        }
        path = api_path("api", "v1", "namespaces", old.namespace, "serviceaccounts", old.account, "token")
        answer = await self._api.send("POST", path, msgspec.json.encode(request))
        try:
            return msgspec.json.decode(answer, type=_Answer).status.token
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            raise LinkError("API server: malformed answer to a TokenRequest") from None  # it may hold a token


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeError):
        return ""


def _write(path: Path, text: str) -> None:
    """Put a token in the place of another in one step: a reader sees the old or the new one."""
    target = path.resolve()
    temporary = target.with_name(f".{target.name}.new")
    try:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(temporary, flags, 0o600), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.rename(target)
    except OSError as error:
        raise HostError(
            f"token {target}: {error.strerror}",
            hint="keep it where the daemon may write: tokenFile: /var/lib/nodecpu/token",
        ) from error
