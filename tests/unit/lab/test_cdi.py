"""Specs are read as strictly as the runtimes' library does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nodecpu.lab.cdi import CdiError, inject, parse_spec, read_specs
from nodecpu.lab.jsontree import Json, JsonObject


def spec(**changes: Json) -> str:
    device: JsonObject = {"name": "claim-1-0", "containerEdits": {"env": ["A=1"]}}
    whole: JsonObject = {"cdiVersion": "0.5.0", "kind": "dra.cpu/cpu", "devices": [device]}
    return json.dumps(whole | changes)


def test_device_gives_its_edits() -> None:
    assert parse_spec(spec())["dra.cpu/cpu=claim-1-0"].env == ("A=1",)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(spec(colour="red"), id="unknown key"),
        pytest.param(spec(cdiVersion="9.0.0"), id="newer version"),
        pytest.param(spec(kind="cpu"), id="kind without vendor"),
        pytest.param(spec(devices=[]), id="no devices"),
        pytest.param(spec(devices=[{"name": "a", "containerEdits": {}}]), id="no edits"),
        pytest.param(spec(devices=[{"name": "-a", "containerEdits": {"env": ["A=1"]}}]), id="bad name"),
        pytest.param(spec(devices=[{"name": "a", "containerEdits": {"env": ["A"]}}]), id="bad variable"),
        pytest.param(
            spec(cdiVersion="0.4.0", devices=[{"name": "1", "containerEdits": {"env": ["A=1"]}}]),
            id="digit before 0.5.0",
        ),
        pytest.param("[]", id="no object"),
    ],
)
def test_spec_with_a_mistake_is_refused(content: str) -> None:
    with pytest.raises(CdiError):
        parse_spec(content)


def test_bad_file_affects_only_itself_and_clashing_names_are_lost(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(spec())
    (tmp_path / "b.json").write_text("{")
    (tmp_path / "c.json").write_text(spec(kind="dra.cpu/metadata"))
    (tmp_path / "d.json").write_text(spec(kind="dra.cpu/metadata"))
    specs = read_specs(tmp_path)
    assert list(specs.devices) == ["dra.cpu/cpu=claim-1-0"]
    assert list(specs.refused) == ["b.json"]


def test_names_are_injected_once_and_unknown_ones_fail(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(spec())
    name = "dra.cpu/cpu=claim-1-0"
    assert inject(read_specs(tmp_path), [name, name]).env == ("A=1",)
    with pytest.raises(CdiError, match="unresolvable CDI devices x/y=z"):
        inject(read_specs(tmp_path), [name, "x/y=z"])
