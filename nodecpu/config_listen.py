"""Where the metrics are served: this machine only, by loopback or by a socket file (pure)."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

from nodecpu.config_forms import TomlValue

_UNIX: Final = "unix:"
_MAX_PATH: Final = 107
"""Source: unix(7), sun_path less its terminating zero."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """An address. ``path`` is a socket file's, else ``host`` and ``port``; all empty: nowhere."""

    host: str = ""
    port: int = 0
    path: str = ""

    def __bool__(self) -> bool:
        return bool(self.host or self.path)


NOWHERE: Final = Listen()


class ListenText:
    """An address of this machine, as text."""

    allowed = '"127.0.0.1:PORT", "[::1]:PORT", "unix:/PATH", or "" for nowhere'

    def read(self, value: object) -> Listen:
        """Return the address; ValueError for any that others could reach."""
        if not isinstance(value, str):
            raise ValueError("this is no text")  # noqa: TRY004 - one kind of error for all wrong values
        if not value:
            return NOWHERE
        if value.startswith(_UNIX):
            return self._unix(value.removeprefix(_UNIX))
        match = re.fullmatch(r"(?:\[([0-9a-f:]+)\]|([0-9.]+)):([0-9]{1,5})", value)
        if match is None:
            raise ValueError
        address, port = match[1] or match[2], int(match[3])
        try:
            is_loopback = ipaddress.ip_address(address).is_loopback
        except ValueError:
            raise ValueError("this is no IP address") from None
        if not is_loopback:
            raise ValueError("others could reach this address; put a proxy with authentication before a local one")
        if not 0 < port < 1 << 16:
            raise ValueError("ports go from 1 to 65535")
        return Listen(host=address, port=port)

    def write(self, value: object) -> TomlValue:
        """Return the address as text."""
        assert isinstance(value, Listen)
        if value.path:
            return f"{_UNIX}{value.path}"
        host = f"[{value.host}]" if ":" in value.host else value.host
        return f"{host}:{value.port}" if value else ""

    def _unix(self, path: str) -> Listen:
        if not path.startswith("/") or not path.isprintable() or ".." in path.split("/") or path.endswith("/"):
            raise ValueError("the path has to be absolute and plain")
        if len(path.encode()) > _MAX_PATH:
            raise ValueError(f"a socket's path has at most {_MAX_PATH} bytes")
        return Listen(path=path)
