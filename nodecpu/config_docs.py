"""What is written about the configuration, made from its schema: the sample file and the reference (pure)."""

from __future__ import annotations

import textwrap

from nodecpu.config import SECTIONS, SETTINGS, Config, Setting, toml_text


def sample_toml() -> str:
    """Return a file with every setting explained and commented out at its default."""
    parts = ["# nodecpu. Every setting stands here at its default; take away the # to change one.\n"]
    for table, section in SECTIONS.items():
        parts.append(f"\n# {section.__doc__}\n[{table}]\n")
        for s in (s for s in SETTINGS if s.table == table):
            parts += (f"# {line}\n" for line in textwrap.wrap(_plain(s), 98))
            parts.append(f"#{s.key} = {toml_text(s.value(Config()))}\n")
    return "".join(parts)


def reference_markdown() -> str:
    """Return the reference of all settings; the file in docs is compared with it by a test."""
    lines = [
        "# Configuration",
        "",
        "The file is TOML, by custom `/etc/nodecpu/nodecpu.toml`. Every setting has a default; an empty file is valid.",
        "`nodecpu config check FILE` lists every mistake, `nodecpu config show FILE` prints what is in force,",
        "`nodecpu config init` prints a file to begin with. Settings marked *reload* change with",
        "`systemctl reload nodecpu`, the others with a restart.",
    ]
    for table, section in SECTIONS.items():
        lines += ["", f"## [{table}]", "", f"{section.__doc__}", ""]
        lines += ["| key | must be | default | applied by | meaning |", "| --- | --- | --- | --- | --- |"]
        lines += (
            f"| `{s.key}` | {s.form.allowed.replace('|', chr(92) + '|')} | `{toml_text(s.value(Config()))}` "
            f"| {'reload' if s.reloadable else 'restart'} | {s.help} |"
            for s in SETTINGS
            if s.table == table
        )
    return "\n".join(lines) + "\n"


def _plain(setting: Setting) -> str:
    return f"{setting.help.replace('`', '')} Must be {setting.form.allowed}."
