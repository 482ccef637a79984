"""``make package``: the deb and rpm of each distribution, in dist/ (shell).

The Python modules are chosen by uv for each distribution's interpreter and C library, from the hashes in the lock; only
wheels are taken, but for one module that comes as source. nfpm writes both formats from one description, without root,
a distribution's tools or the machine's clock, so that two builds are equal; it is locked like everything else.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from nodecpu import __version__
from nodecpu.cli import _parser as parser_of
from nodecpu.config_docs import sample_toml
from nodecpu_packaging import completion, manpages
from nodecpu_packaging.inventory import components, copyright_text, sbom
from nodecpu_packaging.targets import ARCHITECTURES, GLIBC, TARGETS, Target, package_version

ROOT = Path(__file__).resolve().parents[2]
MODULES = "usr/lib/nodecpu"
SOURCE_ONLY = "sdnotify"
"""The one dependency without a wheel; it is pure Python."""

DROPPED = (
    *("bin", "kubernetes/aio", "tzdata*", "multidict/_testcapi*", "websocket/tests", "**/__pycache__", "**/*.h"),
    *("*.dist-info/[!ML]*", "**/AGENTS.md", "**/.*"),
)
"""What nobody imports or runs here: programs, a second client of 40 MB, the system's time zones again, tests."""

DESCRIPTION = """Owns the CPUs of a Kubernetes node: DRA driver and NRI plugin
A pod asks for CPUs of its own with a ResourceClaim; nodecpu picks them and has
the container run on exactly those, while everybody else is moved off them.
.
It is one daemon on each node: a driver for dynamic resource allocation to the
kubelet, a plugin to containerd or CRI-O. Its books outlive restarts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The programs that do the work, and the day that everything is dated to."""

    uv: Path
    nfpm: Path
    python: Path
    epoch: int


def main(argv: Sequence[str] | None = None) -> int:
    """Build what the arguments name, all of it by default, and print the files."""
    parser = argparse.ArgumentParser(prog="make package", allow_abbrev=False)
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "package")
    parser.add_argument("--version", default=__version__, help="for tests of upgrades: another version")
    parser.add_argument("--arch", choices=sorted(ARCHITECTURES), default="amd64")
    parser.add_argument("--target", action="append", choices=[target.name for target in TARGETS])
    args = parser.parse_args(argv)
    programs = Path(sys.executable).parent
    tools = Tools(uv=programs / "uv", nfpm=programs / "nfpm", python=Path(sys.executable), epoch=_epoch())
    args.out.mkdir(parents=True, exist_ok=True)
    wheel = _wheel(args.work / "wheel", tools)
    for target in TARGETS:
        if args.target is None or target.name in args.target:
            tree = args.work / target.name
            shutil.rmtree(tree, ignore_errors=True)
            _fill(tree, target, tools, wheel=wheel, arch=args.arch, version=args.version)
            sys.stdout.write(f"{_pack(tree, target, tools, out=args.out, arch=args.arch, version=args.version)}\n")
    return 0


