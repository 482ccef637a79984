"""Values of the command line's arguments (pure): what is no such value is wrong usage, and told in one line."""

from __future__ import annotations

import contextlib
import re
from argparse import ArgumentTypeError
from typing import Final

from nodecpu.ids import DNS_NAME

_MOST_NUMA_NODES: Final = 1024
"""Source: the kernel's largest CONFIG_NODES_SHIFT, 10."""

_MOST_CHARACTERS: Final = 63


def seconds(text: str) -> float:
    """Return a time to wait, in seconds."""
    with contextlib.suppress(ValueError):
        if 0.1 <= (found := float(text)) <= 3600:
            return found
    raise ArgumentTypeError(f"{text}: 0.1 to 3600 seconds are meant")


def numa_nodes(text: str) -> int:
    """Return a number of NUMA nodes."""
    with contextlib.suppress(ValueError):
        if 0 <= (found := int(text)) <= _MOST_NUMA_NODES:
            return found
    raise ArgumentTypeError(f"{text}: a number of NUMA nodes is meant, at most {_MOST_NUMA_NODES}")


def dns_name(text: str) -> str:
    """Return a name as drivers have one. Source: KEP-3063, driver names; RFC 1123."""
    if re.fullmatch(DNS_NAME, text) is None or len(text) > _MOST_CHARACTERS:
        raise ArgumentTypeError(f"{text}: a DNS name of at most {_MOST_CHARACTERS} characters is meant")
    return text


def namespace(text: str) -> str:
    """Return a namespace's name: one label of a DNS name."""
    if "." in text:
        raise ArgumentTypeError(f"{text}: a namespace's name has no dots")
    return dns_name(text)
