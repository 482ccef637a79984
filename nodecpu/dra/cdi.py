"""CDI specs: the text of a claim's spec (pure), and the directory that holds them (thin, synchronous; a worker's).

One file per claim, ``<driver>-cpu_<claim uid>.json``, with one device per allocation result, in their order. Invariants
(C11): each CDI id ever answered for a live claim resolves; a file is complete or not there; only files of our own name
are touched. Nothing is synced to the disk: the files are rebuilt from the books at start, whatever a crash left.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from nodecpu.cpuset import CpuSet, union
from nodecpu.dra.claims import parse_claim_uid
from nodecpu.errors import ClaimError, HostError
from nodecpu.failpoints import reach
from nodecpu.ids import ClaimUID
from nodecpu.policy.grants import ClaimGrant, ResultGrant

CDI_VERSION: Final = "0.5.0"
"""The lowest version that allows device names which begin with a digit; newer ones are refused by older runtimes."""

CLAIM_VARIABLE: Final = "DRA_CPUSET_"
"""What the names of all variables begin with that tell a container its claimed CPUs."""

_ADMIN_VARIABLE: Final = "DRA_ADMIN_"
_MODE: Final = 0o644


def cdi_kind(driver: str) -> str:
    """Return the CDI kind, vendor and class, of the driver's devices."""
    return f"{driver}/cpu"


def cdi_ids(driver: str, grant: ClaimGrant) -> tuple[str, ...]:
    """Return the qualified CDI name of each of the claim's results, in their order."""
    return tuple(f"{cdi_kind(driver)}={_device_name(grant.uid, index)}" for index in range(len(grant.results)))


def claim_variable(uid: ClaimUID, request: str | None = None) -> str:
    """Return the name of the variable that holds a claim's CPUs, or those of one request (``main`` or ``main/sub``)."""
    whole = f"{CLAIM_VARIABLE}{uid}"
    return whole if request is None else f"{whole}_{request.replace('/', '_').replace('-', '_')}"


def spec_text(driver: str, grant: ClaimGrant) -> bytes:
    """Return the claim's CDI spec; equal grants give equal bytes.

    An adminAccess result pins nobody (C13), but a device's edits must not be empty: its device says in DRA_ADMIN_<uid>
    which device is observed. An id answered earlier that no result stands for any more gets the whole claim's variable.
    Source: CDI SPEC.md; interfaces.md 4.
    """
    devices = [_device(grant, index, result) for index, result in enumerate(grant.results)]
    current = set(cdi_ids(driver, grant))
    prefix = f"{cdi_kind(driver)}="
    for answered in grant.cdi_ids:
        if answered.startswith(prefix) and answered not in current:
            devices.append(_edits(answered.removeprefix(prefix), [_assign(claim_variable(grant.uid), grant.cpus)]))
    spec = {"cdiVersion": CDI_VERSION, "kind": cdi_kind(driver), "devices": devices}
    return msgspec.json.format(msgspec.json.encode(spec), indent=2) + b"\n"


def _device_name(uid: ClaimUID, index: int) -> str:
    return f"claim-{uid}-{index}"


def _device(grant: ClaimGrant, index: int, result: ResultGrant) -> dict[str, object]:
    name = _device_name(grant.uid, index)
    if result.admin_access:
        return _edits(name, [f"{_ADMIN_VARIABLE}{grant.uid}={result.device}"])
    variable = claim_variable(grant.uid, result.request)
    # Several results of one request, and requests whose names fall together here, share a variable: it holds them all.
    request_cpus = union(r.cpus for r in grant.results if claim_variable(grant.uid, r.request) == variable)
    return _edits(name, [_assign(claim_variable(grant.uid), grant.cpus), _assign(variable, request_cpus)])


def _edits(name: str, env: list[str]) -> dict[str, object]:
    return {"name": name, "containerEdits": {"env": env}}


def _assign(variable: str, cpus: CpuSet) -> str:
    return f"{variable}={cpus}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a restore had to do."""

    written: tuple[ClaimUID, ...]
    removed: tuple[ClaimUID, ...]


