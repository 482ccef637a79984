# ruff: noqa: RUF009 - the tables are frozen values
"""The configuration: one frozen schema that is parser, validator, sample and reference in one.

Every setting is declared once, in ``config_sections``, with its form, default, help, unit and whether a reload applies
it. A file is read in full or refused with every mistake that can be seen, never half taken. Only ``load`` touches the
disk. A ``Config`` that ``parse`` returned is valid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from nodecpu.config_forms import Form, TomlValue, parse_amount
from nodecpu.config_sections import (
    Annotations,
    Claims,
    Dra,
    Enforce,
    Export,
    Kube,
    Log,
    Metrics,
    Node,
    Nri,
    Paths,
    Policy,
    Scheduling,
)
from nodecpu.config_toml import Problem, Source, read_toml, shown
from nodecpu.errors import ConfigError

__all__ = [
    "SETTINGS",
    "Annotations",
    "Claims",
    "Config",
    "Dra",
    "Enforce",
    "Export",
    "FieldChange",
    "Kube",
    "Log",
    "Metrics",
    "Node",
    "Nri",
    "Paths",
    "Policy",
    "Scheduling",
    "Setting",
    "load",
    "parse",
    "parse_amount",
    "render_origins",
    "render_toml",
]

MAX_FILE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldChange:
    """One setting that differs between two configurations; values as they stand in a file."""

    key: str
    old: str
    new: str
    reloadable: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The whole configuration; one attribute per table of the file."""

    node: Node = Node()
    paths: Paths = Paths()
    nri: Nri = Nri()
    kube: Kube = Kube()
    dra: Dra = Dra()
    policy: Policy = Policy()
    claims: Claims = Claims()
    annotations: Annotations = Annotations()
    scheduling: Scheduling = Scheduling()
    enforce: Enforce = Enforce()
    export: Export = Export()
    metrics: Metrics = Metrics()
    log: Log = Log()

    def changes(self, new: Config) -> tuple[FieldChange, ...]:
        """Return what is different in ``new``, in the order of the schema."""
        return tuple(
            FieldChange(key=s.name, old=toml_text(s.value(self)), new=toml_text(s.value(new)), reloadable=s.reloadable)
            for s in SETTINGS
            if s.value(self) != s.value(new)
        )

    def reloaded(self, new: Config) -> Config:
        """Return this configuration with those settings of ``new`` that can change while running."""
        taken: dict[str, dict[str, object]] = {}
        for s in SETTINGS:
            source = new if s.reloadable else self
            taken.setdefault(s.table, {})[s.attribute] = getattr(getattr(source, s.table), s.attribute)
        return _build(taken)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One declared setting. ``unit`` is ``s`` for seconds, ``mcpu`` for milli-CPU, empty for none."""

    table: str
    key: str
    attribute: str
    form: Form[object]
    help: str
    reloadable: bool

    @property
    def name(self) -> str:
        """Table and key, as messages name it."""
        return f"{self.table}.{self.key}"

    @property
    def unit(self) -> str:
        """The unit that its name carries."""
        suffix = self.attribute.rpartition("_")[2]
        return suffix if suffix in ("s", "mcpu") else ""

    def value(self, config: Config) -> TomlValue:
        """Return its value in a configuration as it stands in a file."""
        return self.form.write(getattr(getattr(config, self.table), self.attribute))


SECTIONS: Final[Mapping[str, Callable[..., object]]] = {f.name: type(f.default) for f in fields(Config)}
"""The tables of the file, in order."""

SETTINGS: Final[tuple[Setting, ...]] = tuple(
    Setting(
        table=table.name,
        key=f.metadata["key"] or f.name,
        attribute=f.name,
        form=f.metadata["form"],
        help=f.metadata["help"],
        reloadable=f.metadata["reloadable"],
    )
    for table in fields(Config)
    for f in fields(getattr(Config(), table.name))
)
"""Every setting, in the order of the schema."""


_BEGIN: Final = "`nodecpu config init` prints a file to begin with"


def load(path: Path) -> Config:
    """Return the configuration in a file; ConfigError with every mistake that can be seen."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"configuration {path} cannot be read: {error.strerror}",
            hint="run this as root" if isinstance(error, PermissionError) else _BEGIN,
        ) from error
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError(f"configuration {path} is larger than {MAX_FILE_BYTES} bytes", hint="is it the right file?")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise _refusal(str(path), [Problem(line, "not UTF-8 text")]) from error
    return parse(text, str(path))


def parse(text: str, name: str) -> Config:
    """Return the configuration written in TOML; ConfigError with every mistake, ``name`` telling where they are."""
    source = read_toml(text)
    problems = list(source.problems)
    values: dict[str, dict[str, object]] = {}
    for table, found in source.tree.items():
        if table not in SECTIONS:
            problems.append(Problem(source.line(table), _unknown_table(table, found)))
        elif not isinstance(found, dict):
            problems.append(Problem(source.line(table), f"{table}: must be a table, not {shown(found)}"))
        else:
            values[table] = {}
            problems += _read_table(table, found, source, values[table])
    config = _build(values)
    problems += (Problem(source.line(*key.split(".")), f"{key}: {what}") for key, what in _conflicts(config))
    if problems:
        raise _refusal(name, problems)
    return config


