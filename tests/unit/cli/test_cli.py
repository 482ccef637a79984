"""The command line as its users meet it: output, words, exit codes."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from nodecpu import __version__
from nodecpu.admin.state import NodeState
from nodecpu.cli import main
from nodecpu.cli.status import watch
from nodecpu.config import SETTINGS, Config, parse
from tests.unit.nodestates import answering, n4c16

Output = pytest.CaptureFixture[str]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Path]:
    """Return the run directory of something that answers one question as the daemon does."""
    with answering(tmp_path, n4c16()):
        yield tmp_path


def ask(run_dir: Path, *arguments: str) -> int:
    return main([*arguments, "--socket", str(run_dir / "admin.sock")])


def test_version_is_printed(capsys: Output) -> None:
    assert main(["version"]) == 0
    assert capsys.readouterr().out == f"nodecpu {__version__}\n"


def test_version_loads_nothing_slow() -> None:
    code = (
        "import sys; from nodecpu.cli import main; main(['version']); "
        "sys.exit(any(m in sys.modules for m in ('msgspec', 'rich', 'asyncio', 'grpc', 'nodecpu.config')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True).returncode == 0


def test_module_is_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "nodecpu", "version"], check=True, capture_output=True, text=True)
    assert done.stdout == f"nodecpu {__version__}\n"


@pytest.mark.parametrize(
    "arguments", [[], ["start"], ["config"], ["status", "--jsn"], ["config", "check", "a", "b"], ["explain"]]
)
def test_wrong_usage_ends_with_2(arguments: list[str], capsys: Output) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "usage: nodecpu" in captured.err


def test_help_names_every_verb(capsys: Output) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for verb in ("daemon", "status", "topology", "claims", "containers", "config", "lab", "version"):
        assert re.search(rf"^    {verb}\s+[a-z]", text, re.MULTILINE)


def test_topology_draws_the_daemons_node(daemon: Path, capsys: Output) -> None:
    assert ask(daemon, "topology") == 0
    captured = capsys.readouterr()
    assert "[12A 13A] [14A 15=]" in captured.out
    assert captured.err == ""


def test_topology_without_a_daemon_tells_how_to_draw_all_the_same(tmp_path: Path, capsys: Output) -> None:
    assert main(["topology", "--socket", str(tmp_path / "none")]) == 1
    assert "with --root / the machine is drawn without it" in capsys.readouterr().err


def test_topology_as_json_tells_machine_and_owners(daemon: Path, capsys: Output) -> None:
    assert ask(daemon, "topology", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["machine"]["online"] == "0-15"
    assert {owner["mark"]: owner["cpus"] for owner in told["owners"]}["B"] == "4-5"


def test_status_tells_links_cpus_and_counts(daemon: Path, capsys: Output) -> None:
    assert ask(daemon, "status") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:10] == [
        "n4c16, nodecpu 0.1.0",
        "  runtime     connected, containerd 2.1.4",
        "  kubelet     connected",
        "  api server  away, connection refused",
        "  devices     not published as they are now",
        "  cpus        16 online: 5 claimed, 2 exclusive, 8 shared, 1 reserved",
        "  claims      2: 1 prepared, 1 released",
        "  containers  3: 1 claimed, 1 multi, 1 shared",
        "  confirmed   3 containers run where they should",
        "  counted     nothing out of the ordinary",
    ]


def test_status_as_json_is_the_whole_state(daemon: Path, capsys: Output) -> None:
    assert ask(daemon, "status", "--json") == 0
    assert msgspec.json.decode(capsys.readouterr().out, type=NodeState) == n4c16()


def test_claims_are_listed_with_their_holders(daemon: Path, capsys: Output) -> None:
    assert ask(daemon, "claims") == 0
    assert capsys.readouterr().out.splitlines() == [
        "CLAIM       STATE     REQUEST  DEVICE         CPUS   HELD BY    UID",
        "shop/batch  released  cpus     cpudevnuma001  12-14  -          uid-shop-batch",
        "shop/web    prepared  cpus     cpudevnuma001  4-5    web-0/app  uid-shop-web",
    ]


def test_containers_are_listed_with_what_they_have(daemon: Path, capsys: Output) -> None:
    assert ask(daemon, "containers") == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert " ".join(header.split()) == "CONTAINER GROUP POOL CPUS CLAIMED OWN MEMORY CONFIRMED ID WHY"
    assert rows[2].split()[:8] == ["shop/web-0/app", "claimed", "root", "4-5", "4-5", "-", "0", "yes"]


@pytest.mark.parametrize("verb", ["claims", "containers", "pools"])
def test_lists_as_json(verb: str, daemon: Path, capsys: Output) -> None:
    assert ask(daemon, verb, "--json") == 0
    assert json.loads(capsys.readouterr().out) == json.loads(msgspec.json.encode(getattr(n4c16(), verb)))


def test_socket_is_found_through_the_configuration(daemon: Path, capsys: Output) -> None:
    file = daemon / "node.toml"
    file.write_text(f'[paths]\nrun = "{daemon}"\n')
    assert main(["claims", "--config", str(file)]) == 0


def test_absent_daemon_is_told_with_a_hint_and_no_traceback(tmp_path: Path, capsys: Output) -> None:
    assert ask(tmp_path, "status") == 1
    assert capsys.readouterr().err.splitlines() == [
        f"nodecpu: the daemon is not running: nobody answers at {tmp_path}/admin.sock",
        "hint: see `systemctl status nodecpu` and `journalctl -u nodecpu`",
    ]


def test_config_check_lists_every_mistake(tmp_path: Path, capsys: Output) -> None:
    file = tmp_path / "node.toml"
    file.write_text("[log]\nlevel = 1\nlevle = 2\n[x]\n")
    assert main(["config", "check", str(file)]) == 78
    captured = capsys.readouterr()
    assert captured.out == ""
    first, *problems, hint = captured.err.splitlines()
    assert first == f"nodecpu: configuration {file} has 3 mistakes"
    assert [problem.split(": ")[0] for problem in problems] == [f"{file}:{line}" for line in (2, 3, 4)]
    assert hint.startswith("hint: ")


@pytest.mark.parametrize(
    ("text", "code", "mistakes"),
    [("", 0, 0), ("a = 1\n[nri]\nb = 2\n", 78, 2), (None, 78, 1)],
    ids=["right", "wrong", "none"],
)
def test_config_check_tells_as_json_what_it_tells_in_words(
    tmp_path: Path, capsys: Output, text: str | None, code: int, mistakes: int
) -> None:
    file = tmp_path / "nodecpu.toml"
    if text is not None:
        file.write_text(text)
    assert main(["config", "check", "--json", str(file)]) == code
    told = json.loads(capsys.readouterr().out)
    assert (told["file"], len(told["mistakes"])) == (str(file), mistakes)
    assert all(str(file) in line for line in told["mistakes"])


def test_config_check_is_quiet_about_a_right_file(tmp_path: Path, capsys: Output) -> None:
    file = tmp_path / "node.toml"
    file.write_text("")
    assert main(["config", "check", str(file)]) == 0
    assert capsys.readouterr().out == ""


def test_config_show_prints_what_is_in_force(tmp_path: Path, capsys: Output) -> None:
    file = tmp_path / "node.toml"
    file.write_text('[log]\nlevel = "debug"\n')
    assert main(["config", "show", str(file)]) == 0
    shown = capsys.readouterr().out
    assert parse(shown, "shown") == parse('log.level = "debug"', "x")
    assert f'level = "debug"  # {file}:2\n' in shown
    assert shown.count("  # default\n") == len(SETTINGS) - 1
    assert main(["config", "show", "--json", str(file)]) == 0
    assert json.loads(capsys.readouterr().out)["log"] == {"level": "debug"}


def test_config_init_prints_a_valid_file(capsys: Output) -> None:
    assert main(["config", "init"]) == 0
    assert parse(capsys.readouterr().out, "sample") == Config()


def test_reader_that_leaves_early_gets_no_traceback(daemon: Path) -> None:
    command = f"{sys.executable} -m nodecpu status --json --socket {daemon}/admin.sock | true"
    done = subprocess.run(["bash", "-c", command], check=False, capture_output=True, text=True)
    assert done.stderr == ""


def test_gather_prints_the_name_and_works_without_a_daemon(tmp_path: Path, capsys: Output) -> None:
    file = tmp_path / "node.toml"
    file.write_text(f'[node]\nname = "n1"\n[paths]\nrun = "{tmp_path}"\ncdi = "{tmp_path}"\n')
    target = tmp_path / "a.tar.gz"
    assert main(["gather", "--config", str(file), "--output", str(target)]) == 0
    captured = capsys.readouterr()
    assert captured.out == f"{target}\n"
    assert "secrets are not" in captured.err
    assert main(["gather", "--config", str(file), "--output", str(target)]) == 1
    assert "is there already" in capsys.readouterr().err


def test_pools_are_listed_with_what_is_asked_of_them(daemon: Path, capsys: Output) -> None:
    assert ask(daemon, "pools") == 0
    assert capsys.readouterr().out.splitlines() == [
        "POOL  CPUS  SHARED NOW  ASKED  MEMORY",
        "root  0-15  0-14        1500m  0",
    ]


class _Enough(Exception):
    pass


@pytest.mark.parametrize("as_json", [False, True])
def test_status_is_watched_over_a_daemon_that_goes_away(daemon: Path, capsys: Output, *, as_json: bool) -> None:
    args = argparse.Namespace(json=as_json, socket=daemon / "admin.sock", config=None, watch=0.5)
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 1:
            args.socket = daemon / "gone.sock"
        else:
            raise _Enough

    with pytest.raises(_Enough):
        watch(args, sleep)
    lines = capsys.readouterr().out.splitlines()
    if as_json:
        assert [sorted(json.loads(line))[0] for line in lines] == ["aside", "error"]
    else:
        assert lines[0] == "n4c16, nodecpu 0.1.0"
        assert lines[-2].startswith("the daemon is not running")
    assert slept == [0.5, 0.5]


def test_version_as_json(capsys: Output) -> None:
    assert main(["version", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["version"] == __version__


@pytest.mark.parametrize("seconds", ["0", "x", "1e9", "nan"])
def test_watch_takes_a_sensible_pause(seconds: str, capsys: Output) -> None:
    assert main(["status", "--watch", seconds]) == 2
    assert "--watch" in capsys.readouterr().err


def test_config_diff_tells_what_changes_and_what_needs_a_restart(tmp_path: Path, capsys: Output) -> None:
    old, new = tmp_path / "old.toml", tmp_path / "new.toml"
    old.write_text('[log]\nlevel = "debug"\n')
    new.write_text('[log]\nlevel = "debug"\n[dra]\ndriver = "x.cpu"\ngrouping = "l3"\n')
    assert main(["config", "diff", str(old)]) == 0
    assert capsys.readouterr().out == 'log.level: "info" -> "debug"\n'
    assert main(["config", "diff", str(old), str(new)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        'dra.driver: "dra.cpu" -> "x.cpu", needs a restart',
        'dra.grouping: "numa" -> "l3"',
    ]
    assert main(["config", "diff", str(new), str(old), "--json"]) == 0
    assert [one["key"] for one in json.loads(capsys.readouterr().out)] == ["dra.driver", "dra.grouping"]
