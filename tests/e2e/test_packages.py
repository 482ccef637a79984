"""Packages as files: two builds are equal, the distributions' own tools find nothing wrong, rpm's inside works."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.e2e.packages import built
from tests.support import ROOT, need_program

pytestmark = pytest.mark.nspawn


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


@pytest.mark.parametrize("target", ["debian13", "el9"])
def test_two_builds_are_equal(target: str, built_in: Path, tmp_path: Path) -> None:
    first, second = built(target, "0.1.0", built_in), built(target, "0.1.0", tmp_path)
    assert first.name == second.name
    assert first.read_bytes() == second.read_bytes()


def test_lintian_finds_nothing_that_is_not_explained(built_in: Path) -> None:
    assert (
        said("lintian", "--fail-on", "error,warning", "--allow-root", str(built("debian13", "0.1.0", built_in))) == ""
    )


def test_rpmlint_finds_nothing_that_is_not_explained(built_in: Path) -> None:
    rules = ROOT / "packaging" / "files" / "rpmlint.toml"
    report = said("rpmlint", "--config", str(rules), str(built("el9", "0.1.0", built_in)))
    assert "0 errors, 0 warnings" in report, report


def test_rpm_needs_its_interpreter_and_nothing_by_accident(built_in: Path) -> None:
    needed = said("rpm", "-qp", "--requires", str(built("el9", "0.1.0", built_in))).splitlines()
    assert [line for line in needed if not line.startswith("rpmlib(")] == ["python3.12", "systemd"]


def test_rpm_scripts_refuse_and_restart_as_promised(built_in: Path) -> None:
    """A removal is refused, an upgrade restarts what runs, and nothing is ever started that did not run."""
    scripts = said("rpm", "-qp", "--scripts", str(built("el9", "0.1.0", built_in)))
    heads = re.findall(r"^(\w+) scriptlet", scripts, re.MULTILINE)
    assert heads == ["postinstall", "preuninstall", "postuninstall", "posttrans"]
    assert "package-steps may-remove || exit 1" in scripts
    assert "systemctl restart nodecpu.service" in scripts
    assert "systemctl start" not in scripts
    for body in re.split(r"^\w+ scriptlet.*\n", scripts, flags=re.MULTILINE)[1:]:
        subprocess.run(["sh", "-n"], input=body, text=True, check=True)


def test_program_of_the_rpm_runs(built_in: Path, tmp_path: Path) -> None:
    """On the interpreter that it is made for, where there is one on this machine."""
    archive = subprocess.run(
        [need_program("rpm2cpio"), str(built("el9", "0.1.0", built_in))], check=True, capture_output=True
    ).stdout
    subprocess.run([need_program("cpio"), "-idm", "--quiet"], input=archive, cwd=tmp_path, check=True)
    modules = tmp_path / "usr/lib/nodecpu"
    assert (tmp_path / "usr/bin/nodecpu").read_text().endswith('exec /usr/bin/python3.12 -m nodecpu "$@"\n')
    names = {path.name.split(".")[1] for path in modules.rglob("*.so")}
    assert names <= {"cpython-312-x86_64-linux-gnu", "abi3"}
    interpreters = [Path("/usr/bin/python3.12"), *Path.home().glob(".pyenv/versions/3.12.*/bin/python3.12")]
    for python in (path for path in interpreters if path.exists()):
        environment = {"PYTHONPATH": str(modules), "PYTHONNOUSERSITE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        code = "import nodecpu.daemon, nodecpu.dra.registration, nodecpu.kube.client, nodecpu.lab.run"
        subprocess.run([str(python), "-c", code], check=True, env=environment, timeout=120)
        return
