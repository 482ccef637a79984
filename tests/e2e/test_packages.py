"""Packages as files: two builds are equal, the distributions' own tools find nothing wrong, what is inside works."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from nodecpu_packaging.targets import TARGETS, Target

from tests.e2e.packages import built
from tests.support import ROOT, need_program

pytestmark = pytest.mark.nspawn

VERSION = "0.1.0"
DEBS = [pytest.param(target, id=target.name) for target in TARGETS if target.format == "deb"]
RPMS = [pytest.param(target, id=target.name) for target in TARGETS if target.format == "rpm"]
ALL = [*DEBS, *RPMS]


def said(*command: str, **environment: str) -> str:
    done = subprocess.run(
        [need_program(command[0]), *command[1:]],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **environment},
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def unpacked(package: Path, place: Path) -> Path:
    """Return a directory with the package's files, taken out by the distribution's own tool."""
    place.mkdir()
    if package.suffix == ".deb":
        said("dpkg-deb", "-x", str(package), str(place))
        return place
    archive = subprocess.run([need_program("rpm2cpio"), str(package)], check=True, capture_output=True).stdout
    subprocess.run([need_program("cpio"), "-idm", "--quiet"], input=archive, cwd=place, check=True)
    return place


def interpreter(target: Target) -> Path | None:
    """Return an interpreter as the distribution has it, if there is one on this machine."""
    found = [
        Path(f"/usr/bin/python{target.python}"),
        *Path.home().glob(f".pyenv/versions/{target.python}.*/bin/python{target.python}"),
    ]
    return next((path for path in found if path.exists()), None)


@pytest.mark.parametrize("target", [DEBS[1], RPMS[0]])
def test_two_builds_are_equal(target: Target, built_in: Path, tmp_path: Path) -> None:
    first, second = built(target.name, VERSION, built_in), built(target.name, VERSION, tmp_path)
    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("target", DEBS)
def test_lintian_finds_nothing_that_is_not_explained(target: Target, built_in: Path) -> None:
    package = built(target.name, VERSION, built_in)
    assert said("lintian", "--fail-on", "error,warning", "--allow-root", str(package)) == ""


@pytest.mark.parametrize("target", RPMS)
def test_rpmlint_finds_nothing_that_is_not_explained(target: Target, built_in: Path) -> None:
    rules = ROOT / "packaging" / "files" / "rpmlint.toml"
    report = said("rpmlint", "--config", str(rules), str(built(target.name, VERSION, built_in)))
    assert "0 errors, 0 warnings" in report, report


@pytest.mark.parametrize("target", DEBS)
def test_deb_needs_its_interpreter_and_nothing_by_accident(target: Target, built_in: Path) -> None:
    fields = said("dpkg-deb", "-f", str(built(target.name, VERSION, built_in)), "Depends", "Version", "Architecture")
    major, minor = target.python.split(".")
    assert fields.splitlines() == [
        f"Depends: libc6 (>= 2.34), python3 (>= {target.python}), python3 (<< {major}.{int(minor) + 1})",
        f"Version: {VERSION}-1{target.suffix}",
        "Architecture: amd64",
    ]


@pytest.mark.parametrize("target", RPMS)
def test_rpm_needs_its_interpreter_and_nothing_by_accident(target: Target, built_in: Path) -> None:
    needed = said("rpm", "-qp", "--requires", str(built(target.name, VERSION, built_in))).splitlines()
    python = {"el9": "python3.12", "el10": "python3 >= 3.12"}[target.name]
    assert [line for line in needed if not line.startswith("rpmlib(")] == [python, "systemd"]


@pytest.mark.parametrize("target", RPMS)
def test_rpm_scripts_refuse_and_restart_as_promised(target: Target, built_in: Path) -> None:
    """R5, R6: a removal is refused, an upgrade restarts what runs, and nothing is started that did not run."""
    scripts = said("rpm", "-qp", "--scripts", str(built(target.name, VERSION, built_in)))
    heads = re.findall(r"^(\w+) scriptlet", scripts, re.MULTILINE)
    assert heads == ["postinstall", "preuninstall", "postuninstall", "posttrans"]
    assert "package-steps may-remove || exit 1" in scripts
    assert "package-steps may-run && /usr/lib/nodecpu/package-steps may-restart; then" in scripts
    assert "systemctl restart nodecpu.service" in scripts
    assert "systemctl start" not in scripts
    for body in re.split(r"^\w+ scriptlet.*\n", scripts, flags=re.MULTILINE)[1:]:
        subprocess.run(["sh", "-n"], input=body, text=True, check=True)


@pytest.mark.parametrize("target", RPMS)
def test_rpm_keeps_configuration_that_was_changed(target: Target, built_in: Path) -> None:
    package = str(built(target.name, VERSION, built_in))
    assert said("rpm", "-qp", "--configfiles", package).split() == ["/etc/nodecpu/nodecpu.toml"]


def test_all_packages_have_the_same_files(built_in: Path, tmp_path: Path) -> None:
    """But for modules in machine code, which are each interpreter's own, and for what one distribution alone reads."""
    own = re.compile(
        r"etc/needrestart|usr/share/lintian|usr/share/(doc/nodecpu/(NEWS|changelog)|zsh/)|\.so$|\.dist-info/"
    )
    seen: dict[str, set[str]] = {}
    for target in TARGETS:
        root = unpacked(built(target.name, VERSION, built_in), tmp_path / target.name)
        assert (root / "usr/share/zsh" / target.zsh / "_nodecpu").is_file()
        files = (str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir())
        seen[target.name] = {name for name in files if not own.search(name) and not name.startswith("usr/lib/nodecpu/")}
        shutil.rmtree(root)
    assert {"usr/share/nodecpu/nodecpu.rules.yml", "usr/share/nodecpu/nodecpu.json"} <= seen["el9"]
    assert [name for name, files in seen.items() if files != seen["debian12"]] == []


@pytest.mark.parametrize("target", ALL)
def test_program_runs_on_the_distributions_interpreter(target: Target, built_in: Path, tmp_path: Path) -> None:
    """Its own modules in machine code and no others; where that interpreter is here, the daemon plays a scenario."""
    root = unpacked(built(target.name, VERSION, built_in), tmp_path / "root")
    modules = root / "usr/lib/nodecpu"
    assert f"exec {target.interpreter} -m nodecpu " in (root / "usr/bin/nodecpu").read_text()
    names = {path.name.split(".")[1] for path in modules.rglob("*.so")}
    assert names <= {f"cpython-{target.python.replace('.', '')}-x86_64-linux-gnu", "abi3"}
    python = interpreter(target)
    if python is None:
        pytest.skip(f"there is no Python {target.python} on this machine to run it")
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("PYTHON")},
        **{"PYTHONPATH": str(modules), "PYTHONNOUSERSITE": "1", "PYTHONSAFEPATH": "1", "PYTHONDONTWRITEBYTECODE": "1"},
    }
    command = [str(python), "-m", "nodecpu", "lab", "--scenario", "on-any-machine"]
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout + done.stderr
