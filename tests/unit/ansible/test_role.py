"""The Ansible role as files: what it says of its options is what it does."""

from __future__ import annotations

import re

import yaml  # type: ignore[import-untyped]  # its stubs are no dependency of ours

from nodecpu import __version__
from tests.support import ROOT

PLAYS = ROOT / "ansible"
ROLE = PLAYS / "roles" / "nodecpu"


def test_collection_is_of_the_programs_version_and_needs_what_the_role_needs() -> None:
    galaxy = yaml.safe_load((PLAYS / "galaxy.yml").read_text())
    role = yaml.safe_load((ROLE / "meta" / "main.yml").read_text())["galaxy_info"]
    runtime = yaml.safe_load((PLAYS / "meta" / "runtime.yml").read_text())
    assert galaxy["version"] == __version__
    assert (galaxy["namespace"], galaxy["name"]) == (role["namespace"], role["role_name"])
    assert runtime["requires_ansible"] == f">={role['min_ansible_version']}.0"
    assert (PLAYS / galaxy["readme"]).is_file()


def options() -> dict[str, dict[str, object]]:
    spec = yaml.safe_load((ROLE / "meta" / "argument_specs.yml").read_text())
    found: dict[str, dict[str, object]] = spec["argument_specs"]["main"]["options"]
    return found


def test_defaults_are_those_that_the_specification_tells() -> None:
    defaults = yaml.safe_load((ROLE / "defaults" / "main.yml").read_text())
    assert defaults == {name: option["default"] for name, option in options().items()}


def test_every_option_is_typed_described_and_used() -> None:
    told = {ROLE / "meta" / "argument_specs.yml", ROLE / "defaults" / "main.yml"}
    files = [path for path in PLAYS.rglob("*") if path.suffix in {".yml", ".j2"} and path.is_file()]
    words = set(re.findall(r"\w+", "".join(path.read_text() for path in files if path not in told)))
    for name, option in options().items():
        assert {"type", "default", "description"} <= option.keys(), name
        assert name in words, f"{name} is not used"


def tasks(name: str) -> list[dict[str, object]]:
    """Return the tasks of a file of the role, those of blocks among them."""
    found: list[dict[str, object]] = []
    for task in yaml.safe_load((ROLE / "tasks" / f"{name}.yml").read_text()):
        found += task.get("block", [task])
    return found


def test_runtime_is_changed_last_and_restarted_at_once() -> None:
    """What a play that fails leaves undone, no later one does: the file is changed by then, and notifies nobody."""
    included = [task.get("ansible.builtin.include_tasks") for task in tasks("main")]
    assert included[-2:] == ["run.yml", "runtime.yml"]
    assert tasks("runtime")[-1]["ansible.builtin.meta"] == "flush_handlers"
    for name in ("runtime_look", "asked", "preflight"):
        assert not [task for task in tasks(name) if "notify" in task]


def test_end_of_containers_is_waited_for_before_a_configuration_is_written() -> None:
    steps = [next((key for key in task if key.startswith("ansible.builtin.")), "") for task in tasks("configure")]
    written = next(at for at, task in enumerate(tasks("configure")) if task.get("notify"))
    waits = tasks("configure")[written - 1]
    assert steps[written - 1] == "ansible.builtin.command"
    assert "nodecpu_wait_command" in str(waits)


def test_configuration_that_leaves_no_cpu_is_refused_before_it_is_written() -> None:
    tried = [at for at, task in enumerate(tasks("configure")) if "--dry-run" in str(task)]
    written = next(at for at, task in enumerate(tasks("configure")) if task.get("notify"))
    assert len(tried) == 1
    assert tried[0] < written
