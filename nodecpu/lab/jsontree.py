"""JSON values as the API server moves them (pure): typed reading that names the path, copies that share nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

Json: TypeAlias = "str | int | float | bool | Sequence[Json] | Mapping[str, Json] | None"
JsonObject: TypeAlias = dict[str, Json]


def tree(value: Json) -> Json:
    """Return a copy of a JSON value that shares no list and no object with it."""
    if value is None or isinstance(value, (str, int, float)):  # first: to ask for abstract types takes long
        return value
    if isinstance(value, (dict, Mapping)):
        return {key: tree(child) for key, child in value.items()}
    return [tree(child) for child in value]


def node(value: Mapping[str, Json], *path: str) -> JsonObject:
    """Return a copy of the object at a path, ``{}`` where there is none."""
    for key in path:
        child = value.get(key)
        if not isinstance(child, Mapping):
            return {}
        value = child
    return {key: tree(child) for key, child in value.items()}


def nodes(value: Mapping[str, Json], *path: str) -> list[JsonObject]:
    """Return copies of the objects in the list at a path; what is no object is left out."""
    found = leaf(value, *path)
    if not isinstance(found, Sequence) or isinstance(found, str):
        return []
    return [node(child) for child in found if isinstance(child, Mapping)]


def view(value: Mapping[str, Json], *path: str) -> Mapping[str, Json]:
    """Return the object at a path itself, to be read only: a copy of many devices takes long; ``{}`` for none."""
    found = leaf(value, *path)
    return found if isinstance(found, Mapping) else {}


def views(value: Mapping[str, Json], *path: str) -> tuple[Mapping[str, Json], ...]:
    """Return the objects in the list at a path themselves, to be read only; what is no object is left out."""
    found = leaf(value, *path)
    if not isinstance(found, Sequence) or isinstance(found, str):
        return ()
    return tuple(child for child in found if isinstance(child, Mapping))


def leaf(value: Mapping[str, Json], *path: str) -> Json:
    """Return what is at a path, None where there is nothing; items of lists go by their numbers."""
    found: Json = value
    for key in path:
        if isinstance(found, Mapping):
            found = found.get(key)
        elif isinstance(found, Sequence) and not isinstance(found, str) and key.isdigit() and int(key) < len(found):
            found = found[int(key)]
        else:
            return None
    return found


def text(value: Mapping[str, Json], *path: str) -> str:
    """Return the string at a path, "" where there is none."""
    found = leaf(value, *path)
    return found if isinstance(found, str) else ""


def texts(value: Mapping[str, Json], *path: str) -> tuple[str, ...]:
    """Return the strings of the list at a path."""
    found = leaf(value, *path)
    if not isinstance(found, Sequence) or isinstance(found, str):
        return ()
    return tuple(child for child in found if isinstance(child, str))


def merged(base: Json, patch: Json) -> Json:
    """Return ``base`` changed by a JSON merge patch. Source: RFC 7396."""
    if not isinstance(patch, Mapping):
        return tree(patch)
    result = {key: tree(child) for key, child in base.items()} if isinstance(base, Mapping) else {}
    for key, child in patch.items():
        if child is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), child)
    return result


def without(value: Json, path: Sequence[str]) -> Json:
    """Return a copy without the keys that a path names; ``*`` in it stands for every entry of a list."""
    if not path:
        return tree(value)
    if path[0] == "*" and isinstance(value, Sequence) and not isinstance(value, str):
        return [without(child, path[1:]) for child in value]
    if not isinstance(value, Mapping):
        return tree(value)
    copy = {key: tree(child) for key, child in value.items()}
    if len(path) == 1:
        copy.pop(path[0], None)
    elif path[0] in copy:
        copy[path[0]] = without(copy[path[0]], path[1:])
    return copy
