"""The command line as data, read from its argument parser (pure): what man pages and completions are written from."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option or argument. ``names`` of an argument is its one name in the usage; ``value`` is empty for a switch."""

    names: tuple[str, ...]
    value: str
    help: str
    choices: tuple[str, ...]
    is_file: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """A verb, or an action of one. ``usage`` are its arguments as the synopsis has them."""

    path: tuple[str, ...]
    help: str
    usage: tuple[str, ...]
    options: tuple[Option, ...]
    arguments: tuple[Option, ...]


def verbs_of(parser: argparse.ArgumentParser) -> tuple[Verb, ...]:
    """Return all verbs, those with actions once for each action, in the order of the help."""
    return tuple(_walk(parser, ()))


def _walk(parser: argparse.ArgumentParser, path: tuple[str, ...]) -> Iterator[Verb]:
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            continue
        helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
        for name, below in action.choices.items():
            if name not in helps:
                continue
            inner = tuple(_walk(below, (*path, name)))
            yield from inner or (_verb(below, (*path, name), helps[name]),)


def _verb(parser: argparse.ArgumentParser, path: tuple[str, ...], text: str) -> Verb:
    shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    arguments = tuple(_option(parser, action) for action in shown if not action.option_strings)
    return Verb(
        path=path,
        help=text,
        usage=tuple(f"[{one.names[0]}]" for one in arguments),
        options=tuple(_option(parser, action) for action in shown if action.option_strings),
        arguments=arguments,
    )


def _option(parser: argparse.ArgumentParser, action: argparse.Action) -> Option:
    name = str(action.metavar or (action.dest.upper() if action.option_strings else action.dest))
    text = action.help or ""
    return Option(
        names=tuple(action.option_strings) or (name,),
        value="" if action.nargs == 0 or not action.option_strings else name,
        help=text % {**vars(action), "prog": parser.prog} if "%" in text else text,
        choices=tuple(str(choice) for choice in action.choices or ()),
        is_file=name.upper() in {"FILE", "DIR"},
    )
