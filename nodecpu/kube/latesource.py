"""Claims for those who prepare them, while the client of the API server is still being loaded (shell)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nodecpu.errors import NodeCpuError, NotReady
from nodecpu.ids import ClaimUID
from nodecpu.policy.facts import AllocatedClaim

if TYPE_CHECKING:
    from nodecpu.kube.claims import ClaimReader


class LateSource:
    """Claims by way of the API server, once its client is loaded."""

    def __init__(self) -> None:
        self.reader: ClaimReader | None = None
        self.is_answering = False

    async def fetch(self, uid: ClaimUID, namespace: str, name: str, *, timeout_s: float) -> AllocatedClaim:
        """Return the claim; raises NotReady where a retry helps, ClaimError otherwise."""
        who = f"claim {namespace}/{name}"
        if self.reader is None:
            raise NotReady(f"{who}: there is no API server to read it from", hint="see [kube] in the configuration")
        try:
            claim = await self.reader.fetch(uid, namespace, name, timeout_s=timeout_s)
        except NotReady:
            self.is_answering = False
            raise
        except NodeCpuError:
            self.is_answering = True
            raise
        self.is_answering = True
        return claim
