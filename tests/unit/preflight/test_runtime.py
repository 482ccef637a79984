"""How the runtime is found to be set up, from the files of containerd and CRI-O (E2)."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path

import pytest

from nodecpu.ending import HELD_OFF
from nodecpu.nri.versions import RuntimeVersion, runtime_version
from nodecpu.preflight.finding import Finding, Grade
from nodecpu.preflight.runtime import (
    link_finding,
    nri_finding,
    read_runtimes,
    run_program,
    runtime_findings,
    version_of,
)

CDI = Path("/var/run/cdi")
NEW = runtime_version("containerd", "v2.4.0", "")
OLD = runtime_version("containerd", "1.7.27", "")


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def found(root: Path, version: RuntimeVersion | None, cdi: Path = CDI) -> Mapping[str, Finding]:
    return {one.check: one for one in runtime_findings(read_runtimes(root), version, cdi)}


def test_new_containerd_on_its_defaults_is_right(tmp_path: Path) -> None:
    write(tmp_path, "etc/containerd/config.toml", "version = 3\n")
    assert {one.grade for one in found(tmp_path, NEW).values()} == {Grade.OK}


def test_old_containerd_has_nri_and_cdi_off_by_default(tmp_path: Path) -> None:
    write(tmp_path, "etc/containerd/config.toml", "version = 2\n")
    findings = found(tmp_path, OLD)
    assert findings["NRI in the runtime"].grade is Grade.FAILED
    assert "disable = false in [plugins.'io.containerd.nri.v1.nri']" in findings["NRI in the runtime"].remedy
    assert "enable_cdi = true in [plugins.'io.containerd.grpc.v1.cri']" in findings["CDI in the runtime"].remedy


def test_file_that_says_no_version_has_the_older_tables(tmp_path: Path) -> None:
    write(tmp_path, "etc/containerd/config.toml", "[plugins.'io.containerd.grpc.v1.cri']\nenable_cdi = false\n")
    assert "in [plugins.'io.containerd.grpc.v1.cri']" in found(tmp_path, NEW)["CDI in the runtime"].remedy


def test_old_containerd_with_both_on_is_right_but_for_its_age(tmp_path: Path) -> None:
    text = (
        "version = 2\n[plugins.'io.containerd.nri.v1.nri']\ndisable = false\n"
        "[plugins.'io.containerd.grpc.v1.cri']\nenable_cdi = true\n"
    )
    write(tmp_path, "etc/containerd/config.toml", text)
    grades = {check: one.grade for check, one in found(tmp_path, OLD).items()}
    assert grades == {
        "runtime version": Grade.WARNING,
        "NRI in the runtime": Grade.OK,
        "CDI directory": Grade.OK,
    }


def test_drop_ins_overrule_and_the_directory_of_ours_is_missed(tmp_path: Path) -> None:
    write(tmp_path, "etc/containerd/config.toml", 'version = 3\nimports = ["/etc/containerd/conf.d/*.toml"]\n')
    cri = "[plugins.'io.containerd.cri.v1.runtime']\ncdi_spec_dirs = [\"/etc/cdi\"]\n"
    write(tmp_path, "etc/containerd/conf.d/10-cdi.toml", cri)
    finding = found(tmp_path, NEW)["CDI directory"]
    assert finding.grade is Grade.FAILED
    assert finding.seen.startswith("/etc/containerd/conf.d/10-cdi.toml: containerd reads /etc/cdi")
    assert 'cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]' in finding.remedy


def test_imports_that_go_round_in_circles_end(tmp_path: Path) -> None:
    write(tmp_path, "etc/containerd/config.toml", 'imports = ["conf.d/*.toml", "/etc/containerd/config.toml", "**"]\n')
    write(tmp_path, "etc/containerd/conf.d/a.toml", 'imports = ["/etc/containerd/conf.d/*.toml"]\n')
    (runtime,) = read_runtimes(tmp_path)
    assert runtime.files == ("/etc/containerd/config.toml", "/etc/containerd/conf.d/a.toml")


@pytest.mark.parametrize(
    "text",
    [
        'disabled_plugins = ["io.containerd.nri.v1.nri"]\n',
        "[plugins.'io.containerd.nri.v1.nri']\ndisable = true\n",
    ],
)
def test_nri_turned_off_is_told_with_what_to_set(tmp_path: Path, text: str) -> None:
    write(tmp_path, "etc/containerd/config.toml", text)
    assert found(tmp_path, NEW)["NRI in the runtime"].grade is Grade.FAILED


def test_crio_is_read_with_its_drop_ins(tmp_path: Path) -> None:
    write(tmp_path, "etc/crio/crio.conf", '[crio.runtime]\ncdi_spec_dirs = ["/etc/cdi"]\n')
    write(tmp_path, "etc/crio/crio.conf.d/20-x.conf", "[crio.nri]\nenable_nri = false\n")
    version = runtime_version("cri-o", "1.34.1", "0.12.1")
    findings = found(tmp_path, version)
    assert findings["runtime version"].grade is Grade.OK
    assert "[crio.nri]" in findings["NRI in the runtime"].remedy
    assert findings["CDI directory"].grade is Grade.FAILED


def test_only_the_runtime_that_runs_is_judged(tmp_path: Path) -> None:
    write(tmp_path, "etc/crio/crio.conf", "[crio.nri]\nenable_nri = false\n")
    assert found(tmp_path, NEW)["CDI in the runtime"].grade is Grade.UNKNOWN
    assert found(tmp_path, None)["NRI in the runtime"].grade is Grade.FAILED


@pytest.mark.parametrize(
    "text", ["[", "plugins = 1\nimports = 2\n", "\xff", "[plugins]\n'io.containerd.nri.v1.nri' = 1\n"]
)
def test_odd_files_break_nothing(tmp_path: Path, text: str) -> None:
    write(tmp_path, "etc/containerd/config.toml", text)
    assert found(tmp_path, NEW)


def test_versions_are_told_by_the_programs() -> None:
    told = {
        "containerd": "containerd github.com/containerd/containerd v1.7.24 abc\n",
        "crio": "crio version 1.33.2\n   GitCommit: x\n",
    }
    version = version_of(lambda command: told[command[0]])
    assert version is not None
    assert (version.name, version.version) == ("containerd", "1.7.24")
    only_crio = version_of(lambda command: "" if command[0] == "containerd" else told["crio"])
    assert only_crio is not None
    assert only_crio.name == "cri-o"
    assert version_of(lambda _: "no such thing") is None


def test_program_that_is_not_there_prints_nothing() -> None:
    assert run_program(("/nonexistent/containerd", "--version")) == ""


def test_nri_socket_is_told_apart_by_who_answers(tmp_path: Path) -> None:
    path = tmp_path / "nri.sock"
    assert nri_finding(path, (), NEW).grade is Grade.FAILED
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        assert "refused" in nri_finding(path, (), NEW).seen
        listening.listen(1)
        assert nri_finding(path, (), NEW).grade is Grade.OK


def test_link_that_is_held_off_is_told_with_what_it_waits_for_and_not_as_nri_turned_off() -> None:
    """R6."""
    held = link_finding(Path("/nri.sock"), (), None, f"{HELD_OFF}, waits for the end of shop/web-0/app")
    assert (held.grade, "shop/web-0/app" in held.seen) == (Grade.WARNING, True)
    assert "disable" not in held.remedy
    away = link_finding(Path("/nri.sock"), (), None, "away, no such file")
    assert (away.grade, "disable = false" in away.remedy) == (Grade.FAILED, True)


def test_configuration_that_is_no_toml_is_named(tmp_path: Path) -> None:
    write(tmp_path, "etc/containerd/config.toml", "version = 3\nimports = ['/etc/containerd/conf.d/*.toml']\n")
    write(tmp_path, "etc/containerd/conf.d/50-mine.toml", "not toml = =\n")
    write(tmp_path, "etc/crio/crio.conf.d/10-mine.conf", "[crio\n")
    findings = found(tmp_path, NEW)["runtime configuration"]
    assert (findings.grade, findings.seen) == (
        Grade.FAILED,
        "/etc/containerd/conf.d/50-mine.toml: cannot be read as TOML",
    )
    crio = found(tmp_path, runtime_version("cri-o", "1.35.0", ""))["runtime configuration"]
    assert crio.seen == "/etc/crio/crio.conf.d/10-mine.conf: cannot be read as TOML"


@pytest.mark.parametrize(("form", "table"), [(2, "io.containerd.grpc.v1.cri"), (3, "io.containerd.cri.v1.runtime")])
def test_remedy_names_the_table_that_the_file_has(tmp_path: Path, form: int, table: str) -> None:
    text = f"version = {form}\n[plugins.'{table}']\nenable_cdi = false\ncdi_spec_dirs = ['/etc/cdi']\n"
    write(tmp_path, "etc/containerd/config.toml", text)
    findings = found(tmp_path, NEW)
    assert f"[plugins.'{table}']" in findings["CDI in the runtime"].remedy
    assert f"[plugins.'{table}']" in findings["CDI directory"].remedy


def test_nri_that_is_among_the_disabled_plugins_has_to_be_taken_out_there(tmp_path: Path) -> None:
    write(tmp_path, "etc/containerd/config.toml", "version = 3\ndisabled_plugins = ['io.containerd.nri.v1.nri']\n")
    finding = found(tmp_path, NEW)["NRI in the runtime"]
    assert finding.grade is Grade.FAILED
    assert 'take "io.containerd.nri.v1.nri" out of disabled_plugins in /etc/containerd/config.toml' in finding.remedy
