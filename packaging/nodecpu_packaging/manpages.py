"""The man pages, written from what the program itself knows: its argument parser and its table of settings (pure).

Debian's tools for this (help2man, argparse-manpage) read ``--help`` of one command; ours has a tree of verbs, and the
page of the configuration has no ``--help`` at all. The few requests of man(7) that are needed are written here.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator

from nodecpu.config import SECTIONS, SETTINGS, Config, toml_text
from nodecpu_packaging.verbs import Verb, verbs_of


def command_page(parser: argparse.ArgumentParser, *, version: str, date: str) -> str:
    """Return nodecpu(1)."""
    parts = [
        _head("NODECPU", 1, version, date),
        *_section("NAME", rf"{parser.prog} \- {_text(_sentence(parser.description))}"),
        *_section("SYNOPSIS", rf".B {parser.prog}", ".I VERB", r"[\fIoptions\fR]"),
        ".SH VERBS",
    ]
    for verb in verbs_of(parser):
        parts += _verb(parser.prog, verb)
    parts += _section("EXIT STATUS", _text((parser.epilog or "").removeprefix("Exit codes: ")))
    parts += _section(
        "FILES",
        *_item(r"\fI/etc/nodecpu/nodecpu.toml\fR", "The configuration, see nodecpu.toml(5)."),
        *_item(r"\fI/etc/nodecpu/kubeconfig\fR", "The credentials for the API server, by default."),
        *_item(r"\fI/var/lib/nodecpu/claims.db\fR", "Which claim has which CPUs."),
        *_item(r"\fI/run/nodecpu/admin.sock\fR", "Where the daemon is asked."),
    )
    parts += _section("SEE ALSO", r".BR nodecpu.toml (5),", ".BR nodecpu.service (8)")
    return _page(parts)


def settings_page(*, version: str, date: str) -> str:
    """Return nodecpu.toml(5)."""
    parts = [
        _head("NODECPU.TOML", 5, version, date),
        *_section("NAME", r"nodecpu.toml \- configuration of nodecpu"),
        *_section("SYNOPSIS", r".I /etc/nodecpu/nodecpu.toml"),
        *_section(
            "DESCRIPTION",
            "A TOML file. Every setting has a default; an empty file is valid.",
            r"\fBnodecpu config check\fR lists every mistake,",
            r"\fBnodecpu config show\fR prints what is in force,",
            r"\fBnodecpu config init\fR prints a file to begin with.",
            "Settings said to change by reload change with",
            r"\fBsystemctl reload nodecpu\fR, the others with a restart.",
        ),
    ]
    for table, section in SECTIONS.items():
        parts += [rf".SH [{_text(table)}]", _text(section.__doc__ or "")]
        for s in (s for s in SETTINGS if s.table == table):
            how = "Changes by reload." if s.reloadable else "Changes by restart."
            default = _text(toml_text(s.value(Config())))
            parts += _item(rf"\fB{_text(s.key)}\fR = {default}", f"{s.help} Must be {s.form.allowed}. {how}")
    parts += _section("SEE ALSO", ".BR nodecpu (1),", ".BR nodecpu.service (8)")
    return _page(parts)


def service_page(unit: str, *, version: str, date: str) -> str:
    """Return nodecpu.service(8); ``unit`` is the text of the unit, whose comments explain it."""
    parts = [
        _head("NODECPU.SERVICE", 8, version, date),
        *_section("NAME", r"nodecpu.service \- keeps the CPUs of this Kubernetes node"),
        *_section("SYNOPSIS", r".B systemctl start|stop|reload|status nodecpu"),
        *_section(
            "DESCRIPTION",
            "Runs the daemon of",
            ".BR nodecpu (1).",
            "It is ready once the kubelet can call it. It feeds systemd's watchdog as long as its loop and the thread",
            "that writes the books work. A stop or restart leaves every container on the CPUs it has; containers that",
            "start meanwhile are corrected afterwards.",
            "A wrong configuration ends it with status 78, and it is not started again until somebody does so.",
        ),
        *_section(
            "RELOAD",
            "A reload takes over those settings that can change while running. A file with mistakes changes nothing;",
            "the journal says what is wrong with it.",
        ),
        *_section(
            "CONFINING IT",
            "The daemon runs on any CPU that it may. To keep it on some, such as the reserved ones, add a drop-in:",
            ".EX",
            "# systemctl edit nodecpu",
            "[Service]",
            "AllowedCPUs=0-1",
            ".EE",
        ),
        *_section(
            "REMOVING IT",
            r"While claims are in the books the package is not removed: without a driver their pods stay Terminating.",
            r"Delete the pods first, or set \fBNODECPU_FORCE_REMOVE=1\fR. Pods that are stuck then are freed by",
            "installing the package again.",
        ),
        ".SH THE UNIT",
        ".EX",
        *(_text(line) or r"\&" for line in unit.splitlines()),
        ".EE",
        *_section("SEE ALSO", ".BR nodecpu (1),", ".BR nodecpu.toml (5),", ".BR systemd.service (5)"),
    ]
    return _page(parts)


def _verb(program: str, verb: Verb) -> Iterator[str]:
    yield rf".SS {program} {_text(' '.join((*verb.path, *verb.usage)))}"
    yield _text(_sentence(verb.help, point=True))
    for option in verb.options:
        name = ", ".join(rf"\fB{_text(text)}\fR" for text in option.names)
        yield from _item(name + (rf" \fI{_text(option.value)}\fR" if option.value else ""), option.help)


def _head(name: str, section: int, version: str, date: str) -> str:
    return f'.TH {name} {section} "{date}" "nodecpu {version}" "nodecpu"'


def _section(title: str, *lines: str) -> tuple[str, ...]:
    return (f".SH {title}", *lines)


def _item(term: str, text: str) -> tuple[str, ...]:
    return (".TP", term, _text(_sentence(text, point=True)))


def _sentence(text: str | None, *, point: bool = False) -> str:
    """Return words as one sentence with a capital and a full stop, or as the phrase after a name without them."""
    plain = " ".join((text or "").split())
    if point:
        return plain if not plain or plain.endswith((".", ":")) else f"{plain}."
    return plain.rstrip(".")


def _text(text: str) -> str:
    """Return words as roff has them: backslashes, dashes, quotes kept, Markdown's code in bold."""
    text = text.replace("\\", r"\e").replace("-", r"\-")
    text = re.sub(r"`([^`]*)`", r"\\fB\1\\fR", text)
    return re.sub(r"^(?=[.'])", r"\\&", text, flags=re.MULTILINE)


def _page(parts: list[str]) -> str:
    return "\n".join(parts) + "\n"
