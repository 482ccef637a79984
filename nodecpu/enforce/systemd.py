"""Sets a container's cpuset through systemd, so that systemd's next write does not undo ours, and asks it (shell; E1).

systemd writes its own value again at daemon-reload and at each change of a unit, so a value that only stands in the
cgroup file is lost. Source: interfaces 6.3; systemd.resource-control(5), AllowedCPUs= (systemd 244 and later, v2 only).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path

from nodecpu.cpuset import CpuSet
from nodecpu.enforce.cgroups import relative_directory
from nodecpu.log import kv
from nodecpu.policy.plan import Placement

_LOG = logging.getLogger(__name__)

_TIMEOUT_S = 5.0
_LEFT_ALONE_S = 60.0
"""After a call that took too long: else each of hundreds of containers would wait as long for its turn."""


class Systemd:
    """The service manager of this host, by its command. ``booted`` exists where systemd is the init system."""

    def __init__(
        self,
        *,
        command: str = "systemctl",
        booted: Path = Path("/run/systemd/system"),
        timeout_s: float = _TIMEOUT_S,
        left_alone_s: float = _LEFT_ALONE_S,
    ) -> None:
        self._command = command
        self._booted = booted
        self._timeout_s = timeout_s
        self._left_alone_s = left_alone_s
        self._not_before: float | None = None  # by the loop's time

    async def set_cpuset(self, cgroups_path: str, placement: Placement) -> bool:
        """Set a scope's CPUs and memory nodes until it ends; return whether systemd took them.

        False at once where there is no systemd, or where the container has no scope (the cgroupfs driver).
        """
        if (scope := self._scope(cgroups_path)) is None:
            return False
        properties = [f"AllowedCPUs={placement.cpus}"]
        if placement.mems:
            properties.append(f"AllowedMemoryNodes={placement.mems}")
        return await self._call("set-property", "--runtime", scope, *properties) is not None

    async def told(self, cgroups_path: str) -> CpuSet | None:
        """Return the CPUs that systemd has for a container's scope; None where it has no scope or none are set."""
        if (scope := self._scope(cgroups_path)) is None:
            return None
        text = await self._call("show", "--property=AllowedCPUs", "--value", scope)
        try:
            return CpuSet.parse(",".join((text or "").split())) or None
        except ValueError:
            return None

    def _scope(self, cgroups_path: str) -> str | None:
        """Return the name of a container's scope; None where there is no systemd, or no scope."""
        where = relative_directory(cgroups_path)
        if where is None or not where.name.endswith(".scope") or not self._booted.is_dir():
            return None
        return where.name

    async def _call(self, *arguments: str) -> str | None:
        """Return what the command prints; None if it fails, takes too long, or did so a short while ago."""
        now = asyncio.get_running_loop().time
        if self._not_before is not None and now() < self._not_before:
            return None
        try:
            process = await asyncio.create_subprocess_exec(
                self._command,
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
        except OSError:
            return None
        try:
            async with asyncio.timeout(self._timeout_s):
                out, _ = await process.communicate()
                return out.decode(errors="replace") if process.returncode == 0 else None
        except TimeoutError:
            self._not_before = now() + self._left_alone_s
            kv(
                _LOG,
                logging.WARNING,
                "systemd does not answer, it is left alone for a while",
                ms=1000 * self._timeout_s,
            )
            return None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
