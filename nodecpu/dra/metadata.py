"""Device metadata: what a workload can read of the CPUs it was given (D6; KEP-5304).

For each request of a claim one file on the host, bind-mounted into the container by a CDI device of its own. The text
is pure; the files are a worker's. Invariants (C11): the ids that were answered stay resolvable until unprepare,
whatever the configuration says meanwhile; a file is rewritten in place, since a container that mounts it would not see
another one under its name. Source: interfaces.md 2.5; Kubernetes 1.37 dynamic-resource-allocation/api/metadata.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from nodecpu.cpuset import CpuSet
from nodecpu.dra.cdi import CDI_VERSION, CdiDirectory
from nodecpu.dra.claims import parse_claim_uid
from nodecpu.dra.devices import attributes_of, threads_of
from nodecpu.errors import ClaimError, HostError
from nodecpu.ids import ClaimUID
from nodecpu.policy.grants import ClaimGrant, ResultGrant
from nodecpu.topology.model import Topology

API_VERSIONS: Final = ("metadata.resource.k8s.io/v1beta1", "metadata.resource.k8s.io/v1alpha1")
"""The same object is written once in each, newest first: readers of Kubernetes 1.36 know the older one alone."""

_MAX_TEXT: Final = 64
"""Characters of an attribute's text. Source: resource/v1 DeviceAttribute, by which readers may check the file."""

_IN_CONTAINER: Final = "/var/run/kubernetes.io/dra-device-attributes"

Value = bool | int | str | tuple[int, ...]
Describe = Callable[[CpuSet], Mapping[str, Value]]
"""Tells the attributes of CPUs."""


def describer(topology: Topology, driver: str) -> Describe:
    """Return what tells of a machine's CPUs: what holds for all of them, and lists with one entry per CPU.

    The lists are in the order of ``cpuIDs``; -1 stands for what is not known. Core ids are unique within the die, die
    ids within the socket. ``cpuset`` is left out where it is longer than an attribute may be.
    """

    threads = threads_of(topology)

    def describe(cpus: CpuSet) -> Mapping[str, Value]:
        known = [topology.cpus[cpu] for cpu in cpus if cpu in topology.cpus]
        told: dict[str, Value] = dict(attributes_of(topology, threads, cpus, driver))
        told[f"{driver}/numCPUs"] = len(cpus)
        if len(text := str(cpus)) <= _MAX_TEXT:
            told[f"{driver}/cpuset"] = text
        if known:
            told |= {
                f"{driver}/cpuIDs": tuple(cpu.id for cpu in known),
                f"{driver}/coreIDs": tuple(cpu.core for cpu in known),
                f"{driver}/cacheL3IDs": tuple(-1 if cpu.l3_id is None else cpu.l3_id for cpu in known),
                f"{driver}/numaNodeIDs": tuple(cpu.numa for cpu in known),
                f"{driver}/dieIDs": tuple(cpu.die for cpu in known),
                f"{driver}/socketIDs": tuple(cpu.package for cpu in known),
            }
        return told

    return describe


def metadata_ids(driver: str, uid: ClaimUID, results: Iterable[ResultGrant]) -> tuple[str, ...]:
    """Return the CDI names of a claim's metadata, one for each request (base names), in their order."""
    requests = dict.fromkeys(result.base_request for result in results)
    return tuple(f"{_kind(driver)}={uid}_{request}" for request in requests)


def requests_of(driver: str, grant: ClaimGrant) -> Mapping[str, str]:
    """Return the metadata ids that were answered for a claim, by request."""
    prefix = f"{_kind(driver)}={grant.uid}_"
    return {one.removeprefix(prefix): one for one in grant.cdi_ids if one.startswith(prefix)}


def container_path(driver: str, grant: ClaimGrant, request: str) -> str:
    """Return where a container finds a request's metadata."""
    by = ("resourceclaimtemplates", grant.pod_claim) if grant.pod_claim else ("resourceclaims", grant.name)
    return f"{_IN_CONTAINER}/{by[0]}/{by[1]}/{request}/{driver}-metadata.json"


def metadata_text(driver: str, grant: ClaimGrant, request: str, describe: Describe, *, generation: int) -> bytes:
    """Return the content of a request's file: one JSON object and a newline for each version, newest first."""
    named: dict[str, list[object]] = {}
    for result in grant.results:
        if result.base_request == request:
            attributes = {name: _typed(value) for name, value in sorted(describe(result.cpus).items())}
            device = {"driver": driver, "pool": result.pool, "name": result.device, "attributes": attributes}
            named.setdefault(result.request, []).append(device)
    about = {"name": grant.name, "namespace": grant.namespace, "uid": grant.uid, "generation": generation}
    written: dict[str, object] = {"kind": "DeviceMetadata", "metadata": about}
    if grant.pod_claim:
        written["podClaimName"] = grant.pod_claim
    written["requests"] = [{"name": name, "devices": devices} for name, devices in named.items()]
    return b"".join(msgspec.json.encode({"apiVersion": version, **written}) + b"\n" for version in API_VERSIONS)


