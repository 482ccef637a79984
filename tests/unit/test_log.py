"""Log lines: one line per record whatever the values are, and the same values back when it is parsed."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodecpu.cpuset import CpuSet
from nodecpu.errors import NoCapacity
from nodecpu.log import KEYS, kv, line, operation, set_level, setup

LOG = logging.getLogger("nodecpu.test")
PAIR = re.compile(r' ([a-z_]+)=("(?:[^"\\]|\\.)*"|[^\s"=\\]+)')


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger("nodecpu")
    handlers, levels = list(root.handlers), (root.level, ours.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


def parsed(text: str) -> tuple[str, dict[str, str]]:
    """Return a line's sentence and values; fails if there is anything else in the line."""
    first = PAIR.search(text)
    sentence, rest = (text, "") if first is None else (text[: first.start()], text[first.start() :])
    assert PAIR.sub("", rest) == ""
    return sentence, {key: json.loads(value) if value[0] == '"' else value for key, value in PAIR.findall(rest)}


def logged(level: str = "debug") -> io.StringIO:
    stream = io.StringIO()
    setup(level, stream)
    return stream


def test_line_is_a_sentence_then_keys_in_the_order_of_the_list() -> None:
    stream = logged()
    kv(LOG, logging.INFO, "claim prepared", ms=3, cpus=CpuSet.parse("10-13"), claim="shop/web", claim_uid="4f0c")
    assert stream.getvalue() == "claim prepared claim=shop/web claim_uid=4f0c cpus=10-13 ms=3\n"


def test_none_leaves_a_key_out() -> None:
    assert line("x", {"pod": None, "ms": 0}) == "x ms=0"


def test_unknown_key_is_our_bug() -> None:
    with pytest.raises(TypeError, match="not a key of log lines: colour"):
        kv(LOG, logging.INFO, "x", colour="red")  # type: ignore[call-arg]  # this is tried


def test_error_brings_its_hint() -> None:
    text = line("refused", {"err": NoCapacity("claim shop/web: 6 CPUs asked, 4 free", hint="free a claim")})
    assert parsed(text) == ("refused", {"err": "claim shop/web: 6 CPUs asked, 4 free", "hint": "free a claim"})


def test_foreign_error_tells_its_kind() -> None:
    assert parsed(line("x", {"err": OSError("no")}))[1] == {"err": "OSError: no"}


def test_lines_within_an_operation_carry_its_id_across_tasks() -> None:
    stream = logged()

    async def child() -> None:
        kv(LOG, logging.INFO, "in a task")

    async def call() -> str:
        with operation() as op:
            kv(LOG, logging.INFO, "started")
            await asyncio.create_task(child())
            return op

    op = asyncio.run(call())
    kv(LOG, logging.INFO, "after")
    assert stream.getvalue() == f"started op={op}\nin a task op={op}\nafter\n"


def test_operations_differ() -> None:
    with operation() as one, operation() as two:
        assert one != two


def test_level_can_change_while_running() -> None:
    stream = logged("warning")
    kv(LOG, logging.INFO, "unheard")
    set_level("info")
    kv(LOG, logging.INFO, "heard")
    assert stream.getvalue() == "heard\n"


def test_libraries_are_heard_from_warning_on() -> None:
    stream = logged("debug")
    logging.getLogger("library").info("chatter")
    logging.getLogger("library").warning("odd\n<0>forged")
    assert stream.getvalue() == "odd\\n<0>forged\n"


def test_second_setup_replaces_the_first() -> None:
    first, second = logged(), logged()
    kv(LOG, logging.INFO, "once")
    assert (first.getvalue(), second.getvalue()) == ("", "once\n")


def test_traceback_follows_indented() -> None:
    stream = logged()
    LOG.error("bug", exc_info=ValueError("a\nclaim prepared claim=forged"))
    first, *rest = stream.getvalue().splitlines()
    assert first == "bug"
    assert rest
    assert all(text.startswith("  ") for text in rest)


@pytest.mark.parametrize(
    ("level", "prefix"),
    [(logging.DEBUG, "<7>"), (logging.INFO, "<6>"), (logging.WARNING, "<4>"), (logging.ERROR, "<3>")],
)
def test_journal_gets_the_level_in_front(
    level: int, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "journal").open("w+") as stream:
        status = os.fstat(stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
        setup("debug", stream)
        kv(LOG, level, "x")
        stream.seek(0)
        assert stream.read() == f"{prefix}x\n"


@pytest.mark.parametrize("told", ["", "1:2", "no", "1:2:3"])
def test_other_streams_get_no_prefix(told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOURNAL_STREAM", told)
    with (tmp_path / "journal").open("w+") as stream:
        setup("debug", stream)
        kv(LOG, logging.INFO, "x")
        stream.seek(0)
        assert stream.read() == "x\n"


HOSTILE = st.text(max_size=40) | st.sampled_from(
    ["a b", "x\n<3>claim prepared", 'q" claim=y', "\u202e", "\\", "", "\x1b[2J"]
)


@given(values=st.dictionaries(st.sampled_from(KEYS), HOSTILE))
def test_any_values_stay_on_one_line_and_come_back(values: Mapping[str, str]) -> None:
    text = line("claim prepared", values)
    assert text.isprintable()
    assert parsed(text) == ("claim prepared", dict(values))


def test_overlong_value_is_cut() -> None:
    assert parsed(line("x", {"err": "y" * 10_000}))[1]["err"] == "y" * 3997 + "..."


def test_keys_are_the_documented_ones() -> None:
    assert " ".join(KEYS) == (
        "op claim claim_uid pod pod_uid sandbox_id container container_id cpus mems numa device pool runtime version "
        "state count ms path err hint"
    )
