"""The disk of the virtual machine: Debian with its own containerd, made once and kept with its kernel and a key.

A later containerd lies beside it, for a node that is brought up to date. What the machine needs beyond the package is
on the disk, since it has no network. It is made anew when what goes into it changes.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.containerd import binaries, image
from tests.containerd.binaries import Binaries, need_containerd
from tests.e2e.machine import MAKE_TIMEOUT_S, SUITE, bootstrap, locked_cache, need_bootstrap
from tests.support import need_program

PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "udev", "linux-image-cloud-amd64", "initramfs-tools", "zstd"),
    *("openssh-server", "python3", "python3-apt", "iproute2", "busybox-static", "containerd", "runc"),
)
SIZE = "3G"
HOST = "n4c16"
ADDRESS = "10.0.2.15"
"""The first that QEMU's own network gives; the machine has it without asking. Source: QEMU, ``-netdev user``."""

IMAGE_FILE = "/var/lib/test-image.tar"
_ENABLED = ("systemd-networkd", "systemd-networkd-wait-online", "ssh", "containerd")
_MASKED = (
    *("apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer", "fstrim.timer"),
    *("getty@tty1.service", "serial-getty@ttyS0.service", "systemd-networkd-persistent-storage.service"),
    *("modprobe@configfs.service", "modprobe@drm.service", "modprobe@efi_pstore.service", "modprobe@fuse.service"),
    *("dev-hugepages.mount", "dev-mqueue.mount", "sys-fs-fuse-connections.mount", "sys-kernel-config.mount"),
    *("sys-kernel-debug.mount", "sys-kernel-tracing.mount", "proc-sys-fs-binfmt_misc.automount"),
    *("systemd-binfmt.service", "systemd-pstore.service", "systemd-journal-catalog-update.service"),
    *("ldconfig.service", "systemd-sysusers.service", "systemd-update-done.service"),
)
"""What nobody here needs: each is a process or more that an emulated CPU has to start."""

_MODULES = ("virtio_pci", "virtio_blk", "ext4")
"""All that the first stage has to load: it is unpacked by an emulated CPU."""

LATER_CONTAINERD = "/opt/containerd-later/bin"
"""Programs of a later containerd, which nothing runs by itself."""

_CONTAINERD = f"""
    sandbox_image = "{image.IMAGE}"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = true
  [plugins."io.containerd.nri.v1.nri"]
    plugin_registration_timeout = "60s"
    plugin_request_timeout = "30s"
"""
"""What a node of a Kubernetes cluster has beyond the package's own file. Seconds of an emulated CPU are short: nothing
may be given up for being slow. NRI and CDI are as they come: off."""

_CRI_TABLE = '[plugins."io.containerd.grpc.v1.cri"]\n'
_FILES = {
    "etc/hostname": f"{HOST}\n",
    "etc/hosts": f"127.0.0.1 localhost {HOST}\n",
    "etc/machine-id": f"{hashlib.md5(HOST.encode(), usedforsecurity=False).hexdigest()}\n",
    "etc/fstab": "/dev/vda / ext4 noatime 0 0\n",
    "etc/systemd/network/eth0.network": (
        f"[Match]\nName=eth0\n[Network]\nAddress={ADDRESS}/24\nLinkLocalAddressing=no\n"
    ),
    "etc/dpkg/dpkg.cfg.d/unsafe-io": "force-unsafe-io\n",
    "etc/ssh/sshd_config.d/machine.conf": "UseDNS no\nPermitRootLogin prohibit-password\n",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """Files of the machine, none of which is ever written again; ``place`` may take snapshots made of it."""

    place: Path
    image: Path
    kernel: Path
    initrd: Path
    key: Path


def need_disk() -> Disk:
    """Return the machine's disk, made once; skip the test where Debian's archive cannot serve it."""
    need_bootstrap()
    for program in ("mke2fs", "ssh-keygen"):
        need_program(program)
    programs = need_containerd()
    with locked_cache("vm.lock") as home:
        place = home / f"vm-{SUITE}-{_recipe()}"
        if not place.is_dir():
            for old in home.glob(f"vm-{SUITE}-*"):
                shutil.rmtree(old)
            with tempfile.TemporaryDirectory(prefix="vm-new-", dir=home) as scratch:
                made = Path(scratch) / "disk"
                made.mkdir()
                _make(made, programs)
                made.rename(place)
    return Disk(
        place=place,
        image=place / "disk.img",
        kernel=place / "vmlinuz",
        initrd=place / "initrd.img",
        key=place / "key",
    )


def _recipe() -> str:
    """Return a name for what goes into a disk."""
    parts = (PACKAGES, SIZE, _ENABLED, _MASKED, _MODULES, _CONTAINERD, _FILES, IMAGE_FILE, LATER_CONTAINERD)
    programs = Path(image.__file__).read_text() + binaries.SUITE + binaries.VERSION
    return hashlib.sha256(f"{json.dumps(parts)} {programs}".encode()).hexdigest()[:12]


def _make(place: Path, programs: Binaries) -> None:
    root = place / "root"
    key = place / "key"
    _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", HOST, "-f", str(key))
    bootstrap(root, PACKAGES, f"--essential-hook={_small_initrd(place)}")
    for name, text in _FILES.items():
        _write(root / name, text)
    _write(root / "root/.ssh/authorized_keys", key.with_suffix(".pub").read_text(), mode=0o600)
    _add_containerd(root, programs)
    _run("systemctl", "-q", f"--root={root}", "enable", *_ENABLED)
    _run("systemctl", "-q", f"--root={root}", "mask", *_MASKED)
    for name in ("vmlinuz", "initrd.img"):
        (found,) = (root / "boot").glob(f"{name}-*")
        shutil.copy(found, place / name)
    _run("mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-d", str(root), str(place / "disk.img"), SIZE)
    shutil.rmtree(root)


def _small_initrd(place: Path) -> str:
    """Return a command, given the tree, that has the initial file system made of a few modules."""
    hook = place / "hook"
    lines = (
        "set -e",
        'mkdir -p "$1/etc/initramfs-tools/conf.d" "$1/usr/share/initramfs-tools/modules.d"',
        'echo MODULES=list > "$1/etc/initramfs-tools/conf.d/machine"',
        f'printf "%s\\n" {" ".join(_MODULES)} > "$1/usr/share/initramfs-tools/modules.d/machine"',
    )
    hook.write_text("\n".join(lines) + "\n")
    return f'sh {hook} "$1"'


def _add_containerd(root: Path, programs: Binaries) -> None:
    """Set the package's containerd up as a node's is, and lay a later one beside it."""
    later = root / LATER_CONTAINERD.lstrip("/")
    later.mkdir(parents=True)
    for name in ("containerd", "containerd-shim-runc-v2", "ctr"):
        shutil.copy(programs.directory / name, later)
    file = root / "etc/containerd/config.toml"
    stock = file.read_text()
    assert stock.count(_CRI_TABLE) == 1, stock
    file.write_text(stock.replace(_CRI_TABLE, _CRI_TABLE + _CONTAINERD.lstrip("\n")))
    image.write_image(programs.busybox, root / IMAGE_FILE.lstrip("/"))


def _write(path: Path, text: str, *, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.touch(mode)
    path.write_text(text)


def _run(*command: str) -> None:
    done = subprocess.run(
        command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=MAKE_TIMEOUT_S
    )
    assert done.returncode == 0, f"{command}: {done.stdout}"
