"""The containerd under test: Debian's own build, taken from the archive that this machine's apt already trusts.

Debian 12's containerd has no NRI, so the package comes from a later suite. It is not installed: apt fetches it with a
private list of sources (apt itself checks signatures and hashes), dpkg unpacks it into a cache in the home directory.
runc is the machine's own, since a later one needs a later C library.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import struct
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support import need_program

SUITE = "forky"
"""The first Debian suite with containerd 2.1 (NRI and CDI on by default, recorded in ../shared/data/wire)."""

VERSION = "2.1.*"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
FETCH_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    """Absolute paths of the programs; ``directory`` holds containerd's shim as well and goes in front of PATH."""

    directory: Path
    containerd: Path
    ctr: Path
    runc: Path
    busybox: Path


def need_containerd() -> Binaries:
    """Return the programs, fetched once and cached; skip the test where Debian's archive cannot serve them."""
    runc, busybox = Path(need_program("runc")), Path(need_program("busybox"))
    if not _is_static(busybox.read_bytes()):
        pytest.skip("busybox is not static (Debian: busybox-static)")
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "nodecpu-tests"
    unpacked = home / f"containerd-{SUITE}-{VERSION.rstrip('.*')}"
    if not unpacked.is_dir():
        _fetch(home, unpacked)
    directory = unpacked / "usr" / "bin"
    return Binaries(
        directory=directory, containerd=directory / "containerd", ctr=directory / "ctr", runc=runc, busybox=busybox
    )


def _is_static(program: bytes) -> bool:
    """Tell whether a 64-bit program asks for no interpreter. Source: elf(5), Elf64_Ehdr and PT_INTERP."""
    offset, size, count = struct.unpack_from("=32xQ14xHH", program)
    return all(struct.unpack_from("=I", program, offset + size * index) != (3,) for index in range(count))


def _fetch(home: Path, unpacked: Path) -> None:
    need_program("apt-get")
    need_program("dpkg-deb")
    if not KEYRING.exists():
        pytest.skip("needs Debian's archive keyring to check the containerd package")
    home.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home) as scratch:
        apt = _private_apt(Path(scratch), debian_archive())
        try:
            _run([*apt, "update"], Path(scratch))
            _run([*apt, "download", f"containerd={VERSION}"], Path(scratch))
        except subprocess.CalledProcessError as error:
            pytest.skip(f"containerd {VERSION} of {SUITE} cannot be fetched: {error.stderr.strip() or error}")
        (package,) = Path(scratch).glob("containerd_*.deb")
        tree = Path(scratch) / "tree"
        _run(["dpkg-deb", "--extract", str(package), str(tree)], Path(scratch))
        shutil.move(tree, unpacked)


def debian_archive() -> str:
    """Return the address of Debian's archive as apt is configured here: the one that serves the running release."""
    release = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    listed = subprocess.run(
        ["apt-get", "update", "--print-uris"], check=True, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S
    )
    for line in listed.stdout.splitlines():
        address = shlex.split(line)[0]
        base, found, _ = address.partition(f"/dists/{release}/InRelease")
        if found:
            return base
    pytest.skip("apt has no Debian archive configured")


def _private_apt(scratch: Path, archive: str) -> list[str]:
    """Return an apt-get command line that knows the later suite alone and keeps all it writes below ``scratch``."""
    for directory in ("lists/partial", "archives/partial"):
        (scratch / directory).mkdir(parents=True)
    sources = scratch / "sources.list"
    sources.write_text(f"deb [signed-by={KEYRING}] {archive} {SUITE} main\n")
    options = {
        "Dir::Etc::SourceList": sources,
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::Etc::Preferences": "/dev/null",
        "Dir::Etc::PreferencesParts": "/dev/null",
        "Dir::State::Lists": scratch / "lists",
        "Dir::Cache": scratch,
        "Dir::Cache::Archives": scratch / "archives",
        "Acquire::Languages": "none",
        "APT::Sandbox::User": "root",
    }
    return ["apt-get", "-q", *(f"-o{key}={value}" for key, value in options.items())]


def _run(command: list[str], directory: Path) -> None:
    subprocess.run(command, cwd=directory, check=True, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S)
