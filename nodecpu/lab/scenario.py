"""Scenario files (pure): TOML in, a checked ``Scenario`` out, every mistake with file, step number and key.

A file has ``title``, the setting (``[lab]``, ``[daemon]``), the objects (``[claims.NAME]``, ``[pods.NAME]``) and, last,
``[play] steps``: one inline table per line, whose one verb is a key of ``VERBS`` and whose other keys are its options.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from nodecpu.errors import ConfigError
from nodecpu.lab.flavours import FLAVOURS
from nodecpu.lab.jsontree import Json, JsonObject, node, nodes
from nodecpu.lab.podspec import quantity
from nodecpu.lab.scheduler import Want
from nodecpu.lab.slicerules import OLDEST, Features, known_gates
from nodecpu.lab.verbs import COMMON, VERBS


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimPlan:
    """A claim of a scenario: what is asked for, and where it must come from.

    ``template``: it is made of one, and this is what the pod calls it.
    """

    name: str
    namespace: str
    wants: tuple[Want, ...]
    template: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerPlan:
    """A container of a scenario's pod; ``claims`` are ``name`` or ``name/request``; amounts as in pod specs.

    An init container ends before the next starts, a sidecar is one that stays.
    """

    name: str
    init: bool = False
    sidecar: bool = False
    claims: tuple[str, ...] = ()
    cpu: str = ""
    cpu_limit: str = ""
    memory: str = ""
    memory_limit: str = ""
    env: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodPlan:
    """A pod of a scenario; ``requests`` and ``limits`` are the pod's own."""

    name: str
    namespace: str
    containers: tuple[ContainerPlan, ...]
    annotations: Mapping[str, Json]
    handler: str
    requests: Mapping[str, Json]
    limits: Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step: ``number`` counts from 1, ``target`` is the verb's value."""

    number: int
    verb: str
    target: str
    table: Mapping[str, Json]
    options: Mapping[str, Json]

    def text(self, key: str) -> str | None:
        """Return a text option, None if it is not given."""
        value = self.options.get(key)
        return value if isinstance(value, str) else None

    def whole(self, key: str, default: int) -> int:
        """Return a whole number."""
        value = self.options.get(key)
        return value if isinstance(value, int) else default

    def seconds(self, key: str, default: float) -> float:
        """Return a time."""
        value = self.options.get(key)
        return float(value) if isinstance(value, (int, float)) else default

    def flag(self, key: str, *, default: bool) -> bool:
        """Return a yes or no."""
        value = self.options.get(key)
        return value if isinstance(value, bool) else default


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A whole file, checked for form: names, keys and types; whether the steps make sense shows in playing."""

    title: str
    rules: tuple[str, ...]
    machine: str
    runtime: str
    cgroup_driver: str
    real: bool
    kubernetes: Features
    daemon: JsonObject
    claims: Mapping[str, ClaimPlan]
    pods: Mapping[str, PodPlan]
    steps: tuple[Step, ...]


def parse_scenario(source: str, content: str) -> Scenario:
    """Return the scenario in a file's text; ConfigError with every mistake found, each named after ``source``."""
    try:
        table: JsonObject = dict(tomllib.loads(content))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source}: {error}") from error
    reader = _Reader(source)
    scenario = reader.scenario(table)
    if reader.problems:
        raise ConfigError(f"{source} is no scenario", problems=tuple(reader.problems))
    return scenario