class CdiDirectory:
    """The directory of CDI specs that the runtimes read. Blocking: for the worker thread. Raises HostError."""

    def __init__(self, path: Path, *, driver: str) -> None:
        self._path = path
        self._driver = driver
        self._prefix = f"{driver}-cpu_"

    def write(self, grant: ClaimGrant) -> bool:
        """Write the claim's spec unless it is there as it should be; return whether it was written.

        A claim without results has none.
        """
        if not grant.results:
            return False
        return self.put(self._file_name(grant.uid), spec_text(self._driver, grant))

    def put(self, name: str, text: bytes) -> bool:
        """Write a file of the directory unless it is there as it should be; return whether it was written."""
        with self._translated(name), self._opened() as directory:
            if self._is_current(directory, name, text):
                return False
            # Runtimes notice a rename within the directory, not a file moved in from elsewhere. Source: CDI watch.go.
            temporary = f"{name}.tmp"
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=directory)
            try:
                reach("cdi-write")
                self._create(directory, temporary, text)
                reach("cdi-written")
                os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
                reach("cdi-renamed")
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(temporary, dir_fd=directory)
                raise
        return True

    def remove(self, uid: ClaimUID) -> None:
        """Remove the claim's spec; one that is not there is fine."""
        reach("cdi-remove")
        self._unlink(self._file_name(uid))
        reach("cdi-removed")

    def names(self) -> list[str]:
        """Return the names of all files of the directory."""
        return self._names()

    def drop(self, name: str) -> None:
        """Remove a file of the directory; one that is not there is fine."""
        self._unlink(name)

    def claims(self) -> tuple[ClaimUID, ...]:
        """Return the UIDs of the claims that have a spec here, sorted."""
        return tuple(sorted(uid for name in self._names() if (uid := self._claim_of(name)) is not None))

    def restore(self, grants: Iterable[ClaimGrant], *, used: Collection[ClaimUID] | None = None) -> Restored:
        """Write the specs of these claims, released ones excepted, where they differ; then remove orphans of ours.

        ``used`` are the claims that containers of the runtime hold, whether the books know them or not: their specs
        stay, or a restart of those containers would fail (C11). None: the runtime is not known yet, nothing is removed
        but what an interrupted write of ours left.
        """
        grants = tuple(grants)
        live = {grant.uid: grant for grant in grants if grant.results and not grant.released and not grant.unproven}
        written = tuple(sorted(uid for uid, grant in live.items() if self.write(grant)))
        kept = {*live, *(grant.uid for grant in grants if grant.unproven), *(used or ())}
        removed = () if used is None else tuple(uid for uid in self.claims() if uid not in kept)
        for uid in removed:
            self.remove(uid)
        for name in self._names():
            if name.endswith(".tmp") and self._claim_of(name.removesuffix(".tmp")) is not None:
                self._unlink(name)
        return Restored(written=written, removed=removed)

    def _names(self) -> list[str]:
        with self._translated("*"), contextlib.suppress(FileNotFoundError):
            return [path.name for path in self._path.iterdir()]
        return []

    def _unlink(self, name: str) -> None:
        with self._translated(name), contextlib.suppress(FileNotFoundError), self._opened() as directory:
            os.unlink(name, dir_fd=directory)

    def _file_name(self, uid: ClaimUID) -> str:
        return f"{self._prefix}{parse_claim_uid(uid)}.json"

    def _claim_of(self, name: str) -> ClaimUID | None:
        if not (name.startswith(self._prefix) and name.endswith(".json")):
            return None
        try:
            return parse_claim_uid(name.removeprefix(self._prefix).removesuffix(".json"))
        except ClaimError:
            return None

    @contextlib.contextmanager
    def _translated(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise HostError(
                f"CDI spec {self._path / name}: {error.strerror}",
                hint="the directory has to be writable, have room, and be one of the runtime's cdi_spec_dirs",
            ) from error

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            directory = os.open(self._path, flags)
        except FileNotFoundError:
            self._path.mkdir(mode=0o755, parents=True, exist_ok=True)
            directory = os.open(self._path, flags)
        try:
            yield directory
        finally:
            os.close(directory)

    @staticmethod
    def _is_current(directory: int, name: str, text: bytes) -> bool:
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
        except OSError:
            return False
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or stat.S_IMODE(found.st_mode) != _MODE:
                return False
            return os.read(descriptor, len(text) + 1) == text
        finally:
            os.close(descriptor)

    @staticmethod
    def _create(directory: int, name: str, text: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(name, flags, _MODE, dir_fd=directory), "wb") as file:
            os.fchmod(file.fileno(), _MODE)  # whatever the umask
            file.write(text)
