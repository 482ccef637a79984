"""Completion for bash, zsh and fish, written from the argument parser (pure)."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator

from nodecpu_packaging.verbs import Option, Verb, verbs_of


def bash(parser: argparse.ArgumentParser) -> str:
    """Return the completion for bash: words by place, files where an option or argument takes one."""
    verbs = verbs_of(parser)
    firsts = tuple(dict.fromkeys(verb.path[0] for verb in verbs))
    cases = [f"    '') words={shlex.quote(' '.join(firsts))} ;;"]
    for first in firsts:
        actions = [verb.path[1] for verb in verbs if verb.path[0] == first and len(verb.path) > 1]
        if actions:
            cases.append(f"    {shlex.quote(first)}) words={shlex.quote(' '.join(actions))} ;;")
    cases += (
        f"    {shlex.quote(' '.join(verb.path))}) words={shlex.quote(' '.join(_words(verb)))} ;;" for verb in verbs
    )
    paths = "|".join(shlex.quote(" ".join(verb.path)) for verb in verbs)
    files = "|".join(
        sorted({name for verb in verbs for option in verb.options if option.is_file for name in option.names})
    )
    return f"""# bash completion for {parser.prog}
_{parser.prog}() {{
  local word path='' words=''
  local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD - 1]}}"
  COMPREPLY=()
  case "$previous" in
    {files or "''"})
      mapfile -t COMPREPLY < <(compgen -f -- "$current")
      return ;;
  esac
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "$path" in
      {paths}) break ;;
    esac
    path="${{path:+$path }}$word"
  done
  case "$path" in
{chr(10).join(cases)}
  esac
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
}}
complete -o bashdefault -o default -F _{parser.prog} {parser.prog}
"""


def zsh(parser: argparse.ArgumentParser) -> str:
    """Return the completion for zsh, with the help of each verb and option."""
    verbs = verbs_of(parser)
    lines = [f"#compdef {parser.prog}", "", "local -a verbs", "if (( CURRENT == 2 )); then"]
    lines += [*_zsh_list(_firsts(parser)), "  return", "fi", 'case "$words[2]" in']
    for first, _ in _firsts(parser):
        inner = [verb for verb in verbs if verb.path[0] == first]
        lines.append(f"  {shlex.quote(first)})")
        if len(inner[0].path) == 1:
            lines += _zsh_arguments(inner[0], shift=1)
        else:
            lines += ["  if (( CURRENT == 3 )); then", *_zsh_list([(verb.path[1], verb.help) for verb in inner])]
            lines += ["  return", "  fi", '  case "$words[3]" in']
            for verb in inner:
                lines += [f"  {shlex.quote(verb.path[1])})", *_zsh_arguments(verb, shift=2), "  ;;"]
            lines.append("  esac")
        lines.append("  ;;")
    return "\n".join([*lines, "esac", ""])


def fish(parser: argparse.ArgumentParser) -> str:
    """Return the completion for fish, with the help of each verb and option."""
    program = parser.prog
    verbs = verbs_of(parser)
    lines = [f"# fish completion for {program}", f"complete -c {program} -f"]
    for first, text in _firsts(parser):
        lines.append(f"complete -c {program} -n __fish_use_subcommand -a {shlex.quote(first)} -d {_fish(text)}")
    for verb in verbs:
        seen = f"__fish_seen_subcommand_from {verb.path[0]}"
        if len(verb.path) > 1:
            others = " ".join(other.path[1] for other in verbs if other.path[0] == verb.path[0] and len(other.path) > 1)
            before = shlex.quote(f"{seen}; and not __fish_seen_subcommand_from {others}")
            lines.append(f"complete -c {program} -n {before} -a {shlex.quote(verb.path[1])} -d {_fish(verb.help)}")
            seen = f"{seen}; and __fish_seen_subcommand_from {verb.path[1]}"
        lines += (f"complete -c {program} -n {shlex.quote(seen)} {_fish_option(option)}" for option in verb.options)
        if any(argument.is_file for argument in verb.arguments):
            lines.append(f"complete -c {program} -n {shlex.quote(seen)} -F")
    return "\n".join(lines) + "\n"


def _words(verb: Verb) -> Iterator[str]:
    for option in verb.options:
        yield from option.names
    for argument in verb.arguments:
        yield from argument.choices


def _firsts(parser: argparse.ArgumentParser) -> list[tuple[str, str]]:
    """Return the verbs with their help; of one with actions, the first action's path has no help of its own."""
    found: list[tuple[str, str]] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found += ((choice.dest, choice.help or "") for choice in action._choices_actions)
    return found


def _zsh_list(entries: list[tuple[str, str]]) -> list[str]:
    words = " ".join(shlex.quote(f"{name}:{text}") for name, text in entries)
    return [f"  verbs=({words})", "  _describe verb verbs"]


def _zsh_arguments(verb: Verb, *, shift: int) -> list[str]:
    specs: list[str] = []
    for option in verb.options:
        text = option.help.replace("[", r"\[").replace("]", r"\]").replace(":", r"\:")
        takes = f":{option.value}:{_zsh_action(option)}" if option.value else ""
        specs += (f"{name}[{text}]{takes}" for name in option.names)
    specs += (f"*:{argument.names[0]}:{_zsh_action(argument)}" for argument in verb.arguments)
    words = " ".join(shlex.quote(spec) for spec in specs)
    return [f"  shift {shift} words; (( CURRENT -= {shift} ))", f"  _arguments {words}"]


def _zsh_action(option: Option) -> str:
    if option.choices:
        return f"({' '.join(option.choices)})"
    return "_files" if option.is_file else ""


def _fish_option(option: Option) -> str:
    parts = [f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names]
    if option.value:
        parts.append("-r -F" if option.is_file else "-x")
    if option.choices:
        parts.append(f"-a {shlex.quote(' '.join(option.choices))}")
    return " ".join([*parts, f"-d {_fish(option.help)}"])


def _fish(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