def _epoch() -> int:
    """Return the day of the sources: SOURCE_DATE_EPOCH, or the last commit's."""
    told = os.environ.get("SOURCE_DATE_EPOCH")
    return int(told or _output(["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]))


def _wheel(place: Path, tools: Tools) -> Path:
    """Build nodecpu's own wheel; return its path."""
    shutil.rmtree(place, ignore_errors=True)
    command = [str(tools.python), "-m", "hatchling", "build", "--target", "wheel", "--directory", str(place)]
    _run(command, env={**os.environ, "SOURCE_DATE_EPOCH": str(tools.epoch)}, cwd=ROOT)
    (wheel,) = place.glob("*.whl")
    return wheel


def _fill(tree: Path, target: Target, tools: Tools, *, wheel: Path, arch: str, version: str) -> None:
    """Lay out everything that the package installs."""
    _install_modules(tree / MODULES, target, tools, wheel=wheel, arch=arch)
    own = tree / MODULES / "nodecpu" / "__init__.py"
    own.write_text(own.read_text().replace(f'"{__version__}"', f'"{version}"'))
    files = ROOT / "packaging" / "files"
    for source, place, mode in (
        (files / "nodecpu", "usr/bin/nodecpu", 0o755),
        (files / "package-steps", f"{MODULES}/package-steps", 0o755),
        (files / "package_steps.py", f"{MODULES}/package_steps.py", 0o644),
        (files / "needrestart.conf", "etc/needrestart/conf.d/nodecpu.conf", 0o644),
        (ROOT / "systemd" / "nodecpu.service", "usr/lib/systemd/system/nodecpu.service", 0o644),
        (ROOT / "systemd" / "nodecpu.tmpfiles", "usr/lib/tmpfiles.d/nodecpu.conf", 0o644),
    ):
        _put(tree / place, source.read_text().replace("@INTERPRETER@", target.interpreter), mode)
    _put(tree / "etc/nodecpu/nodecpu.toml", sample_toml(), 0o644)
    _put_pages(tree, version=version, epoch=tools.epoch)
    _put_completion(tree, target)
    _put_papers(tree, target, version=version, epoch=tools.epoch)
    for path in watching_files():
        _put(tree / "usr/share/nodecpu" / path.name, path.read_text(), 0o644)
    if target.format == "rpm":
        shutil.rmtree(tree / "etc" / "needrestart")


def watching_files() -> list[Path]:
    """Return what Prometheus and Grafana load: alert rules, which have tests beside them, and the dashboard."""
    packaging = ROOT / "packaging"
    return [*sorted((packaging / "alerts").glob("*.rules.yml")), *sorted((packaging / "grafana").glob("*.json"))]


def _install_modules(place: Path, target: Target, tools: Tools, *, wheel: Path, arch: str) -> None:
    options = [
        *("--no-config", "--system-certs", "--quiet", "--no-deps", "--link-mode", "copy", "--no-build-isolation"),
        *("--python", str(tools.python), "--python-version", target.python, "--target", str(place)),
        *("--python-platform", f"{ARCHITECTURES[arch]}-manylinux_{GLIBC.replace('.', '_')}"),
    ]
    lock = ROOT / "packaging" / "locks" / "runtime.txt"
    only_wheels = ("--only-binary", ":all:", "--no-binary", SOURCE_ONLY)
    _run([str(tools.uv), "pip", "install", *options, *only_wheels, "--require-hashes", "-r", str(lock)])
    _run([str(tools.uv), "pip", "install", *options, str(wheel)])
    for pattern in DROPPED:
        for path in sorted(place.glob(pattern)):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in place.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
        if path.suffix == ".py" and path.read_bytes().startswith(
            b"#!"
        ):  # imported only, and for no interpreter of here
            path.write_bytes(path.read_bytes().partition(b"\n")[2])


def _put_pages(tree: Path, *, version: str, epoch: int) -> None:
    day = datetime.fromtimestamp(epoch, UTC).date().isoformat()
    unit = (ROOT / "systemd" / "nodecpu.service").read_text()
    for name, text in (
        ("man1/nodecpu.1", manpages.command_page(parser_of(), version=version, date=day)),
        ("man5/nodecpu.toml.5", manpages.settings_page(version=version, date=day)),
        ("man8/nodecpu.service.8", manpages.service_page(unit, version=version, date=day)),
    ):
        _put_zipped(tree / f"usr/share/man/{name}.gz", text)


def _put_completion(tree: Path, target: Target) -> None:
    parser = parser_of()
    for place, text in (
        ("bash-completion/completions/nodecpu", completion.bash(parser)),
        (f"zsh/{target.zsh}/_nodecpu", completion.zsh(parser)),
        ("fish/vendor_completions.d/nodecpu.fish", completion.fish(parser)),
    ):
        _put(tree / "usr/share" / place, text, 0o644)


def _put_papers(tree: Path, target: Target, *, version: str, epoch: int) -> None:
    found = [one for one in components(tree / MODULES) if one.name != "nodecpu"]
    papers = tree / "usr/share/doc/nodecpu"
    _put(papers / "sbom.cdx.json", sbom(found, version=version, epoch=epoch), 0o644)
    _put(papers / "copyright", copyright_text(found, directory=f"/{MODULES}"), 0o644)
    _put_zipped(papers / "NEWS.gz" if target.format == "rpm" else papers / "NEWS.md.gz", _changes())
    if target.format == "deb":
        day = datetime.fromtimestamp(epoch, UTC).strftime("%a, %d %b %Y %H:%M:%S +0000")
        full = f"{package_version(version)}-1{target.suffix}"
        _put_zipped(
            papers / "changelog.Debian.gz",
            f"nodecpu ({full}) unstable; urgency=medium\n\n"
            "  * What changed is in NEWS.md.gz.\n\n -- the nodecpu authors <nodecpu@localhost>  " + f"{day}\n",
        )
        overrides = ROOT / "packaging" / "files" / "lintian-overrides"
        _put(tree / "usr/share/lintian/overrides/nodecpu", overrides.read_text(), 0o644)


def _changes() -> str:
    return (ROOT / "docs" / "changelog.md").read_text()


def _pack(tree: Path, target: Target, tools: Tools, *, out: Path, arch: str, version: str) -> Path:
    """Have nfpm write the package; return its path."""
    description = tree.parent / f"{target.name}.json"  # JSON is YAML too
    description.write_text(json.dumps(_description(tree, target, tools, arch=arch, version=version), indent=2))
    full = f"{package_version(version)}-1{target.suffix}"
    machine = arch if target.format == "deb" else ARCHITECTURES[arch]
    path = out / (f"nodecpu_{full}_{machine}.deb" if target.format == "deb" else f"nodecpu-{full}.{machine}.rpm")
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(tools.epoch), "TZ": "UTC"}
    command = [str(tools.nfpm), "package", "--config", str(description), "--packager", target.format]
    _run([*command, "--target", str(path)], env=environment)
    return path


def _description(tree: Path, target: Target, tools: Tools, *, arch: str, version: str) -> dict[str, object]:
    scripts = ROOT / "packaging" / "scripts"
    hooks = {"postinstall": "post", "preremove": "preun", "postremove": "postun"}
    if target.format == "deb":
        hooks = {"postinstall": "postinst", "preremove": "prerm", "postremove": "postrm"}
    rpm: dict[str, object] = {"compression": "zstd", "group": "System Environment/Daemons"}
    rpm["summary"] = DESCRIPTION.splitlines()[0]
    if target.format == "rpm":
        rpm["scripts"] = {"posttrans": str(scripts / "rpm-posttrans")}
    described: dict[str, object] = {
        "name": "nodecpu",
        "arch": arch,
        "platform": "linux",
        "version": package_version(version),
        "version_schema": "none",
        "release": f"1{target.suffix}",
        "section": "admin",
        "priority": "optional",
        "maintainer": "the nodecpu authors <nodecpu@localhost>",
        "vendor": "nodecpu",
        "license": "Apache-2.0",
        "description": DESCRIPTION,
        "mtime": datetime.fromtimestamp(tools.epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "depends": list(target.depends),
        "contents": list(_contents(tree, is_rpm=target.format == "rpm")),
        "scripts": {hook: str(scripts / f"{target.format}-{name}") for hook, name in hooks.items()},
        "deb": {"compression": "gzip"},
        "rpm": rpm,
    }
    if target.format == "rpm":
        described["description"] = DESCRIPTION.split("\n", 1)[1].replace("\n.\n", "\n\n")
    return described


def _contents(tree: Path, *, is_rpm: bool) -> Iterator[dict[str, object]]:
    """List what is packed: conffiles one by one, everything else by its directory entries."""
    for path in sorted(tree.rglob("*")):
        place = f"/{path.relative_to(tree)}"
        owner = {"owner": "root", "group": "root"}
        if path.is_dir():
            if place == "/etc/nodecpu" or place.startswith(f"/{MODULES}") or place.endswith("/doc/nodecpu"):
                yield {"dst": place, "type": "dir", "file_info": {**owner, "mode": 0o755}}
            continue
        kind = "config|noreplace" if place.startswith("/etc/") else ""
        if is_rpm and place.startswith(("/usr/share/doc/", "/usr/share/man/")):
            kind = "doc"
        mode = 0o755 if os.access(path, os.X_OK) and path.stat().st_mode & 0o111 else 0o644
        yield {"src": str(path), "dst": place, "type": kind, "file_info": {**owner, "mode": mode}}


def _put(path: Path, text: str, mode: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def _put_zipped(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    path.chmod(0o644)


def _run(command: list[str], *, env: dict[str, str] | None = None, cwd: Path | None = None) -> None:
    done = subprocess.run(
        command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, cwd=cwd
    )
    if done.returncode:
        sys.stderr.write(done.stdout)
        raise SystemExit(f"failed: {' '.join(command[:3])} ...")


def _output(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    raise SystemExit(main())
