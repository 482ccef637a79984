"""All files of a claim, as one (shell; C11): its CDI spec, and its device metadata where that was answered."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from nodecpu.dra.cdi import CdiDirectory, Restored
from nodecpu.dra.metadata import Describe, MetadataFiles
from nodecpu.ids import ClaimUID
from nodecpu.policy.grants import ClaimGrant


class ClaimFiles:
    """Blocking: for the worker thread. Raises HostError.

    What a spec names is there before the spec, and gone after it.
    """

    def __init__(self, specs: CdiDirectory, metadata: MetadataFiles) -> None:
        self._specs = specs
        self._metadata = metadata

    def describe_by(self, describe: Describe) -> None:
        """Have CPUs described by another machine from now on."""
        self._metadata.describe_by(describe)

    def write(self, grant: ClaimGrant) -> bool:
        """Write a claim's files unless they are as they should be; return whether its CDI spec was written."""
        self._metadata.write(grant)
        return self._specs.write(grant)

    def remove(self, uid: ClaimUID) -> None:
        """Remove a claim's files; none is fine."""
        self._specs.remove(uid)
        self._metadata.remove(uid)

    def restore(self, grants: Iterable[ClaimGrant], *, used: Collection[ClaimUID] | None = None) -> Restored:
        """Write what these claims should have and remove orphans, see CdiDirectory.restore."""
        grants = tuple(grants)
        self._metadata.restore(grants, used=used)
        return self._specs.restore(grants, used=used)
