"""How the container runtime is set up: NRI, CDI, its version (shell, read-only; E2)."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nodecpu.ending import HELD_OFF
from nodecpu.nri.versions import CONTAINERD_SHOWS_CDI, DEADLOCK_FIX, RuntimeVersion, runtime_version
from nodecpu.preflight.files import NOTHING, Values, merged, part, read_toml, texts
from nodecpu.preflight.finding import Finding, failed, ok, unknown, warning

_CDI_DEFAULT: Final = ("/etc/cdi", "/var/run/cdi")
"""Source: containerd and CRI-O defaults of cdi_spec_dirs; interfaces.md, CDI in runtimes."""

_CONTAINERD: Final = (
    "etc/containerd/config.toml",
    "var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "var/lib/rancher/rke2/agent/etc/containerd/config.toml",
)
_CRIO: Final = ("etc/crio/crio.conf", "etc/crio/crio.conf.d/*.conf")
_MOST_IMPORTS: Final = 64
_MOST_OUTPUT: Final = 16 << 20

# Plugin tables of containerd's configuration, of version 3 and of version 2.
_CRI: Final = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")
_NRI: Final = "io.containerd.nri.v1.nri"
_OLD_FORMS: Final = (1, 2)
"""Versions of containerd's configuration with the older table; a file that says none is of version 1.

Source: containerd docs/PLUGINS.md, version header.
"""

Run = Callable[[Sequence[str]], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """What its configuration files say; None: nothing. ``files`` are those that were read, as paths of the host.

    ``wrong`` are those that are no TOML. ``nri_disabled``: NRI is off by its plugin's name among ``disabled_plugins``.
    ``cri_table`` is the plugin whose table these files have, by their version.
    """

    name: str
    files: tuple[str, ...]
    wrong: tuple[str, ...] = ()
    nri_disabled: bool = False
    cri_table: str = ""
    nri: bool | None = None
    cdi: bool | None = None
    cdi_dirs: tuple[str, ...] | None = None


def read_runtimes(root: Path) -> tuple[Runtime, ...]:
    """Return the runtimes that are configured below a root; those that run on their defaults leave no trace."""
    found = []
    for name in _CONTAINERD:
        files, wrong, config = _with_imports(root, name)
        if files:
            found.append(_containerd(config, files, wrong))
    crio: Values = NOTHING
    names, bad = [], []
    for path in sorted(path for pattern in _CRIO for path in root.glob(pattern)):
        values = read_toml(path)
        crio = merged(crio, values or NOTHING)
        names.append(_on_host(root, path))
        bad += [names[-1]] if values is None else []
    if names:
        nri = part(crio, "crio", "nri").get("enable_nri")
        found.append(
            Runtime(
                name="cri-o",
                files=tuple(names),
                wrong=tuple(bad),
                nri=nri if isinstance(nri, bool) else None,
                cdi=True,
                cdi_dirs=texts(part(crio, "crio", "runtime"), "cdi_spec_dirs"),
            )
        )
    return tuple(found)


def version_of(run: Run, names: Iterable[str] = ("containerd", "crio")) -> RuntimeVersion | None:
    """Return the version of a runtime's program, for when none is connected; None if no program tells."""
    for name in names:
        match = re.search(r"\bv?(\d+\.\d+\.\d+\S*)", run((name, "--version")))
        if match is not None:
            return runtime_version("cri-o" if name == "crio" else name, match[1], "")
    return None


