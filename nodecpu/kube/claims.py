"""One ResourceClaim, read from the API server when it is to be prepared (shell)."""

from __future__ import annotations

from nodecpu.dra.claims import decode_claim
from nodecpu.errors import BadRequest, LinkError, NotReady
from nodecpu.ids import ClaimUID
from nodecpu.kube.client import Api, ApiError, api_path
from nodecpu.policy.facts import AllocatedClaim


class ClaimReader:
    """Reads claims, each by one GET."""

    def __init__(self, api: Api, *, driver: str) -> None:
        self._api = api
        self._driver = driver

    @property
    def is_answering(self) -> bool:
        """Return whether the API server answered when it was asked last, for whatever."""
        return self._api.is_answering

    async def fetch(self, uid: ClaimUID, namespace: str, name: str, *, timeout_s: float) -> AllocatedClaim:
        """Return the claim as far as it concerns us, within ``timeout_s`` and the time of any call.

        Raises BadRequest when no retry helps, and NotReady when the API server is away, overloaded or refuses us.
        """
        claim = f"claim {namespace}/{name}"
        path = api_path("apis", "resource.k8s.io", "v1", "namespaces", namespace, "resourceclaims", name)
        try:
            data = await self._api.get(path, timeout_s=timeout_s)
        except LinkError as error:
            raise NotReady(f"{claim}: cannot be read, the API server is away", hint=error.message) from error
        except ApiError as error:
            if error.status == 404:
                raise BadRequest(f"{claim}: does not exist", hint="it was deleted meanwhile") from error
            raise NotReady(f"{claim}: cannot be read", hint=str(error)) from error
        return decode_claim(data, driver=self._driver, uid=uid, namespace=namespace, name=name)
