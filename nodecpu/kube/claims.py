"""ResourceClaims, read one by one: when they are prepared, and when the books are checked (shell)."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from nodecpu.dra.claims import claim_is_over, claim_uid, decode_claim
from nodecpu.errors import BadRequest, LinkError, NotReady
from nodecpu.ids import ClaimUID
from nodecpu.kube.client import Api, ApiError, api_path
from nodecpu.policy.facts import AllocatedClaim


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundClaim:
    """A claim that is there. ``allocated`` is None if it is not allocated, or not in a form that we understand.

    ``is_over``: nobody may use it on this node any more, though the object is there.
    """

    uid: ClaimUID
    allocated: AllocatedClaim | None
    is_over: bool = False


class _NodeMetadata(msgspec.Struct, frozen=True, kw_only=True):
    uid: str


class _Node(msgspec.Struct, frozen=True, kw_only=True):
    metadata: _NodeMetadata


class ClaimReader:
    """Reads claims, each by one GET."""

    def __init__(self, api: Api, *, driver: str, node: str) -> None:
        self._api = api
        self._driver = driver
        self._node = node

    @property
    def is_answering(self) -> bool:
        """Return whether the API server answered when it was asked last, for whatever."""
        return self._api.is_answering

    async def fetch(self, uid: ClaimUID, namespace: str, name: str, *, timeout_s: float) -> AllocatedClaim:
        """Return the claim as far as it concerns us, within ``timeout_s`` and the time of any call.

        Raises BadRequest when no retry helps, and NotReady when the API server is away, overloaded or refuses us.
        """
        data = await self._get(namespace, name, timeout_s)
        if data is None:
            raise BadRequest(f"claim {namespace}/{name}: does not exist", hint="it was deleted meanwhile")
        return decode_claim(data, driver=self._driver, uid=uid, namespace=namespace, name=name)

    async def find(self, namespace: str, name: str) -> FoundClaim | None:
        """Return the claim of that name, whatever its UID; None if there is none. Raises NotReady.

        A result without consumed capacity counts as one CPU: so the community driver's devices of one CPU are told.
        """
        data = await self._get(namespace, name, None)
        if data is None:
            return None
        try:
            uid = claim_uid(data, namespace=namespace, name=name)
            over = claim_is_over(data, driver=self._driver, pool=self._node, namespace=namespace, name=name)
        except BadRequest as error:
            raise NotReady(error.message) from error
        try:
            allocated = decode_claim(
                data, driver=self._driver, uid=uid, namespace=namespace, name=name, cpus_per_device=1
            )
        except BadRequest:
            return FoundClaim(uid=uid, allocated=None, is_over=over)
        return FoundClaim(uid=uid, allocated=allocated, is_over=over)

    async def node_uid(self) -> str | None:
        """Return the UID of this node's Node object, None if there is none. Raises NotReady."""
        try:
            answer = await self._api.get(api_path("api", "v1", "nodes", self._node))
            return msgspec.json.decode(answer, type=_Node).metadata.uid
        except ApiError as error:
            if error.status == 404:
                return None
            raise NotReady(f"node {self._node}: cannot be read", hint=str(error)) from error
        except LinkError as error:
            raise NotReady(f"node {self._node}: the API server is away", hint=error.message) from error
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise NotReady(f"node {self._node}: malformed answer: {str(error)[:200]}") from error

    async def _get(self, namespace: str, name: str, timeout_s: float | None) -> bytes | None:
        claim = f"claim {namespace}/{name}"
        path = api_path("apis", "resource.k8s.io", "v1", "namespaces", namespace, "resourceclaims", name)
        try:
            return await self._api.get(path, timeout_s=timeout_s)
        except LinkError as error:
            raise NotReady(f"{claim}: cannot be read, the API server is away", hint=error.message) from error
        except ApiError as error:
            # Only the API server's own word that the object is not there is one: a proxy may answer 404 as well.
            # And only for the object: an API group that is not served is "not found" without a name.
            if error.status == 404 and f'"{name}"' in error.message:
                return None
            raise NotReady(f"{claim}: cannot be read", hint=str(error)) from error