class _Reader:
    """Reads one file, going on after mistakes."""

    def __init__(self, source: str) -> None:
        self.problems: list[str] = []
        self._source = source

    def scenario(self, table: JsonObject) -> Scenario:
        self._keys(table, ("title", "rules", "lab", "daemon", "claims", "pods", "play"), "")
        table = {**table, **{key: _copied(node(table, key)) for key in ("claims", "pods") if key in table}}
        lab, play = node(table, "lab"), node(table, "play")
        self._keys(lab, ("machine", "runtime", "cgroup_driver", "real", "kubernetes", "gates"), "[lab]")
        self._keys(play, ("steps",), "[play]")
        claims = {name: self._claim(name, node(table, "claims", name)) for name in node(table, "claims")}
        pods = {name: self._pod(name, node(table, "pods", name), claims) for name in node(table, "pods")}
        steps = nodes(play, "steps")
        if not steps:
            self._problem("[play]", "no steps")
        names = {"claims": tuple(claims), "pods": tuple(pods)}
        return Scenario(
            title=self._text(table, "title", "", ""),
            rules=self._texts(table, "rules", ""),
            machine=self._text(lab, "machine", "n4c16", "[lab]"),
            runtime=self._one_of(
                self._text(lab, "runtime", "containerd-2.4", "[lab]"), tuple(FLAVOURS), "[lab] runtime"
            ),
            cgroup_driver=self._one_of(
                self._text(lab, "cgroup_driver", "systemd", "[lab]"), ("systemd", "cgroupfs"), "[lab] cgroup_driver"
            ),
            real=lab.get("real") is True,
            kubernetes=self.features(lab),
            daemon=node(table, "daemon"),
            claims=claims,
            pods=pods,
            steps=tuple(self._step(number, step, names) for number, step in enumerate(steps, start=1)),
        )

    def wants(self, table: Mapping[str, Json], where: str) -> tuple[Want, ...]:
        """Return the results that a table's ``results`` list."""
        found = []
        for number, result in enumerate(nodes(table, "results")):
            self._keys(result, ("request", "cpus", "node", "device", "driver", "config"), where)
            numa, cpus = result.get("node"), result.get("cpus", "")
            if numa is not None and not isinstance(numa, int):
                self._problem(where, "node must be a number")
            try:
                quantity(str(cpus) or 0)
            except ValueError as error:
                self._problem(where, f'cpus: {error}, such as 2 or "500m"')
            found.append(
                Want(
                    request=self._text(result, "request", f"r{number}", where),
                    cpus=str(cpus),
                    numa=numa if isinstance(numa, int) else None,
                    device=self._text(result, "device", "", where) or None,
                    driver=self._text(result, "driver", "", where) or None,
                    config=node(result, "config") or None,
                )
            )
        if not found:
            self._problem(where, "no results")
        return tuple(found)

    def features(self, lab: Mapping[str, Json]) -> Features:
        """Return the version and gates that a table's ``kubernetes`` and ``gates`` tell."""
        gates = node(lab, "gates")
        for name, value in gates.items():
            self._one_of(name, known_gates(), "[lab.gates]")
            if not isinstance(value, bool):
                self._problem(f"[lab.gates] {name}", "must be true or false")
        told = self._text(lab, "kubernetes", "1.36", "[lab]")
        found = re.fullmatch(r"1\.([0-9]{2})", told)
        if found is None or int(found[1]) < OLDEST:
            self._problem("[lab] kubernetes", f"{told!r} is not a version such as 1.36, from 1.{OLDEST} on")
            return Features()
        return Features(minor=int(found[1]), gates={name: value is True for name, value in gates.items()})

    def _claim(self, name: str, table: JsonObject) -> ClaimPlan:
        where = f"[claims.{name}]"
        self._keys(table, ("namespace", "results", "template"), where)
        return ClaimPlan(
            name=name,
            namespace=self._text(table, "namespace", "default", where),
            wants=self.wants(table, where),
            template=self._text(table, "template", "", where),
        )

    def _pod(self, name: str, table: JsonObject, claims: Mapping[str, ClaimPlan]) -> PodPlan:
        where = f"[pods.{name}]"
        self._keys(table, ("namespace", "containers", "annotations", "runtime_class", "requests", "limits"), where)
        containers = node(table, "containers")
        if not containers:
            self._problem(where, "no containers")
        return PodPlan(
            name=name,
            namespace=self._text(table, "namespace", "default", where),
            containers=tuple(self._container(one, node(containers, one), where, claims) for one in containers),
            annotations=node(table, "annotations"),
            handler=self._text(table, "runtime_class", "", where),
            requests=node(table, "requests"),
            limits=node(table, "limits"),
        )

    def _container(self, name: str, table: JsonObject, pod: str, claims: Mapping[str, ClaimPlan]) -> ContainerPlan:
        where = f"{pod} container {name}"
        self._keys(table, ("init", "sidecar", "claims", "cpu", "cpu_limit", "memory", "memory_limit", "env"), where)
        used = self._texts(table, "claims", where)
        for claim in used:
            self._one_of(claim.partition("/")[0], tuple(claims), f"{where} claims")
        return ContainerPlan(
            name=name,
            init=table.get("init") is True,
            sidecar=table.get("sidecar") is True,
            claims=used,
            cpu=self._text(table, "cpu", "", where),
            cpu_limit=self._text(table, "cpu_limit", "", where),
            memory=self._text(table, "memory", "", where),
            memory_limit=self._text(table, "memory_limit", "", where),
            env=self._texts(table, "env", where),
        )

    def _step(self, number: int, table: JsonObject, names: Mapping[str, tuple[str, ...]]) -> Step:
        verbs = [key for key in table if key in VERBS]
        where = f"step {number}"
        if len(verbs) != 1:
            shown = ", ".join(table)
            self._problem(
                where, f"has {len(verbs)} verbs among its keys ({shown}), one is wanted of: {', '.join(VERBS)}"
            )
            return Step(number=number, verb="", target="", table={}, options={})
        name = verbs[0]
        verb, value = VERBS[name], table[name]
        where = f"step {number} ({name})"
        target = value if isinstance(value, str) else ""
        if not isinstance(value, (str, Mapping)):
            self._problem(where, "what it is about must be a text")
        if verb.words:
            self._one_of(target, verb.words, where)
        elif verb.of:
            self._one_of(target.partition("/")[0], names[verb.of], where)
        options = {key: child for key, child in table.items() if key != name}
        known = dict(COMMON) | dict(verb.options)
        self._keys(options, known, where)
        for key, child in options.items():
            if key in known and not isinstance(child, known[key].kinds):
                self._problem(f"{where} {key}", f"{child!r} is not {_kinds(known[key].kinds)}")
        if "results" in options:
            self.wants(options, where)
        if options.keys() & {"kubernetes", "gates"}:
            self.features(options)
        return Step(number=number, verb=name, target=target, table=node(table, name), options=MappingProxyType(options))

    def _keys(self, table: Mapping[str, Json], known: Iterable[str], where: str) -> None:
        names = tuple(known)
        for key in table:
            if key not in names:
                near = difflib.get_close_matches(key, names, 1)
                self._problem(where, f"unknown key {key!r}" + (f", is {near[0]!r} meant?" if near else ""))

    def _one_of(self, value: str, known: tuple[str, ...], where: str) -> str:
        if value not in known:
            near = difflib.get_close_matches(value, known, 1)
            hint = f", is {near[0]!r} meant?" if near else f"; known: {', '.join(known) or 'none'}"
            self._problem(where, f"unknown name {value!r}{hint}")
        return value

    def _text(self, table: Mapping[str, Json], key: str, default: str, where: str) -> str:
        value = table.get(key, default)
        if not isinstance(value, str):
            self._problem(where, f"{key} must be a text, not {value!r}")
            return default
        return value

    def _texts(self, table: Mapping[str, Json], key: str, where: str) -> tuple[str, ...]:
        value = table.get(key, [])
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            self._problem(where, f"{key} must be a list of texts")
            return ()
        return tuple(str(one) for one in value)

    def _problem(self, where: str, text: str) -> None:
        self.problems.append(": ".join(filter(None, (self._source, where, text))))


