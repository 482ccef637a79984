"""What a runtime's CDI library does with the specs of a directory: strict reading, lookup, environment edits.

A file with a mistake is left out as a whole; a name that cannot be resolved fails the container's creation.
Source: Container Device Interface specification 1.1.0.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nodecpu.lab.jsontree import Json, node, nodes, text, texts

_VERSIONS: Final = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0")
_VENDOR: Final = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?", re.ASCII)
_DEVICE: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?", re.ASCII)
_TOP_KEYS: Final = frozenset({"cdiVersion", "kind", "annotations", "containerEdits", "devices"})
_DEVICE_KEYS: Final = frozenset({"name", "annotations", "containerEdits"})
_EDIT_KEYS: Final = frozenset({"env", "deviceNodes", "mounts", "hooks", "netDevices", "intelRdt", "additionalGids"})


class CdiError(Exception):
    """A spec is refused, or a device cannot be resolved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edits:
    """What injecting devices does to a container, in the order of the devices."""

    env: tuple[str, ...] = ()
    mounts: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Specs:
    """All devices of a directory by qualified name, and the files refused with the reason."""

    devices: Mapping[str, Edits]
    refused: Mapping[str, str]


def read_specs(directory: Path) -> Specs:
    """Return what the library would know after reading a directory; a name in two files is unresolvable."""
    devices: dict[str, Edits] = {}
    refused: dict[str, str] = {}
    clashing: set[str] = set()
    for file in sorted(directory.glob("*.json")) if directory.is_dir() else ():
        try:
            found = parse_spec(file.read_text())
        except FileNotFoundError:
            continue
        except (CdiError, ValueError) as error:
            refused[file.name] = str(error)
            continue
        clashing |= found.keys() & devices.keys()
        devices.update(found)
    return Specs(devices={name: edits for name, edits in devices.items() if name not in clashing}, refused=refused)


def inject(specs: Specs, names: Iterable[str]) -> Edits:
    """Return the edits for devices, each named device once; CdiError names all that cannot be resolved."""
    wanted = tuple(dict.fromkeys(names))
    missing = [name for name in wanted if name not in specs.devices]
    if missing:
        raise CdiError(f"CDI device injection failed: unresolvable CDI devices {', '.join(missing)}")
    return Edits(
        env=tuple(dict.fromkeys(env for name in wanted for env in specs.devices[name].env)),
        mounts=tuple(mount for name in wanted for mount in specs.devices[name].mounts),
    )


def parse_spec(content: str) -> dict[str, Edits]:
    """Return a spec's devices by qualified name; CdiError or ValueError if the library would refuse it."""
    spec: Json = json.loads(content)
    if not isinstance(spec, Mapping):
        raise CdiError("spec is no object")
    _known(spec, _TOP_KEYS, "spec")
    if text(spec, "cdiVersion") not in _VERSIONS:
        raise CdiError(f"unknown version {text(spec, 'cdiVersion')!r}")
    kind = text(spec, "kind")
    vendor, _, device_class = kind.partition("/")
    if not (_VENDOR.fullmatch(vendor) and _VENDOR.fullmatch(device_class)):
        raise CdiError(f"invalid kind {kind!r}")
    version = _VERSIONS.index(text(spec, "cdiVersion"))
    found: dict[str, Edits] = {}
    common = _edits(spec)
    for device in nodes(spec, "devices"):
        name = text(device, "name")
        _known(device, _DEVICE_KEYS, f"device {name!r}")
        if not _DEVICE.fullmatch(name) or (name[0].isdigit() and version < _VERSIONS.index("0.5.0")):
            raise CdiError(f"invalid device name {name!r}")
        if f"{kind}={name}" in found:
            raise CdiError(f"duplicate device {name!r}")
        own = _edits(device)
        if not node(device, "containerEdits"):
            raise CdiError(f"device {name!r} has no edits")
        found[f"{kind}={name}"] = Edits(env=common.env + own.env, mounts=common.mounts + own.mounts)
    if not found:
        raise CdiError("spec has no devices")
    return found


def _edits(holder: Mapping[str, Json]) -> Edits:
    edits = node(holder, "containerEdits")
    _known(edits, _EDIT_KEYS, "containerEdits")
    env = texts(edits, "env")
    for one in env:
        if one.partition("=")[1] != "=" or one.startswith("="):
            raise CdiError(f"invalid environment variable {one!r}")
    mounts: list[tuple[str, str]] = []
    for mount in nodes(edits, "mounts"):
        _known(mount, frozenset({"hostPath", "containerPath", "options", "type"}), "mount")
        mounts.append((text(mount, "hostPath"), text(mount, "containerPath")))
    return Edits(env=env, mounts=tuple(mounts))


def _known(value: Mapping[str, Json], keys: frozenset[str], where: str) -> None:
    unknown = sorted(set(value) - keys)
    if unknown:
        raise CdiError(f"{where}: unknown field {unknown[0]!r}")
