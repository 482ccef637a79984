"""Ids as types of their own, so that the type checker refuses to mix them, and how names are written (pure)."""

from __future__ import annotations

from typing import Final, NewType

ClaimUID = NewType("ClaimUID", str)
PodUID = NewType("PodUID", str)
SandboxID = NewType("SandboxID", str)
ContainerID = NewType("ContainerID", str)

DNS_NAME: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
"""Names of nodes and drivers, as a pattern; how long one may be depends on what it names. Source: RFC 1123."""
