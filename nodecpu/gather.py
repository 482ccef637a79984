"""What somebody who helps needs of a node, in one archive (shell, read-only).

No secrets: settings are told as they are in force, never a configuration file as it stands, and no kubeconfig, no
environment, no command line. ``sys`` lies at the top, so that ``nodecpu lab --from ARCHIVE`` plays on this machine.
Equal states give equal archives.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import platform
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from nodecpu import __version__
from nodecpu.config import Config
from nodecpu.errors import HostError, NodeCpuError
from nodecpu.preflight.files import read_text
from nodecpu.preflight.runtime import Run, run_program
from nodecpu.topology.files import KernelFiles
from nodecpu.topology.sysfs import topology_of

NOTES: Final = "nodecpu-gather"
"""The directory of everything that is not the machine."""

_MOST_FILES: Final = 200_000
_MOST_BYTES: Final = 1 << 16
_LOG_LINES: Final = 5000

_CPU: Final = "sys/devices/system/cpu"
_BESIDE: Final = (
    f"{_CPU}/*",
    f"{_CPU}/cpu[0-9]*/topology/*",
    f"{_CPU}/cpu[0-9]*/cache/index*/*",
    f"{_CPU}/smt/*",
    "sys/devices/system/node/*",
    "sys/devices/system/node/node[0-9]*/*",
)
"""Read beside what the discovery reads, so that a later version finds what it wants to know."""

_LEFT_OUT: Final = ("uevent", "hotplug", "crash_notes", "crash_notes_size", "probe", "release", "compact")

_CPUSET: Final = (
    *("cpuset.cpus", "cpuset.mems", "cpuset.cpus.effective", "cpuset.mems.effective", "cpuset.cpus.partition"),
    *("cpuset.effective_cpus", "cpuset.effective_mems", "cpu.max", "cpu.weight", "cpu.cfs_quota_us", "cpu.shares"),
)

_PACKAGES: Final = ("grpcio", "kubernetes", "msgspec", "protobuf", "prometheus-client", "sdnotify", "rich", "tomli-w")

Told = Callable[[str, int, int], None]
"""Hears what is being read, and how much of it has been out of how much; 0 out of 0 for what is read in one go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notes:
    """What the command line found out beside: texts by file name, all JSON or TOML."""

    texts: tuple[tuple[str, str], ...]


def gather(target: Path, config: Config, notes: Notes, *, run: Run = run_program, told: Told = lambda *_: None) -> int:
    """Write the archive, readable by its owner alone, and return how many files are in it.

    Raises HostError if ``target`` is there already or cannot be written.
    """
    try:
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise HostError(f"{target} is there already", hint="remove it, or give another --output") from error
    except OSError as error:
        raise HostError(f"{target} cannot be written: {error.strerror or error}", hint="give --output") from error
    try:
        with os.fdopen(fd, "wb") as raw:
            return _write(raw, _files(config, notes, run, told))
    except BaseException as error:
        target.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise HostError(f"{target} cannot be written: {error.strerror or error}") from error
        raise


def _write(raw: io.BufferedWriter, files: Iterable[tuple[str, bytes]]) -> int:
    with (
        gzip.GzipFile(fileobj=raw, mode="wb", filename="", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, data in files:
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o644
            archive.addfile(member, io.BytesIO(data))
        return len(archive.getmembers())


def _files(config: Config, notes: Notes, run: Run, told: Told) -> Iterator[tuple[str, bytes]]:
    told("settings, state and checks", 0, 0)
    for name, text in notes.texts:
        yield f"{NOTES}/{name}", text.encode()
    told("versions", 0, 0)
    yield f"{NOTES}/versions.txt", _versions(run).encode()
    told("cgroups", 0, 0)
    yield f"{NOTES}/cgroups.txt", "".join(_cgroups(config.paths.cgroup)).encode()
    for path in sorted(config.paths.cdi.glob("*.json")):
        if path.name.startswith(config.dra.driver):
            yield f"{NOTES}/cdi/{path.name}", (read_text(path) or "").encode()
    for name in ("cpu_manager_state", "memory_manager_state"):
        if (kept := read_text(config.paths.kubelet / name)) is not None:
            yield f"{NOTES}/kubelet/{name}", kept.encode()
    told("journal", 0, 0)
    lines = run(("journalctl", "--unit=nodecpu", f"--lines={_LOG_LINES}", "--no-pager", "--output=short-iso-precise"))
    if lines:
        yield f"{NOTES}/journal.txt", lines.encode()
    yield from _machine(config.paths.root, told)


def _versions(run: Run) -> str:
    """Return versions of what matters here, a line each."""
    lines = [f"nodecpu {__version__}", f"python {platform.python_version()}", f"kernel {platform.release()}"]
    lines += [f"machine {platform.machine()}"]
    try:
        release = platform.freedesktop_os_release()
        lines.append(f"system {release.get('PRETTY_NAME', '')}")
    except OSError:
        lines.append("system unknown")
    for name in _PACKAGES:
        try:
            lines.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            lines.append(f"{name} not installed")
    for command in (
        ("containerd", "--version"),
        ("crio", "--version"),
        ("kubelet", "--version"),
        ("runc", "--version"),
    ):
        if text := run(command).strip():
            lines.append(text.splitlines()[0])
    return "".join(f"{line}\n" for line in lines)


def _cgroups(root: Path) -> Iterator[str]:
    """Yield a line per cpuset file of the pods' cgroups and of those above them."""
    base = root if (root / "cgroup.controllers").exists() else root / "cpuset"
    yield from _cgroup(base, base)
    for top in ("kubepods.slice", "kubepods"):
        for directory, names, _ in os.walk(base / top):
            names.sort()
            yield from _cgroup(base, Path(directory))


def _cgroup(base: Path, directory: Path) -> Iterator[str]:
    for name in _CPUSET:
        if (text := read_text(directory / name)) is not None:
            yield f"/{directory.relative_to(base)}/{name}: {' '.join(text.split())}\n".replace("/./", "/")


class _Recorder(KernelFiles):
    """Keeps what was read, by path."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.read: dict[str, bytes] = {}

    def _bytes(self, path: str) -> bytes:
        data = super()._bytes(path)
        self.read[path] = data + b"\n"
        return data


def _machine(root: Path, told: Told) -> Iterator[tuple[str, bytes]]:
    """Yield what the discovery reads of the machine, and more of the same."""
    told("machine", 0, 0)
    with _Recorder(root) as files:
        with contextlib.suppress(NodeCpuError):  # what could be read is the interesting part then
            topology_of(files)
        found = files.read
        beside = list(_beside(root))
        for number, path in enumerate(beside, 1):
            told("machine", number, len(beside))
            name = str(path.relative_to(root))
            if name not in found and len(found) < _MOST_FILES and (data := _small(path)) is not None:
                found[name] = data
    yield from sorted(found.items())


def _beside(root: Path) -> Iterator[Path]:
    for pattern in _BESIDE:
        for path in root.glob(pattern):
            if path.name not in _LEFT_OUT:
                yield path


def _small(path: Path) -> bytes | None:
    """Return a plain file that everybody may read; None for anything else."""
    try:
        found = path.lstat()
        if not stat.S_ISREG(found.st_mode) or not found.st_mode & stat.S_IROTH:
            return None
        with path.open("rb") as file:
            return file.read(_MOST_BYTES)
    except OSError:
        return None
