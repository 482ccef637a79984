"""Scenario files: what is wrong is named with file, step and key, and all of it at once."""

from __future__ import annotations

import pytest

from nodecpu.errors import ConfigError
from nodecpu.lab.arguments import RUNTIMES
from nodecpu.lab.flavours import FLAVOURS
from nodecpu.lab.run import load_scenario, scenario_files
from nodecpu.lab.scenario import parse_scenario

GOOD = """
title = "t"
[claims.web]
results = [{ node = 1, cpus = 2 }]
[pods.shop]
containers.main = { claims = ["web"] }
[play]
steps = [
  { daemon = "start" },
  { claim = "web" },
  { start = "shop", prepares = 1, say = "go" },
  { see = "shop/main", cpus = "4-5" },
]
"""


def test_every_runtime_that_is_played_can_be_chosen() -> None:
    assert tuple(FLAVOURS) == RUNTIMES


def test_good_file_is_read() -> None:
    scenario = parse_scenario("x.toml", GOOD)
    assert [step.verb for step in scenario.steps] == ["daemon", "claim", "start", "see"]
    assert scenario.claims["web"].wants[0].numa == 1
    assert scenario.steps[3].text("cpus") == "4-5"


@pytest.mark.parametrize("name", scenario_files())
def test_every_scenario_that_comes_with_the_program_is_read(name: str) -> None:
    assert load_scenario(name).title


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('"4-5" }', "45 }", "x.toml: step 4 (see) cpus: 45 is not a text"),
        ('cpus = "4-5"', 'cpu = "4-5"', "x.toml: step 4 (see): unknown key 'cpu', is 'cpus' meant?"),
        ('see = "shop/main"', 'sea = "shop/main"', "x.toml: step 4: has 0 verbs among its keys (sea, cpus)"),
        ('claim = "web"', 'claim = "wep"', "x.toml: step 2 (claim): unknown name 'wep', is 'web' meant?"),
        ('claims = ["web"]', 'claims = ["wob"]', "x.toml: [pods.shop] container main claims: unknown name 'wob'"),
        ('daemon = "start"', 'daemon = "stard"', "x.toml: step 1 (daemon): unknown name 'stard', is 'start' meant?"),
        ("cpus = 2", "amount = 2", "x.toml: [claims.web]: unknown key 'amount'"),
        ("cpus = 2", 'cpus = "-1"', "x.toml: [claims.web]: cpus: not a quantity: '-1'"),
        ('title = "t"', "title = 1", "x.toml: title must be a text, not 1"),
    ],
)
def test_mistake_is_named(old: str, new: str, problem: str) -> None:
    with pytest.raises(ConfigError) as failed:
        parse_scenario("x.toml", GOOD.replace(old, new))
    assert any(found.startswith(problem) for found in failed.value.problems), failed.value.problems


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as failed:
        parse_scenario("x.toml", GOOD.replace("prepares", "preparez").replace("cpus = 2", "c = 2"))
    assert len(failed.value.problems) == 2


def test_broken_toml_is_named_with_its_line() -> None:
    with pytest.raises(ConfigError, match=r"x\.toml: .*line 1"):
        parse_scenario("x.toml", "title = \n")


def test_unknown_scenario_is_refused_with_a_hint() -> None:
    with pytest.raises(ConfigError, match="--list shows them"):
        load_scenario("no such thing")


def test_copies_have_the_number_in_names_and_texts() -> None:
    content = GOOD.replace("[claims.web]", '[claims."web#"]\ncopies = 2').replace(
        '[pods.shop]\ncontainers.main = { claims = ["web"] }',
        '[pods."shop#"]\ncopies = 2\ncontainers.main = { claims = ["web#"] }',
    )
    content = content.replace('claim = "web"', 'claim = "web1"').replace('"shop', '"shop1')
    scenario = parse_scenario("x.toml", content.replace('[pods."shop1#"]', '[pods."shop#"]'))
    assert list(scenario.claims) == ["web0", "web1"]
    assert scenario.pods["shop1"].containers[0].claims == ("web1",)


@pytest.mark.parametrize(
    ("lab", "problem"),
    [
        ('kubernetes = "1.33"', "from 1.34 on"),
        ('kubernetes = "1.36"\ngates = { DRAListTypeAttribute = true }', "is 'DRAListTypeAttributes' meant?"),
    ],
)
def test_version_and_gates_are_checked(lab: str, problem: str) -> None:
    with pytest.raises(ConfigError) as failed:
        parse_scenario("x.toml", GOOD.replace("[claims.web]", f"[lab]\n{lab}\n[claims.web]"))
    assert problem in failed.value.problems[0]
