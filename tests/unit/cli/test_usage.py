"""The command line used wrongly, by the wrong user, or by somebody in a hurry: one line that says what to do."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from nodecpu import __version__
from nodecpu.cli import main
from nodecpu.cli.output import takes_colour, usual
from nodecpu.cli.progress import Progress
from nodecpu.cli.render.findings import finding_lines
from nodecpu.config import Config
from nodecpu.preflight.finding import failed, ok, warning

Output = pytest.CaptureFixture[str]

# The modules are read while we may, as they would be of a package.
AS_NOBODY = """
import importlib, os, sys
from nodecpu.cli import main
importlib.import_module(f"nodecpu.cli.{sys.argv[1]}")
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
sys.exit(main(sys.argv[1:]))
"""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_without_a_verb_all_verbs_are_told(capsys: Output) -> None:
    assert main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "explain" in captured.err


def test_version_is_an_option_too(capsys: Output) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"nodecpu {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["status", "--watch", "soon"], "soon: 0.1 to 3600 seconds"),
        (["restart", "--wait", "nan"], "nan: 0.1 to 3600 seconds"),
        (["manifests", "--numa-nodes", "-1"], "-1: a number of NUMA nodes"),
        (["manifests", "--numa-nodes", "two"], "two: a number of NUMA nodes"),
        (["manifests", "--driver", "Bad_Name"], "Bad_Name: a DNS name"),
        (["manifests", "--driver", "a" * 64], "a DNS name of at most 63"),
        (["manifests", "--namespace", "a.b"], "a.b: a namespace's name has no dots"),
    ],
)
def test_wrong_value_is_told_with_what_is_meant(arguments: list[str], words: str, capsys: Output) -> None:
    assert main(arguments) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["reset", "check", "gather"])
def test_who_may_not_read_the_node_is_told_to_be_root(verb: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        closed = directory / "closed"
        closed.mkdir(mode=0)
        lines = [f'{key} = "{closed}/{key}"' for key in ("cgroup", "run", "state", "cdi", "kubelet")]
        (directory / "nodecpu.toml").write_text("\n".join(["[paths]", *lines]))
        command = [sys.executable, "-c", AS_NOBODY, verb, "--config", str(directory / "nodecpu.toml")]
        done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=directory)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert f"no permission for {closed}" in done.stderr
    assert "hint: run this as root" in done.stderr


def test_usual_file_tells_where_the_daemon_is_and_a_wrong_one_nothing(tmp_path: Path) -> None:
    file = tmp_path / "nodecpu.toml"
    assert usual(file) == Config()
    file.write_text('[paths]\nrun = "/run/other"\n')
    assert str(usual(file).paths.run) == "/run/other"
    file.write_text("[paths\n")
    assert usual(file) == Config()


def test_progress_is_one_line_of_a_terminal_and_gone_in_the_end() -> None:
    stream = Terminal()
    with Progress(stream) as progress:
        progress.show("journal", 0, 0)
        for number in (1, 1, 2):
            progress.show("machine", number, 2)
    shown = stream.getvalue().split("\r\x1b[K")
    half = "[###############...............]  50% machine"
    assert shown == ["", "journal", half, half.replace(".", "#").replace(" 50", "100"), ""]


def test_progress_writes_nothing_into_a_file() -> None:
    stream = io.StringIO()
    with Progress(stream) as progress:
        progress.show("machine", 1, 2)
    assert stream.getvalue() == ""


def test_grades_that_matter_are_coloured_on_terminals_alone() -> None:
    found = [ok("a", "well"), failed("b", "ill", "mend it"), warning("c", "so so", "look")]
    plain = list(finding_lines(found))
    assert not any("\x1b" in line for line in plain)
    coloured = list(finding_lines(found, colour=True))
    assert [line.count("\x1b") for line in coloured] == [0, 2, 0, 2, 0, 0, 0]
    assert [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in coloured] == plain


def test_neither_a_file_nor_who_asks_for_none_gets_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert not takes_colour()
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert takes_colour()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not takes_colour()
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not takes_colour()
