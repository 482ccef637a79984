"""``nodecpu lab``: plays scenarios against the real daemon and shows what is sent (the verb's entry).

Exit code 0 if every step came out as it should, 1 if one did not, 2 for wrong usage, 78 for what is no scenario,
machine or archive.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tarfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.markup import escape

from nodecpu.errors import ConfigError
from nodecpu.lab.arguments import ANYWHERE, DEMO, add_arguments
from nodecpu.lab.cgroups import CgroupError
from nodecpu.lab.jsontree import JsonObject, merged
from nodecpu.lab.play import Player
from nodecpu.lab.scenario import Scenario, Step, parse_scenario
from nodecpu.lab.stage import Stage, StageError, StageSettings, opened
from nodecpu.lab.steps import StepFailed
from nodecpu.lab.telling import is_worth_telling, told
from nodecpu.lab.trace import Sent
from nodecpu.lab.verbs import COMMON, VERBS

REPLAYED: Final = ("policy", "annotations", "scheduling", "dra")
"""The tables of settings that decide who gets what."""

SETTINGS_MEMBER: Final = "nodecpu-gather/config.toml"
"""Where a gathered archive holds the settings."""

LOG_LINES: Final = 15
MAX_SETTINGS_BYTES: Final = 1 << 20


def scenario_files() -> dict[str, Traversable]:
    """Return the scenarios that come with the program, by name."""
    found = {
        file.name.removesuffix(".toml"): file for file in resources.files("nodecpu.lab").joinpath("scenarios").iterdir()
    }
    return {name: found[name] for name in sorted(found) if found[name].name.endswith(".toml")}


def load_scenario(name: str) -> Scenario:
    """Return a scenario by name or file; ConfigError."""
    known = scenario_files()
    if name in known:
        return parse_scenario(f"{name}.toml", known[name].read_text(encoding="utf-8"))
    path = Path(name)
    if not path.is_file():
        raise ConfigError(f"no scenario {name!r}", hint="nodecpu lab --list shows them")
    return parse_scenario(str(path), path.read_text(encoding="utf-8"))


def replayed(archive: Path) -> JsonObject:
    """Return the settings of a gathered archive that decide what is given; ConfigError if it is no such archive.

    Its paths, sockets and names stay behind: they are the stage's own.
    """
    try:
        with tarfile.open(archive) as packed:
            file = packed.extractfile(SETTINGS_MEMBER)
            text = "" if file is None else file.read(MAX_SETTINGS_BYTES).decode()
        settings = tomllib.loads(text)
    except OSError as error:
        hint = "give the archive that nodecpu gather wrote on the node"
        raise ConfigError(f"{archive} cannot be read: {error.strerror or error}", hint=hint) from error
    except (tarfile.TarError, KeyError, ValueError) as error:
        why = "it is no archive" if isinstance(error, tarfile.ReadError) else error
        raise ConfigError(
            f"{archive} is not what nodecpu gather writes: {why}", hint="--machine takes any archive that holds sys"
        ) from error
    taken: JsonObject = {name: settings[name] for name in REPLAYED if name in settings}
    if isinstance(devices := taken.get("dra"), dict):
        devices.pop("driver", None)
    return taken


class Shower:
    """Prints a play as it goes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._looking = ""

    def say(self, sentence: str) -> None:
        """Print a sentence."""
        self._console.print(escape(sentence), soft_wrap=True)

    def title(self, scenario: Scenario, machine: str) -> None:
        """Print what is played where."""
        self._console.rule(f"[bold]{escape(scenario.title)}")
        self._console.print(f"machine {machine}, runtime {scenario.runtime}, rules {', '.join(scenario.rules) or '-'}")

    def begin(self, step: Step) -> None:
        """Print a step's headline."""
        said = step.text("say")
        if said:
            self._console.print(f"\n[bold]{escape(said)}")
        shown = {key: value for key, value in step.options.items() if key not in COMMON}
        what = step.target or ", ".join(f"{key} {value}" for key, value in step.table.items())
        extra = " ".join(f"{key}={value}" for key, value in shown.items())
        line = f"[cyan]{step.number:>3}[/] {step.verb} {escape(what)} [dim]{escape(extra)}"
        self._looking = line if step.verb.startswith("see") else ""
        if not self._looking:
            self._console.print(line, soft_wrap=True)

    def done(self, sent: tuple[Sent, ...], names: Mapping[str, str], changes: tuple[str, ...], *, well: bool) -> None:
        """Print what was sent and what is different now."""
        for one in sent:
            if is_worth_telling(one):
                self._console.print(f"      [dim]{escape(told(one, names))}", soft_wrap=True)
        for change in changes:
            self._console.print(f"      [green]{escape(change)}")
        if self._looking:
            self._console.print(f"{self._looking}  {'[bold green]✓' if well else '[bold red]✗'}", soft_wrap=True)


