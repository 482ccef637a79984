"""The configuration: what is taken, what is refused and in which words, and that its texts agree with its schema."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from nodecpu.config import SECTIONS, SETTINGS, Config, Nri, Policy, load, parse, parse_amount, render_toml
from nodecpu.config_docs import reference_markdown, sample_toml
from nodecpu.config_forms import (
    AbsolutePath,
    Amount,
    Flag,
    Form,
    ListOf,
    OneOf,
    Seconds,
    Text,
    Whole,
)
from nodecpu.config_listen import ListenText
from nodecpu.config_policy import ClassText, CpuChoiceText, NamespaceClass, QosClass
from nodecpu.cpuset import CpuSet
from nodecpu.errors import ConfigError
from nodecpu.policy.usable import CpuChoice
from tests.support import ROOT


def problems(text: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as caught:
        parse(text, "node.toml")
    assert caught.value.exit_code == 78
    return caught.value.problems


def test_empty_file_is_the_default() -> None:
    assert parse("", "node.toml") == Config()


def test_defaults_are_those_of_the_design() -> None:
    config = Config()
    assert config.paths.state == Path("/var/lib/nodecpu")
    assert config.paths.run == Path("/run/nodecpu")
    assert config.nri.socket == Path("/var/run/nri/nri.sock")
    assert config.kube.kubeconfig == Path("/etc/nodecpu/kubeconfig")
    assert config.dra.driver == "dra.cpu"
    assert not config.policy.available
    assert not config.policy.reserved
    assert config.policy.reserved_namespaces == ("kube-system",)
    assert config.claims.token_request_mcpu == 10


def test_values_arrive_as_their_types() -> None:
    config = parse(
        '[policy]\nreserved = "15, 0"\navailable = "0-15"\nlevels = []\n[claims]\ntoken_request = "0.5"\nwait_s = 3\n'
        '[paths]\nrun = "/tmp/x"\n[kube]\nkubeconfig = ""',
        "node.toml",
    )
    assert config.policy.reserved == CpuChoice(cpus=CpuSet.parse("0,15"))
    assert config.policy.available == CpuChoice(cpus=CpuSet.parse("0-15"))
    assert config.policy.levels == ()
    assert config.claims.token_request_mcpu == 500
    assert config.claims.wait_s == 3.0
    assert config.paths.run == Path("/tmp/x")
    assert config.kube.kubeconfig == Path("/etc/nodecpu/kubeconfig")


def test_three_mistakes_are_listed_in_one_run_by_line() -> None:
    text = '[log]\nlevel = "loud"\n\n[policy]\nmin_shared = "2"\n[nri]\nplugin_nam = "x"\n'
    assert problems(text) == (
        'node.toml:2: log.level = "loud": must be "debug", "info", "warning" or "error"',
        'node.toml:5: policy.min_shared = "2": must be a whole number from -1 to 65536 (this is text)',
        'node.toml:7: nri.plugin_nam: unknown key; did you mean "plugin_name"?',
    )


def test_syntax_mistakes_do_not_hide_the_others() -> None:
    text = '[nri]\nsocket = nope\nplugin_index = "90"\nplugin_index = "91"\n[log]\nlevel = 3\nlevle = "info"'
    assert problems(text) == (
        "node.toml:2: socket: not TOML: invalid value",
        "node.toml:4: plugin_index: this key is there a second time",
        'node.toml:6: log.level = 3: must be "debug", "info", "warning" or "error" (this is a number)',
        'node.toml:7: log.levle: unknown key; did you mean "level"?',
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param('[polcy]\nmode = "flat"', "1: [polcy]: unknown table; did you mean [policy]?", id="unknown table"),
        pytest.param("[zzz]", "1: [zzz]: unknown table", id="table like no other"),
        pytest.param("[Policy]", "1: [Policy]: unknown table; did you mean [policy]?", id="wrong case of a table"),
        pytest.param('[policy]\nMode = "flat"', '2: policy.Mode: unknown key; did you mean "mode"?', id="wrong case"),
        pytest.param("[nri]\nperiod_s = 3", "2: nri.period_s: unknown key; it belongs into [enforce]", id="elsewhere"),
        pytest.param(
            "period_s = 3", "1: period_s: unknown key outside of any table; it belongs into [enforce]", id="no table"
        ),
        pytest.param("x = 3", "1: x: unknown key outside of any table", id="unknown without a table"),
        pytest.param("policy = 3", "1: policy: must be a table, not 3", id="a value for a table"),
        pytest.param("[[policy]]", "1: policy: must be a table, not [{...}]", id="an array of tables"),
        pytest.param(
            "[policy.mode]",
            '1: policy.mode = {...}: must be "topology-aware" or "flat" (this is a table)',
            id="a table",
        ),
        pytest.param("[log]\n[log]", "2: log: this table is there a second time", id="table twice"),
        pytest.param(
            '[policy]\nreserved = "0-"',
            '2: policy.reserved = "0-": must be a CPU list such as "0-3,8", the same after "cpuset:" or'
            ' "exclude-cpuset:", or an amount such as "750m" or 1.5 (not a range of ids: \'0-\')',
            id="bad CPU list",
        ),
        pytest.param(
            '[policy]\nlevels = ["numa", "numa"]',
            '2: policy.levels = ["numa", "numa"]: must be a list without repeats, each "socket", "die", "numa" or "l3" '
            "(item 2 repeats an earlier one)",
            id="repeat in a list",
        ),
        pytest.param(
            '[policy]\navailable = "0-3"\nreserved = "2-5"',
            "3: policy.reserved: CPUs 4-5 are not among policy.available (0-3)",
            id="reserved outside of available",
        ),
        pytest.param(
            "policy.pin_memory = 1", "1: policy.pin_memory = 1: must be true or false (this is a number)", id="dotted"
        ),
        pytest.param(
            "[enforce]\nperiod_s = nan",
            "2: enforce.period_s = nan: must be seconds, a number from 0.1 to 3600",
            id="not a number",
        ),
        pytest.param(
            "[claims]\nwait_s = true",
            "2: claims.wait_s = true: must be seconds, a number from 0 to 40 (this is true or false)",
            id="flag for a number",
        ),
        pytest.param(
            "[policy]\nmin_shared = 2.0",
            "2: policy.min_shared = 2.0: must be a whole number from -1 to 65536",
            id="fraction for a whole number",
        ),
        pytest.param(
            '[paths]\nrun = "run"', '2: paths.run = "run": must be an absolute path of at most 96 bytes', id="relative"
        ),
        pytest.param(
            "[nri]\nplugin_index = 90",
            '2: nri.plugin_index = 90: must be two digits in quotes, such as "90" (this is a number)',
            id="unquoted digits",
        ),
        pytest.param(
            "[node]\nname = 1979-05-27",
            '2: node.name = 1979-05-27: must be the name of a Kubernetes node, or "" for the kubelet\'s '
            "(this is a date or time)",
            id="a date",
        ),
        pytest.param(
            "[log\nlevel = 3", "1: log: not TOML: expected ']' at the end of a table declaration", id="heading"
        ),
    ],
)
def test_each_mistake_is_told_with_its_line_and_what_is_allowed(text: str, expected: str) -> None:
    assert problems(text) == (f"node.toml:{expected}",)


def test_control_characters_of_a_value_do_not_reach_the_message() -> None:
    (problem,) = problems('[log]\nlevel = "\\u001b[2J\\n"')
    assert problem.isprintable()


def test_message_counts_the_mistakes() -> None:
    with pytest.raises(ConfigError, match=r"configuration node.toml has 2 mistakes"):
        parse("x = 1\ny = 2", "node.toml")


def test_load_reads_a_file_and_names_it_in_mistakes(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('[log]\nlevel = "debug"\n')
    assert load(file).log.level == "debug"
    file.write_text("[log]\nlevel = 1\n")
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert caught.value.problems[0].startswith(f"{file}:2: ")


def test_missing_and_unreadable_files_are_configuration_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(tmp_path)


def test_text_that_is_not_utf8_is_told_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_bytes(b'[log]\nlevel = "\xff"\n')
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert caught.value.problems == (f"{file}:2: not UTF-8 text",)


def test_oversized_file_is_refused_unread(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_bytes(b"#" * ((1 << 20) + 1))
    with pytest.raises(ConfigError, match="larger than"):
        load(file)


def test_deeply_nested_text_is_refused() -> None:
    assert problems("x = " + "[" * 100_000) == ("node.toml: not TOML: nested too deeply",)


@pytest.mark.parametrize(("text", "mcpu"), [("10m", 10), ("0", 0), ("2", 2000), ("0.5", 500), ("1.25", 1250)])
def test_amounts_are_read_as_milli_cpu(text: str, mcpu: int) -> None:
    assert parse_amount(text) == mcpu


@pytest.mark.parametrize("text", ["", "m", "-1m", "10 m", "10mm", "99999999", "ten"])
def test_other_amounts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_amount(text)


def test_changes_name_what_differs_and_what_needs_a_restart() -> None:
    old = Config()
    new = parse('[dra]\ndriver = "x.cpu"\n[policy]\nlevels = ["numa"]\n[log]\nlevel = "debug"', "node.toml")
    told = [(c.key, c.old, c.new, c.reloadable) for c in Config.changes(old, new)]
    assert told == [
        ("dra.driver", '"dra.cpu"', '"x.cpu"', False),
        ("policy.levels", '["socket", "die", "numa", "l3"]', '["numa"]', True),
        ("log.level", '"info"', '"debug"', True),
    ]
    assert Config.changes(old, old) == ()


def test_reload_takes_only_what_can_change_while_running() -> None:
    old = Config(nri=Nri(plugin_index="10"), policy=Policy(min_shared=3))
    new = parse('[policy]\nmin_shared = 1\n[log]\nlevel = "debug"\n[claims]\nwait_s = 1', "node.toml")
    merged = old.reloaded(new)
    assert merged.nri.plugin_index == "10"
    assert merged.policy.min_shared == 1
    assert merged.log.level == "debug"
    assert merged.claims.wait_s == 1.0
    assert all(not change.reloadable for change in merged.changes(new))


def test_sample_holds_every_setting_at_its_default() -> None:
    sample = sample_toml()
    assert parse(sample, "sample") == Config()
    assert tomllib.loads(re.sub(r"(?m)^#(\w+ = )", r"\1", sample)) == tomllib.loads(render_toml(Config()))


def test_reference_document_is_the_generated_one() -> None:
    document = ROOT / "docs" / "reference" / "configuration.md"
    assert document.read_text() == reference_markdown(), "write it anew from nodecpu.config_docs.reference_markdown"


def test_every_setting_is_told_in_full() -> None:
    for setting in SETTINGS:
        assert setting.help.endswith("."), setting.name
        assert setting.form.allowed, setting.name
        assert setting.unit == (
            "s" if isinstance(setting.form, Seconds) else "mcpu" if isinstance(setting.form, Amount) else ""
        )
    assert list(SECTIONS) == [f.name for f in dataclasses.fields(Config)]


def test_configuration_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().log.level = "debug"  # type: ignore[misc]  # this is tried


CPUS = st.sets(st.integers(0, 300), max_size=12).map(CpuSet)


def toml_values(form: Form[object]) -> st.SearchStrategy[object]:
    """Return TOML values that a form allows."""
    match form:
        case Whole():
            return st.integers(form.low, form.high)
        case Seconds():
            return st.floats(form.low, form.high) | st.integers(1, int(form.high))
        case Text():
            ascii_text = st.from_regex(form.pattern, fullmatch=True, alphabet=st.characters(codec="ascii"))
            return ascii_text.filter(lambda text: len(text) <= form.max_length)
        case OneOf():
            return st.sampled_from(form.values)
        case ListOf():
            return st.lists(toml_values(form.form), unique=True, max_size=4)
        case _:
            return PLAIN[type(form)]


CLASSES = (
    "bulk: policy=batch nice=10 io=idle/0",
    "rt: policy=fifo priority=50 flags=reset-on-fork,keep-policy io=rt/3",
    "dl: policy=deadline runtime_ns=1000000 deadline_ns=2000000 period_ns=3000000",
)

PLAIN: dict[type, st.SearchStrategy[object]] = {
    Flag: st.booleans(),
    AbsolutePath: st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S"]), max_size=20).map("/".__add__),
    CpuChoiceText: CPUS.map(str)
    | CPUS.map("cpuset:{}".format)
    | CPUS.map("exclude-cpuset:{}".format)
    | st.integers(0, 10**6).map("{}m".format)
    | st.integers(0, 1000)
    | st.integers(0, 1000).map(lambda number: number / 8),
    ClassText: st.sampled_from(CLASSES),
    NamespaceClass: st.sampled_from([f"{glob}: {name}" for glob in ("batch-*", "*", "db") for name in ("bulk", "rt")]),
    QosClass: st.sampled_from(["BestEffort: bulk", "Burstable: rt", "Guaranteed: dl"]),
    Amount: st.integers(0, 10**6).map("{}m".format),
    ListenText: st.sampled_from(["", "127.0.0.1:9103", "[::1]:1", "unix:/run/x/metrics.sock"]),
}


@st.composite
def trees(draw: st.DrawFn) -> dict[str, dict[str, object]]:
    """Return any valid file as a tree: any part of the settings, each at any value it may have."""
    tree: dict[str, dict[str, object]] = {}
    for setting in draw(st.lists(st.sampled_from(SETTINGS), unique_by=lambda s: s.name)):
        tree.setdefault(setting.table, {})[setting.key] = draw(toml_values(setting.form))
    policy = tree.get("policy", {})
    if policy.get("available"):
        policy.pop("reserved", None)
    if policy.get("full_cores") or policy.get("align_l3"):
        policy.pop("spread", None)
    if "scheduling" in tree:
        tree["scheduling"]["classes"] = list(CLASSES)
    return tree


@given(tree=trees())
def test_any_configuration_round_trips(tree: dict[str, dict[str, object]]) -> None:
    config = parse(tomli_w.dumps(tree), "node.toml")
    assert parse(render_toml(config), "node.toml") == config


PIECES = (
    """[policy] [log] [x.y] [[nri]] mode level = " ''' { } [ ] 1e9 0xff . , true inf 1979-05-27 reserved "0-3" # é"""
)
WORDS = st.sampled_from([*PIECES.split(), "\\", "\n", "\r", "\x00", 'plugin_index = "9"\n'])


def outcome(read: Callable[[], Config]) -> Config | tuple[str, ...]:
    """Return the configuration or the problems; anything else raised is a bug."""
    try:
        return read()
    except ConfigError as error:
        return error.problems


@given(text=st.text(max_size=200) | st.lists(WORDS, max_size=40).map(" ".join))
def test_any_text_gives_a_configuration_or_a_configuration_error(text: str) -> None:
    found = outcome(lambda: parse(text, "node.toml"))
    if not isinstance(found, Config):
        assert found
        assert all(problem.startswith("node.toml") and problem.isprintable() for problem in found)


@given(data=st.binary(max_size=100))
def test_any_bytes_give_a_configuration_or_a_configuration_error(
    data: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.getbasetemp() / "bytes.toml"
    file.write_bytes(data)
    assert outcome(lambda: load(file))
