"""What is inside: the SBOM (CycloneDX) and Debian's copyright file, read from the installed modules' own metadata."""

from __future__ import annotations

import email.policy
import json
import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from email.parser import Parser
from pathlib import Path

_SPDX = {
    "Apache 2.0": "Apache-2.0",
    "3-Clause BSD License": "BSD-3-Clause",
    "MIT License": "MIT",
    "Apache Software License": "Apache-2.0",
}
"""What older metadata calls a licence, as SPDX calls it. Source: the LICENSE files of those modules."""

_LICENCE_FILE = re.compile(r"LICEN[CS]E|COPYING|NOTICE|AUTHORS", re.IGNORECASE)
_FORM = re.compile(r"[A-Za-z0-9.+-]+( (AND|OR|WITH) [A-Za-z0-9.+-]+)*")


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Component:
    """A bundled module. ``licence`` is an SPDX expression, ``texts`` are its licence files below the directory."""

    name: str
    version: str
    licence: str
    home: str
    texts: tuple[str, ...]


def components(directory: Path) -> tuple[Component, ...]:
    """Return what is installed in a directory, by name; raises ValueError for a licence that is not understood."""
    return tuple(sorted(_component(directory, info) for info in directory.glob("*.dist-info")))


def sbom(found: Iterable[Component], *, version: str, epoch: int) -> str:
    """Return the SBOM as CycloneDX 1.6 JSON; equal contents give equal text."""
    listed = [
        {
            "type": "library",
            "bom-ref": _purl(one.name, one.version),
            "name": one.name,
            "version": one.version,
            "purl": _purl(one.name, one.version),
            "licenses": [{"expression": one.licence}],
        }
        for one in found
    ]
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, json.dumps([version, listed]))}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {
                "type": "application",
                "bom-ref": "nodecpu",
                "name": "nodecpu",
                "version": version,
                "licenses": [{"expression": "Apache-2.0"}],
            },
        },
        "components": listed,
        "dependencies": [{"ref": "nodecpu", "dependsOn": [one["bom-ref"] for one in listed]}],
    }
    return json.dumps(document, indent=2) + "\n"


def copyright_text(found: Iterable[Component], *, directory: str) -> str:
    """Return Debian's copyright file. Source: the machine-readable format 1.0."""
    parts = [
        "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: nodecpu\n",
        "Files: *\nCopyright: the nodecpu authors\nLicense: Apache-2.0\n",
    ]
    used = {"Apache-2.0"}
    for one in found:
        texts = [f"{directory}/{text}" for text in one.texts] or [f"see {one.home}"]
        parts.append(
            f"Files: {directory}/{one.name}/*\nCopyright: the authors of {one.name} {one.version}\n"
            f"License: {one.licence.replace(' AND ', ' and ').replace(' OR ', ' or ')}\n"
            f"Comment: {one.home}\n" + "".join(f" {text}\n" for text in texts)
        )
        used.update(re.split(r" (?:AND|OR) ", one.licence))
    for name in sorted(used):
        where = (
            "On Debian systems the full text is in /usr/share/common-licenses/Apache-2.0."
            if name == "Apache-2.0"
            else "The full text is in the files named beside each module above."
        )
        parts.append(f"License: {name}\n {where}\n")
    return "\n".join(parts)


def _component(directory: Path, info: Path) -> Component:
    told = Parser(policy=email.policy.compat32).parsestr((info / "METADATA").read_text())
    licence = told["License-Expression"] or _older(told.get_all("Classifier", []), str(told["License"] or ""))
    if licence is None or not _FORM.fullmatch(licence):
        raise ValueError(f"{info.name}: licence not understood: {licence or told['License']!r}")
    urls = dict(text.split(", ", 1) for text in told.get_all("Project-URL", []))
    texts = [
        path for path in info.rglob("*") if re.match(r"(LICEN[CS]E|COPYING|NOTICE|AUTHORS)", path.name, re.IGNORECASE)
    ]
    return Component(
        name=str(told["Name"]).lower().replace("_", "-"),
        version=str(told["Version"]),
        licence=licence,
        home=str(told["Home-page"] or next(iter(urls.values()), "https://pypi.org")),
        texts=tuple(sorted(str(path.relative_to(directory)) for path in texts if path.is_file())),
    )


def _older(classifiers: list[str], text: str) -> str | None:
    """Return the licence by the older fields; a field may hold the whole text, then the classifier counts."""
    named = [c.rsplit(" :: ", 1)[1] for c in classifiers if c.startswith("License :: OSI Approved :: ")]
    for name in (text, *named):
        if name in _SPDX or (name and _FORM.fullmatch(name)):
            return _SPDX.get(name, name)
    return None


def _purl(name: str, version: str) -> str:
    return f"pkg:pypi/{name}@{version}"
