"""The distributions that packages are built for (pure): which interpreter, which names, which promises.

EL 9's own Python 3.9 is too old. Of the newer ones in its AppStream, 3.12 is taken: EL 10's own, so that both get the
same modules, and maintained for as long as 3.11 is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Format = Literal["deb", "rpm"]

GLIBC = "2.34"
"""The newest C library that modules may ask for: the oldest of these distributions', EL 9's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A distribution release. ``suffix`` ends the package's release."""

    name: str
    format: Format
    python: str
    interpreter: str
    suffix: str
    depends: tuple[str, ...]

    @property
    def zsh(self) -> str:
        """Where below /usr/share/zsh its zsh looks for what packages bring.

        Source: debian/rules of zsh (vendor-completions); Fedora's packaging guidelines, %{zsh_completions_dir}.
        """
        return "vendor-completions" if self.format == "deb" else "site-functions"


def _debian(name: str, python: str, suffix: str) -> Target:
    major, minor = python.split(".")
    after = f"{major}.{int(minor) + 1}"
    return Target(
        name=name,
        format="deb",
        python=python,
        interpreter="/usr/bin/python3",
        suffix=suffix,
        depends=(f"libc6 (>= {GLIBC})", f"python3 (>= {python})", f"python3 (<< {after})"),
    )


def _enterprise(name: str, package: str, suffix: str) -> Target:
    return Target(
        name=name,
        format="rpm",
        python="3.12",
        interpreter="/usr/bin/python3.12",
        suffix=suffix,
        depends=(package, "systemd"),
    )


TARGETS = (
    _debian("debian12", "3.11", "~deb12"),
    _debian("debian13", "3.13", "~deb13"),
    _debian("ubuntu24.04", "3.12", "~ubuntu24.04"),
    _enterprise("el9", "python3.12", ".el9"),
    _enterprise("el10", "python3 >= 3.12", ".el10"),
)

ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
"""Debian's name of an architecture, and everybody else's."""


def package_version(version: str) -> str:
    """Return a Python version as packages have it: what comes before a release sorts before it (1.0rc1 -> 1.0~rc1)."""
    found = re.fullmatch(r"([0-9.]+?)\.?((?:a|b|rc|dev)[0-9]+)?", version)
    if found is None:
        raise ValueError(f"not a version that packages can have: {version}")
    release, before = found.groups()
    return f"{release}~{before}" if before else release
