"""Updates that answer no request of the runtime (shell)."""

from __future__ import annotations

import logging

from nodecpu.errors import NodeCpuError
from nodecpu.log import kv
from nodecpu.nri.connection import Link
from nodecpu.nri.plugin import Plugin
from nodecpu.policy.plan import Update

_LOG = logging.getLogger(__name__)


class Unasked:
    """Updates that answer no request, for the audit."""

    def __init__(self, plugin: Plugin) -> None:
        self.link: Link | None = None
        self._plugin = plugin

    async def update(self, update: Update) -> bool:
        """Send one update; return whether the runtime took it."""
        runtime = self._plugin.runtime
        if self.link is None or runtime is None or not runtime.safe_unsolicited:
            return False
        try:
            await self.link.update_containers(update)
        except NodeCpuError as err:
            kv(_LOG, logging.WARNING, "the runtime did not take an update", container_id=update.container_id, err=err)
            return False
        return True