def _build(values: Mapping[str, Mapping[str, object]]) -> Config:
    make: Callable[..., Config] = Config
    return make(**{table: SECTIONS[table](**found) for table, found in values.items()})


def _read_table(
    table: str, found: Mapping[str, object], source: Source, values: dict[str, object]
) -> Iterator[Problem]:
    """Fill ``values`` by attribute with what is right, yield what is wrong."""
    known = {s.key: s for s in SETTINGS if s.table == table}
    for key, value in found.items():
        setting = known.get(key)
        if setting is None:
            yield Problem(source.line(table, key), _unknown_key(table, key))
            continue
        try:
            values[setting.attribute] = setting.form.read(value)
        except ValueError as error:
            detail = f" ({error})" if str(error) else ""
            yield Problem(
                source.line(table, key), f"{setting.name} = {shown(value)}: must be {setting.form.allowed}{detail}"
            )


def _conflicts(config: Config) -> Iterator[tuple[str, str]]:
    """Yield settings that are right each by itself but not together."""
    available, reserved = config.policy.available.cpus, config.policy.reserved.cpus
    if available and not reserved <= available:
        yield "policy.reserved", f"CPUs {reserved - available} are not among policy.available ({available})"
    classes = [one.name for one in config.scheduling.classes]
    if twice := sorted({name for name in classes if classes.count(name) > 1}):
        yield "scheduling.classes", f"{twice[0]} is there more than once"
    for key, pairs in (("namespaces", config.scheduling.namespaces), ("qos", config.scheduling.qos)):
        for _, name in pairs:
            if name not in classes:
                yield f"scheduling.{key}", f"there is no class {name}"
    if config.policy.full_cores and config.policy.spread == "cores":
        yield "policy.spread", "full cores and one thread of each core exclude each other"
    if config.policy.align_l3 and config.policy.spread == "numa":
        yield "policy.spread", "CPUs cannot share an L3 cache and be spread over several NUMA nodes"


def _unknown_table(table: str, found: object) -> str:
    if isinstance(found, dict):
        return f"[{_safe(table)}]: unknown table{_nearest(table, list(SECTIONS), '[{}]')}"
    homes = [s.table for s in SETTINGS if s.key == table]
    where = f"; it belongs into [{homes[0]}]" if homes else ""
    return f"{_safe(table)}: unknown key outside of any table{where}"


def _unknown_key(table: str, key: str) -> str:
    near = _nearest(key, [s.key for s in SETTINGS if s.table == table], '"{}"')
    homes = [s.table for s in SETTINGS if s.key == key]
    return f"{table}.{_safe(key)}: unknown key{f'; it belongs into [{homes[0]}]' if homes else near}"


def _nearest(word: str, known: list[str], form: str) -> str:
    import difflib  # noqa: PLC0415 - for mistakes alone: 3 ms of a start and 140 KiB

    near = difflib.get_close_matches(word.lower()[:80], known, n=1)
    return f"; did you mean {form.format(near[0])}?" if near else ""


def _safe(key: str) -> str:
    """Return a key for a message: as it is, or quoted where a bare key could not be so."""
    return key if key.isascii() and key.replace("-", "_").isidentifier() else shown(key)


def _refusal(name: str, problems: list[Problem]) -> ConfigError:
    lines = tuple(f"{name}:{p.line}: {p.text}" if p.line else f"{name}: {p.text}" for p in sorted(problems))
    count = f"{len(lines)} mistakes" if len(lines) > 1 else "a mistake"
    return ConfigError(f"configuration {name} has {count}", hint="correct the lines named", problems=lines)


def render_toml(config: Config) -> str:
    """Return a configuration as TOML with every setting in it."""
    import tomli_w  # noqa: PLC0415 - a daemon writes none

    tree: dict[str, dict[str, TomlValue]] = {}
    for s in SETTINGS:
        tree.setdefault(s.table, {})[s.key] = s.value(config)
    return tomli_w.dumps(tree)


def render_origins(config: Config, path: Path) -> str:
    """Return a loaded configuration as TOML; a comment on each setting tells its line in the file, or ``default``."""
    source = read_toml(path.read_text(encoding="utf-8"))
    lines: list[str] = []
    table = ""
    for s in SETTINGS:
        if s.table != table:
            lines += ["", f"[{s.table}]"] if table else [f"[{s.table}]"]
            table = s.table
        line = source.lines.get((s.table, s.key))
        origin = f"{path}:{line}" if line and s.key in _table(source, s.table) else "default"
        lines.append(f"{s.key} = {toml_text(s.value(config))}  # {origin}")
    return "".join(f"{line}\n" for line in lines)


def _table(source: Source, name: str) -> Mapping[str, object]:
    found = source.tree.get(name)
    return found if isinstance(found, dict) else {}


def toml_text(value: TomlValue) -> str:
    """Return a value as it stands in a file, on one line."""
    if isinstance(value, list):
        return f"[{', '.join(toml_text(item) for item in value)}]"
    import tomli_w  # noqa: PLC0415 - a daemon writes none, but for a setting that a reload has changed

    return tomli_w.dumps({"x": value}).removeprefix("x = ").rstrip("\n")
