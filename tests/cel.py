"""As much of CEL as our admission policy is written in, for tests: evaluated as its specification says.

Selection, optional selection and indexing, ``orValue``, ``has``, equality, ``+``, ``&&``, ``||``, the conditional.
Evaluation is lazy where CEL's is; what is missing is an error, as it is there. Anything else is a syntax error here.
Source: google/cel-spec doc/langdef.md; cel-go ext OptionalTypes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

_TOKEN: Final = re.compile(r'\s*("(?:[^"\\]|\\.)*"|\d+|\w+|\.\?|\[\?|&&|\|\||==|!=|[?:+.()\[\]])', re.ASCII)


class CelError(Exception):
    """An expression has no value: something is missing, or of another type."""


@dataclass(frozen=True, slots=True)
class Optional:
    """A value that may not be there."""

    value: object = None
    is_there: bool = False


def evaluate(expression: str, names: Mapping[str, object]) -> object:
    """Return an expression's value, of these names; CelError, or ValueError for what is not known here."""
    parser = _Parser(expression, names)
    value = parser.conditional(live=True)
    parser.end()
    return value


class _Parser:
    """Parses and evaluates in one pass; what is not ``live`` is parsed alone."""

    def __init__(self, expression: str, names: Mapping[str, object]) -> None:
        self._names = names
        self._tokens: list[str] = []
        position = 0
        while position < len(expression.rstrip()):
            found = _TOKEN.match(expression, position)
            if found is None:
                raise ValueError(f"not understood: {expression[position:]!r}")
            self._tokens.append(found[1])
            position = found.end()
        self._tokens.append("")

    def end(self) -> None:
        if self._tokens != [""]:
            raise ValueError(f"not understood: {' '.join(self._tokens)}")

    def conditional(self, *, live: bool) -> object:
        condition = self._or(live=live)
        if not self._took("?"):
            return condition
        chosen = self._flag(condition) if live else False
        first = self.conditional(live=live and chosen)
        self._take(":")
        second = self.conditional(live=live and not chosen)
        return first if chosen else second

    def _or(self, *, live: bool) -> object:
        value = self._and(live=live)
        while self._took("||"):
            known = live and self._flag(value)
            other = self._and(live=live and not known)
            value = known or (self._flag(other) if live else False)
        return value

    def _and(self, *, live: bool) -> object:
        value = self._equality(live=live)
        while self._took("&&"):
            known = live and self._flag(value)
            other = self._equality(live=known)
            value = known and self._flag(other)
        return value

    def _equality(self, *, live: bool) -> object:
        value = self._sum(live=live)
        while self._tokens[0] in ("==", "!="):
            negated = self._tokens.pop(0) == "!="
            other = self._sum(live=live)
            value = (value == other and type(value) is type(other)) is not negated
        return value

    def _sum(self, *, live: bool) -> object:
        value = self._member(live=live)
        while self._took("+"):
            other = self._member(live=live)
            if live:
                if not (isinstance(value, str) and isinstance(other, str)):
                    raise CelError(f"no such overload: {value!r} + {other!r}")
                value += other
        return value

    def _member(self, *, live: bool) -> object:
        value = self._primary(live=live)
        while self._tokens[0] in (".", ".?", "[", "[?"):
            how = self._tokens.pop(0)
            if how.startswith("."):
                name = self._name()
                if self._took("("):
                    value = self._call(value, name, live=live)
                    continue
                key: object = name
            else:
                key = self.conditional(live=live)
                self._take("]")
            if live:
                value = _selected(value, key, optional=how.endswith("?"))
        return value

    def _call(self, value: object, method: str, *, live: bool) -> object:
        other = self.conditional(live=live)
        self._take(")")
        if method != "orValue":
            raise ValueError(f"method {method} is not known here")
        if not live:
            return None
        if not isinstance(value, Optional):
            raise CelError(f"no such overload: {value!r}.orValue()")
        return value.value if value.is_there else other

    def _primary(self, *, live: bool) -> object:
        token = self._tokens.pop(0)
        if token == "(":
            value = self.conditional(live=live)
            self._take(")")
            return value
        if token.startswith('"') or token.isdigit():
            return ast.literal_eval(token)
        if token in ("true", "false"):
            return token == "true"
        if not token.isidentifier():
            raise ValueError(f"not understood: {token!r}")
        if live and token not in self._names:
            raise CelError(f"undeclared reference to {token!r}")
        return self._names.get(token)

    def _name(self) -> str:
        token = self._tokens.pop(0)
        if not token.isidentifier():
            raise ValueError(f"a name expected, not {token!r}")
        return token

    def _took(self, token: str) -> bool:
        if self._tokens[0] == token:
            self._tokens.pop(0)
            return True
        return False

    def _take(self, token: str) -> None:
        if not self._took(token):
            raise ValueError(f"{token!r} expected before {self._tokens[0]!r}")

    def _flag(self, value: object) -> bool:
        if not isinstance(value, bool):
            raise CelError(f"{value!r} is no bool")
        return value


def _selected(value: object, key: object, *, optional: bool) -> object:
    """Return a field or item; of an optional value, and by an optional selection, it is optional itself."""
    if isinstance(value, Optional):
        if not value.is_there:
            return Optional()
        found = _selected(value.value, key, optional=optional)
        return found if isinstance(found, Optional) else Optional(found, is_there=True)
    there = False
    found = None
    if isinstance(value, Mapping):
        there, found = key in value, value.get(key)
    elif isinstance(value, Sequence) and not isinstance(value, str) and isinstance(key, int):
        there = key < len(value)
        found = value[key] if there else None
    if optional:
        return Optional(found, is_there=there)
    if not there:
        raise CelError(f"no such key: {key}")
    return found
