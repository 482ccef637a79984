"""The service manager that started us: what it is told, and that we live (shell)."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

from sdnotify import SystemdNotifier


class ServiceManager:
    """systemd, by the socket it named; nobody where it named none. A message it cannot take is lost: nobody waits."""

    def __init__(self) -> None:
        self._notifier = SystemdNotifier()
        if self._notifier.socket is not None:
            self._notifier.socket.settimeout(0)

    def tell(self, message: str) -> None:
        """Send one message. Source: sd_notify(3)."""
        self._notifier.notify(message)

    def tell_reloading(self) -> None:
        """Say that a reload has begun; it ends with READY=1."""
        self.tell(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    async def feed_watchdog(self, is_alive: Callable[[], bool]) -> None:
        """Say that we live at half the interval that is asked for, until we do not; return at once if none is."""
        interval_us = os.environ.get("WATCHDOG_USEC", "")
        if not interval_us.isdigit() or os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
            return
        while is_alive():
            self.tell("WATCHDOG=1")
            await asyncio.sleep(int(interval_us) / 2e6)
