"""Reads what CDI specs tell of claims: ours, and those of the community driver that ran here before (shell; R2).

Only files of the directory that the runtimes read count, which root alone can write. What cannot be read is passed
over: a spec is a trace, never a proof.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from nodecpu.dra.cdi import cdi_kind
from nodecpu.log import kv
from nodecpu.policy.evidence import Evidence, told_by

COMMUNITY_KIND: Final = "dra.k8s.io/cpu"
"""The CDI kind of dra-driver-cpu, whatever its driver name. Source: dra-driver-cpu pkg/driver/cdi.go."""

_MAX_BYTES: Final = 16 << 20
_MAX_FILES: Final = 4096

_log = logging.getLogger(__name__)


class _Edits(msgspec.Struct, frozen=True, kw_only=True):
    env: tuple[str, ...] = ()


class _Device(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    name: str
    container_edits: _Edits = _Edits()


class _Spec(msgspec.Struct, frozen=True, kw_only=True):
    kind: str
    devices: tuple[_Device, ...] = ()


def claims_in_specs(directory: Path, *, driver: str) -> tuple[Evidence, ...]:
    """Return the claims that the directory's specs tell of, by UID: ours first, then the community driver's.

    Blocking; never raises for what is in the directory.
    """
    ours: dict[str, str] = {}
    theirs: dict[str, str] = {}
    for path in _files(directory):
        spec = _read(path)
        if spec is None or spec.kind not in (cdi_kind(driver), COMMUNITY_KIND):
            continue
        found = ours if spec.kind == cdi_kind(driver) else theirs
        for device in spec.devices:
            found.update(_variables(device))
    told = told_by(ours)
    known = {one.uid for one in told}
    return (*told, *(one for one in told_by(theirs) if one.uid not in known))


def _files(directory: Path) -> list[Path]:
    try:
        return sorted(path for path in directory.iterdir() if path.suffix == ".json")[:_MAX_FILES]
    except FileNotFoundError:
        return []
    except OSError as error:
        kv(_log, logging.WARNING, "CDI directory cannot be read for traces of claims", path=directory, err=error)
        return []


def _read(path: Path) -> _Spec | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_BYTES:
                return None
            return msgspec.json.decode(file.read(_MAX_BYTES), type=_Spec)
    except (OSError, msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def _variables(device: _Device) -> Mapping[str, str]:
    return dict(pair.partition("=")[::2] for pair in device.container_edits.env if "=" in pair)