def run_program(command: Sequence[str]) -> str:
    """Return what a program prints, within some seconds; empty if it cannot be run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=15, check=False, errors="replace")
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout[:_MOST_OUTPUT]


def runtime_findings(runtimes: Sequence[Runtime], version: RuntimeVersion | None, cdi: Path) -> Iterator[Finding]:
    """Yield what is right and wrong with the runtime that runs, or with all that are configured if none is known."""
    mine = [one for one in runtimes if version is None or one.name == version.name]
    yield _version(version)
    if not mine:
        text = "no configuration file of a runtime was found: its defaults hold"
        yield unknown("CDI in the runtime", text, f"see that CDI is on and {cdi} is among its directories")
        return
    for one in mine:
        yield from _configured(one, version, cdi)


def nri_finding(path: Path, runtimes: Sequence[Runtime], version: RuntimeVersion | None) -> Finding:
    """Return whether somebody answers at the NRI socket; for when the daemon is not connected to it itself."""
    try:
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(2)
            peer.connect(str(path))
    except OSError as error:
        off = any(one.nri is False for one in runtimes)
        seen = f"{path}: {error.strerror or error}" + ("; NRI is off in its configuration" if off else "")
        return failed("NRI socket", seen, _nri_remedy("cri-o" if _is_crio(runtimes, version) else "containerd"))
    return ok("NRI socket", f"{path} answers")


def link_finding(path: Path, runtimes: Sequence[Runtime], version: RuntimeVersion | None, away: str) -> Finding:
    """Return whether the daemon is connected to the NRI socket; ``away`` says how it is not."""
    if not away:
        return ok("NRI socket", f"{path}: connected")
    if away.startswith(HELD_OFF):
        return warning(
            "NRI socket", f"{path}: {away}", "wait for that, or set nri.hold_off_s lower and restart nodecpu"
        )
    remedy = _nri_remedy("cri-o" if _is_crio(runtimes, version) else "containerd")
    return failed("NRI socket", f"{path}: {away}", remedy)


def _is_crio(runtimes: Sequence[Runtime], version: RuntimeVersion | None) -> bool:
    return (version.name if version else runtimes[0].name if runtimes else "") == "cri-o"


def _nri_remedy(name: str) -> str:
    if name == "cri-o":
        return "start CRI-O, and set enable_nri = true in [crio.nri] of a file in /etc/crio/crio.conf.d; restart it"
    return f"start containerd, and set disable = false in [plugins.'{_NRI}'] of its config.toml; restart it"


def _version(version: RuntimeVersion | None) -> Finding:
    check = "runtime version"
    if version is None:
        return unknown(check, "no runtime is connected, and none of its programs tells")
    seen = f"{version.name} {version.version}"
    if version.nri is None:
        return unknown(check, f"{seen}: its NRI is not known; taken for an old one", "containerd 2.0 or later is known")
    nri = ".".join(str(number) for number in version.nri)
    if version.safe_unsolicited and (version.shows_cdi or version.name != "containerd"):
        return ok(check, f"{seen}, NRI {nri}")
    faults = []
    if not version.safe_unsolicited:
        fix = ".".join(str(number) for number in DEADLOCK_FIX)
        faults.append(f"NRI {nri} may deadlock on updates that answer no request, mended in {fix}: none are sent")
    if version.name == "containerd" and not version.shows_cdi:
        shows = ".".join(str(number) for number in CONTAINERD_SHOWS_CDI)
        faults.append(f"it shows no CDI devices, {shows} does: claims are told by variables")
    return warning(check, f"{seen}: {'; '.join(faults)}", "works, since both are worked around; upgrade when you can")


def _configured(one: Runtime, version: RuntimeVersion | None, cdi: Path) -> Iterator[Finding]:
    old = version is not None and version.name == "containerd" and version.version.lstrip("v").startswith("1.")
    where = one.files[-1]
    if one.wrong:
        remedy = f"mend it, then restart {one.name}: what stands there does not hold"
        yield failed("runtime configuration", f"{', '.join(one.wrong)}: cannot be read as TOML", remedy)
    if one.nri_disabled:
        remedy = f'take "{_NRI}" out of disabled_plugins in {" or ".join(one.files)}; restart {one.name}'
        yield failed("NRI in the runtime", f"{where}: off, among disabled_plugins", remedy)
    elif one.nri is False or (one.nri is None and old):
        yield failed("NRI in the runtime", f"{where}: off", _nri_remedy(one.name))
    else:
        yield ok("NRI in the runtime", f"{where}: {'on' if one.nri else 'on by default'}")
    if one.cdi is False or (one.cdi is None and old):
        yield failed(
            "CDI in the runtime",
            f"{where}: off",
            f"set enable_cdi = true in [plugins.'{one.cri_table}'] of {where}; restart {one.name}",
        )
    dirs = _CDI_DEFAULT if one.cdi_dirs is None else one.cdi_dirs
    if _real(cdi) in {_real(Path(directory)) for directory in dirs}:
        yield ok("CDI directory", f"{cdi} is among those of {one.name}")
    else:
        listed = ", ".join(f'"{directory}"' for directory in (*dirs, str(cdi)))
        yield failed(
            "CDI directory",
            f"{where}: {one.name} reads {', '.join(dirs) or 'none'}, we write to {cdi}",
            f"set cdi_spec_dirs = [{listed}] in {_cdi_table(one)} there and restart {one.name}, or paths.cdi to one of"
            " its own",
        )


def _cdi_table(one: Runtime) -> str:
    return f"[plugins.'{one.cri_table}']" if one.cri_table else "[crio.runtime]"


def _real(path: Path) -> str:
    return os.path.realpath(path)


def _containerd(config: Values, files: tuple[str, ...], wrong: tuple[str, ...]) -> Runtime:
    plugins = part(config, "plugins")
    cri = merged(part(plugins, _CRI[1]), part(plugins, _CRI[0]))
    cdi, nri = cri.get("enable_cdi"), part(plugins, _NRI).get("disable")
    disabled = texts(config, "disabled_plugins") or ()
    return Runtime(
        name="containerd",
        files=files,
        wrong=wrong,
        nri_disabled=_NRI in disabled,
        cri_table=_CRI[1] if config.get("version", 1) in _OLD_FORMS else _CRI[0],
        nri=False if _NRI in disabled else not nri if isinstance(nri, bool) else None,
        cdi=cdi if isinstance(cdi, bool) else None,
        cdi_dirs=texts(cri, "cdi_spec_dirs"),
    )


def _with_imports(root: Path, name: str) -> tuple[tuple[str, ...], tuple[str, ...], Values]:
    """Return containerd's files, the first and those it imports, which of them are no TOML, and what all say."""
    waiting, files, wrong = [root / name], list[Path](), list[Path]()
    config: Values = NOTHING
    while waiting and len(files) < _MOST_IMPORTS:
        path = waiting.pop(0)
        if path in files or not path.is_file():
            continue
        files.append(path)
        values = read_toml(path)
        if values is None:
            wrong.append(path)
            continue
        config = merged(config, values)
        waiting += _imports(root, path, values)
    return tuple(_on_host(root, path) for path in files), tuple(_on_host(root, path) for path in wrong), config


def _imports(root: Path, path: Path, values: Values) -> list[Path]:
    found: list[Path] = []
    for pattern in texts(values, "imports") or ():
        base, inner = (root, pattern.lstrip("/")) if pattern.startswith("/") else (path.parent, pattern)
        try:
            found += sorted(base.glob(inner))[:_MOST_IMPORTS]
        except (ValueError, NotImplementedError, OSError):  # an odd pattern
            continue
    return found


def _on_host(root: Path, path: Path) -> str:
    return f"/{path.relative_to(root)}" if path.is_relative_to(root) else str(path)