def _typed(value: Value) -> Mapping[str, object]:
    if isinstance(value, bool):
        return {"bool": value}
    if isinstance(value, int):
        return {"int": value}
    return {"string": value} if isinstance(value, str) else {"ints": value}


def _kind(driver: str) -> str:
    return f"{driver}/metadata"


class _About(msgspec.Struct, frozen=True, kw_only=True):
    generation: int = 0


class _Written(msgspec.Struct, frozen=True, kw_only=True):
    metadata: _About = _About()


class MetadataFiles:
    """The files of all claims. Blocking: for the worker thread. Raises HostError.

    Claims have directories by their UIDs: one that was deleted and made anew is another.
    """

    def __init__(self, cdi: CdiDirectory, directory: Path, *, driver: str, describe: Describe) -> None:
        """``directory`` is the plugin's, below the kubelet's."""
        self._cdi = cdi
        self._root = directory / "dra-device-metadata"
        self._driver = driver
        self._describe = describe
        self._prefix = f"{driver}_metadata_"

    def describe_by(self, describe: Describe) -> None:
        """Have CPUs described by another machine from now on."""
        self._describe = describe

    def write(self, grant: ClaimGrant) -> None:
        """Write what was answered for a claim, where it is not there as it should be."""
        for request in requests_of(self._driver, grant):
            path = self._root / parse_claim_uid(grant.uid) / f"{request}.json"
            self._write_host(path, grant, request)
            self._cdi.put(self._spec_name(grant.uid, request), self._spec(grant, request, path))

    def remove(self, uid: ClaimUID) -> None:
        """Remove a claim's specs, then its files; none is fine."""
        directory = self._root / parse_claim_uid(uid)
        try:
            # By its own small directory: that of the specs has those of all claims.
            for path in directory.iterdir():
                self._cdi.drop(self._spec_name(uid, path.stem))
                path.unlink()
            directory.rmdir()
        except FileNotFoundError:
            pass
        except OSError as error:
            raise _failed(directory, error) from error

    def restore(self, grants: Iterable[ClaimGrant], *, used: Collection[ClaimUID] | None = None) -> None:
        """Write what the claims should have; with ``used``, the claims in use, remove what is nobody's (C11)."""
        kept = set(used or ())
        for grant in grants:
            kept.add(grant.uid)
            if not grant.released and not grant.unproven:
                self.write(grant)
        if used is not None:
            for uid in sorted(self._known() - kept):
                self._remove_specs(uid)
                self.remove(uid)

    def _remove_specs(self, uid: ClaimUID) -> None:
        """Remove a claim's specs by their names, whether there are files for them or not."""
        for name in self._cdi.names():
            if name.startswith(f"{self._prefix}{uid}_"):
                self._cdi.drop(name)

    def _spec_name(self, uid: ClaimUID, request: str) -> str:
        return f"{self._prefix}{uid}_{request}.json"

    def _known(self) -> set[ClaimUID]:
        names = [name.removeprefix(self._prefix) for name in self._cdi.names() if name.startswith(self._prefix)]
        with contextlib.suppress(OSError):
            names += [path.name for path in self._root.iterdir()]
        found: set[ClaimUID] = set()
        for name in names:
            with contextlib.suppress(ClaimError):
                found.add(parse_claim_uid(name.partition("_")[0]))
        return found

    def _spec(self, grant: ClaimGrant, request: str, path: Path) -> bytes:
        mount = {
            "hostPath": str(path),
            "containerPath": container_path(self._driver, grant, request),
            "options": ["ro", "bind"],
        }
        device = {"name": f"{grant.uid}_{request}", "containerEdits": {"mounts": [mount]}}
        spec = {"cdiVersion": CDI_VERSION, "kind": _kind(self._driver), "devices": [device]}
        return msgspec.json.format(msgspec.json.encode(spec), indent=2) + b"\n"

    def _write_host(self, path: Path, grant: ClaimGrant, request: str) -> None:
        def text(generation: int) -> bytes:
            return metadata_text(self._driver, grant, request, self._describe, generation=generation)

        try:
            if not path.parent.is_dir():
                for directory in (path.parent,) if self._root.is_dir() else (self._root, path.parent):
                    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
                    directory.chmod(0o755)  # whatever the umask
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with os.fdopen(os.open(path, flags, 0o644), "r+b") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise HostError(f"{path} is not a regular file", hint="remove it")
                os.fchmod(file.fileno(), 0o644)
                old = file.read()
                generation = _generation(old)
                if generation and old == text(generation):
                    return
                file.seek(0)
                file.write(text(generation + 1))
                file.truncate()
        except OSError as error:
            raise _failed(path, error) from error


def _generation(text: bytes) -> int:
    try:
        return max(0, msgspec.json.decode(text.partition(b"\n")[0], type=_Written).metadata.generation)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return 0


def _failed(path: Path, error: OSError) -> HostError:
    return HostError(f"device metadata {path}: {error.strerror}", hint="the kubelet's directory has to be writable")