class Quiet:
    """Prints nothing."""

    def begin(self, step: Step) -> None:
        """Do nothing."""

    def done(self, sent: tuple[Sent, ...], names: Mapping[str, str], changes: tuple[str, ...], *, well: bool) -> None:
        """Do nothing."""


async def perform(scenario: Scenario, shower: Shower | None, *, machine: str, keep: bool = False) -> None:
    """Play one scenario; StepFailed if it does not come out as it should."""
    settings = StageSettings(
        machine=machine,
        runtime=scenario.runtime,
        cgroup_driver=scenario.cgroup_driver,
        real=scenario.real,
        kubernetes=scenario.kubernetes,
        daemon=scenario.daemon,
    )
    failure: StepFailed | None = None  # raised when the stage is closed: its task group would wrap it
    try:
        async with opened(settings, keep=keep) as stage:
            if shower is not None and keep:
                shower.say(f"everything is kept in {stage.root}")
            try:
                await _play(stage, scenario, shower, machine)
            except (StepFailed, StageError) as error:
                tail = "\n".join(stage.daemon.log_text().splitlines()[-LOG_LINES:])
                failure = StepFailed(f"{error}\nlast lines of the daemon's log:\n{tail}")
    except* (StageError, CgroupError, OSError) as group:
        failure = StepFailed(f"the stage cannot be set up: {group.exceptions[0]}")
    if failure is not None:
        raise failure


async def _play(stage: Stage, scenario: Scenario, shower: Shower | None, machine: str) -> None:
    if shower is None:
        await Player(stage, scenario, Quiet()).play()
        return
    shower.title(scenario, machine)
    await Player(stage, scenario, shower).play()
    await _draw(stage)


async def _draw(stage: Stage) -> None:
    sys.stdout.flush()
    if stage.daemon.is_running:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "nodecpu", "topology", "--config", str(stage.daemon.config))
        )
        if await process.wait():
            raise StageError("the node cannot be drawn")


def main(argv: Sequence[str]) -> int:
    """Run the verb and return its exit code."""
    args = _parser().parse_args(list(argv))
    console = Console(highlight=False)
    if args.list:
        for name in scenario_files():
            console.print(f"{name:<44} {escape(load_scenario(name).title)}", soft_wrap=True)
        return 0
    failed = 0
    gathered = None if args.gathered is None else replayed(args.gathered)
    for name in args.scenario or [DEMO if gathered is None and args.machine is None else ANYWHERE]:
        scenario = load_scenario(name)
        if gathered is not None:
            settings = merged(gathered, scenario.daemon)
            assert isinstance(settings, dict)
            scenario = replace(scenario, machine=str(args.gathered), daemon=settings)
        if args.runtime:
            scenario = replace(scenario, runtime=args.runtime)
        try:
            asyncio.run(perform(scenario, Shower(console), machine=args.machine or scenario.machine, keep=args.keep))
        except StepFailed as error:
            console.print(f"[bold red]{escape(str(error))}", soft_wrap=True)
            failed += 1
        else:
            console.print(f"\n[bold green]{escape(scenario.title)}: as it should be")
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    lines = ["steps of a scenario, one verb each with its options:"]
    for name, verb in VERBS.items():
        words = "|".join(verb.words) or verb.of.removesuffix("s").upper() or "TEXT"
        lines.append(f"  {name + ' = ' + words:<52} {verb.help}")
        lines += [f"      {key:<12} {option.help}" for key, option in verb.options.items()]
    parser = argparse.ArgumentParser(
        prog="nodecpu lab",
        description="Rehearse on this machine, without a cluster: the real daemon, everybody else played.",
        epilog="\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_arguments(parser)
    return parser
