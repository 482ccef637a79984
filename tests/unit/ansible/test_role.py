"""The Ansible role as files: what it says of its options is what it does."""

from __future__ import annotations

import yaml  # type: ignore[import-untyped]  # its stubs are no dependency of ours

from tests.support import ROOT

PLAYS = ROOT / "ansible"
ROLE = PLAYS / "roles" / "nodecpu"


def options() -> dict[str, dict[str, object]]:
    spec = yaml.safe_load((ROLE / "meta" / "argument_specs.yml").read_text())
    found: dict[str, dict[str, object]] = spec["argument_specs"]["main"]["options"]
    return found


def test_defaults_are_those_that_the_specification_tells() -> None:
    defaults = yaml.safe_load((ROLE / "defaults" / "main.yml").read_text())
    assert defaults == {name: option["default"] for name, option in options().items()}


def test_every_option_is_typed_described_and_used() -> None:
    text = "".join(path.read_text() for path in PLAYS.rglob("*") if path.suffix in {".yml", ".j2"} and path.is_file())
    for name, option in options().items():
        assert {"type", "default", "description"} <= option.keys(), name
        assert text.count(name) > 2, f"{name} is not used"
