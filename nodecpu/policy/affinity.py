"""Affinity and anti-affinity between containers, by expression (pure; S, A).

An affinity has a scope (without one: the containers of its own pod), an expression that containers in scope match or
not, and a weight. Anti-affinity is the same with the weight's sign turned. The forms and the words are those that users
of nri-plugins have in their pods' annotations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from typing import Final

from nodecpu.ids import ContainerID, PodUID
from nodecpu.policy.facts import PodSpec
from nodecpu.policy.grants import ContainerGrant

MAX_WEIGHT: Final = 1000
MAX_TEXT: Final = 10 << 10
"""Longer annotations are not read: no sensible one is."""

MAX_AFFINITIES: Final = 32
MAX_WORDS: Final = 64
MAX_WORD: Final = 350
"""What one container may ask for: its affinities; all their keys, values and asterisks together; the length of a key or
value (a label's key has 317). Each is held against every container of the node while the runtime waits.
"""


class Operator(Enum):
    """What an expression does with the value of its key."""

    EQUALS = "Equals"
    NOT_EQUAL = "NotEqual"
    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    NOT_EXISTS = "NotExists"
    ALWAYS_TRUE = "AlwaysTrue"
    MATCHES = "Matches"
    MATCHES_NOT = "MatchesNot"
    MATCHES_ANY = "MatchesAny"
    MATCHES_NONE = "MatchesNone"


_NEGATED: Final = {Operator.NOT_EQUAL, Operator.NOT_IN, Operator.MATCHES_NOT, Operator.MATCHES_NONE}
_GLOBS: Final = {Operator.MATCHES, Operator.MATCHES_NOT, Operator.MATCHES_ANY, Operator.MATCHES_NONE}
_SINGLE: Final = {Operator.EQUALS, Operator.NOT_EQUAL, Operator.MATCHES, Operator.MATCHES_NOT}
_NO_VALUES: Final = {Operator.EXISTS, Operator.NOT_EXISTS, Operator.ALWAYS_TRUE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """A condition on a container."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def among(self, subjects: Sequence[Subject]) -> Sequence[Subject]:
        """Return those of the containers that it is true of. All at once: each creation asks about all there are."""
        operator, read = self.operator, _reader(self.key)
        if operator is Operator.ALWAYS_TRUE:
            return subjects
        if operator in (Operator.EXISTS, Operator.NOT_EXISTS):
            is_there = operator is Operator.EXISTS
            return [one for one in subjects if (read(one) is not None) is is_there]
        values, is_negated = self.values, operator in _NEGATED
        is_met = _matching(values) if operator in _GLOBS else values.__contains__
        return [one for one in subjects if is_met(read(one) or "") is not is_negated]


def _matching(globs: Sequence[str]) -> Callable[[str], bool]:
    return lambda text: any(fnmatchcase(text, one) for one in globs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Affinity:
    """A pull (weight above 0) or a push. ``scope`` None: the own pod."""

    match: Expression
    weight: int
    scope: Expression | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A container as expressions see it; ``pod`` is its pod's spec where that is known."""

    grant: ContainerGrant
    pod: PodSpec | None


_Reader = Callable[[Subject], str | None]

_KEYS: Final[Mapping[str, _Reader]] = {
    "name": lambda one: one.grant.name,
    "labels/io.kubernetes.container.name": lambda one: one.grant.name,
    "namespace": lambda one: one.grant.namespace,
    "qosclass": lambda one: one.grant.qos.value,
    "id": lambda one: one.grant.id,
    "pod/name": lambda one: one.grant.pod,
    "pod/namespace": lambda one: one.grant.namespace,
    "pod/qosclass": lambda one: one.grant.qos.value,
    "pod/id": lambda one: one.grant.sandbox_id,
    "pod/uid": lambda one: one.grant.pod_uid if one.pod is None else one.pod.uid,
}
_POD_LABELS: Final = "pod/labels/"


def _reader(key: str) -> _Reader:
    """Return what reads the value of a key, or of several joined; None if a container has none of it."""
    if not key.startswith(":"):
        return _reader_of_one(key)
    keys = key[3:] if key.startswith(":::") else key[1:]
    readers = [_reader_of_one(one) for one in keys.split(":")]

    def joint(subject: Subject) -> str | None:
        found = [read(subject) for read in readers]
        return None if all(one is None for one in found) else ":".join(one or "" for one in found)

    return joint


def _reader_of_one(key: str) -> _Reader:
    if key.startswith(_POD_LABELS):
        label = key.removeprefix(_POD_LABELS)
        return lambda one: None if one.pod is None else one.pod.labels.get(label)
    return _KEYS.get(key, lambda _: None)


def affinities_of(container: str, tree: object, sign: int) -> tuple[Affinity, ...]:
    """Return a container's part of an annotation, as it was read from YAML; ``sign`` is -1 for anti-affinity.

    Raises ValueError, with what is wrong in words, whichever container's part it is in.
    """
    if not isinstance(tree, Mapping) or not all(isinstance(name, str) for name in tree):
        raise ValueError("not a table of containers")
    if all(_is_names(part) for part in tree.values()):
        return _simple(container, tree, sign)
    found: tuple[Affinity, ...] = ()
    for name, parts in tree.items():
        if not isinstance(parts, list):
            raise ValueError(f"{name}: not a list")  # noqa: TRY004 - one kind of error for all wrong values
        read = tuple(_affinity(part, name, sign) for part in parts)
        found = read if name == container else found
    _require_few(found, container)
    return found


def _require_few(affinities: Sequence[Affinity], name: str) -> None:
    """Raise ValueError for more than is sensible: whoever writes annotations must not hold up everybody else."""
    expressions = [part for one in affinities for part in (one.scope, one.match) if part is not None]
    words = [word for one in expressions for word in (*one.key.split(":"), *one.values) if word]
    count = sum(1 + word.count("*") for word in words)
    if len(affinities) > MAX_AFFINITIES or count > MAX_WORDS or any(len(word) > MAX_WORD for word in words):
        raise ValueError(
            f"{name}: {len(affinities)} affinities with {count} keys, values and asterisks; at most {MAX_AFFINITIES}"
            f" with {MAX_WORDS} are read, keys and values of at most {MAX_WORD} characters"
        )


def weights(affinities: Iterable[Affinity], pod: PodUID, subjects: Sequence[Subject]) -> Mapping[ContainerID, int]:
    """Return how much a container of a pod is drawn to each of the others, or pushed from it; 0 is left out."""
    found: dict[ContainerID, int] = {}
    for one in affinities:
        if one.scope is None:
            scope: Sequence[Subject] = [each for each in subjects if each.grant.pod_uid == pod]
        else:
            scope = one.scope.among(subjects)
        for subject in one.match.among(scope):
            found[subject.grant.id] = found.get(subject.grant.id, 0) + one.weight
    return {container_id: weight for container_id, weight in found.items() if weight}


def _is_names(part: object) -> bool:
    return isinstance(part, list) and all(isinstance(name, str) for name in part)


def _simple(container: str, tree: Mapping[str, Sequence[str]], sign: int) -> tuple[Affinity, ...]:
    """Return what the short form says: containers of the own pod, by name, in both directions."""
    others = {other for other in tree.get(container, ()) if other != container}
    others |= {name for name, wanted in tree.items() if container in wanted and name != container}
    if not others:
        return ()
    return (Affinity(match=Expression(key="name", operator=Operator.IN, values=tuple(sorted(others))), weight=sign),)


def _affinity(part: object, name: str, sign: int) -> Affinity:
    if not isinstance(part, Mapping) or not set(part) <= {"scope", "match", "weight"} or "match" not in part:
        raise ValueError(f"{name}: match is wanted, scope and weight are allowed")
    weight = part.get("weight", 1)
    if not isinstance(weight, int) or isinstance(weight, bool):
        raise ValueError(f"{name}: weight is no whole number")  # noqa: TRY004 - one kind of error
    scope = part.get("scope")
    return Affinity(
        scope=None if scope is None else _expression(scope, f"{name}: scope"),
        match=_expression(part["match"], f"{name}: match"),
        weight=sign * max(-MAX_WEIGHT, min(weight or 1, MAX_WEIGHT)),
    )


def _expression(tree: object, where: str) -> Expression:
    if not isinstance(tree, Mapping) or not set(tree) <= {"key", "operator", "values"}:
        raise ValueError(f"{where}: key, operator and values are allowed")
    key, word, values = tree.get("key", ""), tree.get("operator"), tree.get("values") or []
    if not isinstance(key, str) or not _is_names(values):
        raise ValueError(f"{where}: key is a text, values are texts")
    try:
        operator = Operator(word)
    except ValueError:
        raise ValueError(f"{where}: there is no operator {word!r:.40}") from None
    if not key and operator is not Operator.ALWAYS_TRUE:
        raise ValueError(f"{where}: a key is wanted")
    if operator in _SINGLE and len(values) != 1:
        raise ValueError(f"{where}: {operator.value} takes one value")
    if operator in _NO_VALUES and values:
        raise ValueError(f"{where}: {operator.value} takes no values")
    return Expression(key=key, operator=operator, values=tuple(values))
