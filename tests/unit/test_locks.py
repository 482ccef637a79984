"""The locks hold every dependency with hashes, say the same, and name no place to fetch from."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.support import ROOT

LOCKS = ROOT / "packaging" / "locks"
ALL = ("runtime", "dev", "build", "lock", "package", "ansible")


def pins(name: str) -> dict[str, str]:
    """Return version by package of a lock."""
    return dict(re.findall(r"^([a-z0-9-]+)==([^ ]+)", (LOCKS / f"{name}.txt").read_text(), re.MULTILINE))


def declared(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=!~ ;\[]", text, maxsplit=1)[0].lower().replace("_", "-") for text in requirements}


def test_all_that_the_project_declares_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = declared(project["dependencies"])
    assert needed <= pins("runtime").keys()
    assert needed | declared(project["optional-dependencies"]["dev"]) <= pins("dev").keys()


@pytest.mark.parametrize("name", ["runtime", "build"])
def test_what_two_locks_hold_has_one_version(name: str) -> None:
    dev = pins("dev")
    assert {package: version for package, version in pins(name).items() if dev.get(package, version) != version} == {}


@pytest.mark.parametrize("name", ALL)
def test_every_pin_has_hashes_and_there_is_nothing_else(name: str) -> None:
    blocks = re.split(r"^(?=[a-z0-9])", (LOCKS / f"{name}.txt").read_text(), flags=re.MULTILINE)[1:]
    assert blocks
    form = re.compile(r"[a-z0-9-]+==[^\s;]+( ; [^\\\n]+)?( \\\n    --hash=sha256:[0-9a-f]{64})+\n")
    assert [block.splitlines()[0] for block in blocks if not form.fullmatch(block)] == []