def _copied(tables: JsonObject) -> JsonObject:
    """Return tables by name; one with ``copies`` is as many, with the number for each ``#`` in name and texts."""
    found: JsonObject = {}
    for name, table in tables.items():
        copies = table.get("copies") if isinstance(table, Mapping) else None
        if not isinstance(copies, int) or not isinstance(table, Mapping):
            found[name] = table
            continue
        one: JsonObject = {key: value for key, value in table.items() if key != "copies"}
        for number in range(copies):
            found[name.replace("#", str(number))] = _numbered(one, number)
    return found


def _numbered(value: Json, number: int) -> Json:
    if isinstance(value, Mapping):
        return {key: _numbered(child, number) for key, child in value.items()}
    if isinstance(value, str):
        return value.replace("#", str(number))
    return [_numbered(child, number) for child in value] if isinstance(value, Sequence) else value


def features_of(options: Mapping[str, Json]) -> Features:
    """Return the version and gates in a checked step's options."""
    return _Reader("").features(options)


def wants_of(step: Step) -> tuple[Want, ...]:
    """Return the results in a checked step's options."""
    return _Reader("").wants(step.options, "")


def _kinds(kinds: tuple[type, ...]) -> str:
    words = {str: "a text", int: "a whole number", float: "a number", bool: "true or false", list: "a list"}
    words[dict] = "a table"
    return " or ".join(words[kind] for kind in kinds)
