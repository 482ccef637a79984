"""Ids as types of their own, so that the type checker refuses to mix them (pure)."""

from __future__ import annotations

from typing import NewType

ClaimUID = NewType("ClaimUID", str)
PodUID = NewType("PodUID", str)
SandboxID = NewType("SandboxID", str)
ContainerID = NewType("ContainerID", str)
