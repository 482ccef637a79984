"""What is only in the packages, written from the program: man pages, completion, versions, licences."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from nodecpu_packaging import completion, manpages
from nodecpu_packaging.build import watching_files
from nodecpu_packaging.inventory import Component, components, copyright_text, sbom
from nodecpu_packaging.targets import TARGETS, package_version
from nodecpu_packaging.verbs import verbs_of

from nodecpu.cli import _parser as parser_of
from nodecpu.config import SETTINGS
from tests.support import ROOT, need_program

DAY = "2026-11-30"
PAGES = {
    "nodecpu.1": manpages.command_page(parser_of(), version="1.0", date=DAY),
    "nodecpu.toml.5": manpages.settings_page(version="1.0", date=DAY),
    "nodecpu.service.8": manpages.service_page((ROOT / "systemd/nodecpu.service").read_text(), version="1.0", date=DAY),
}
ATTRS = Component(name="attrs", version="26.1.0", licence="MIT", home="https://attrs.org", texts=("attrs/LICENSE",))


@pytest.mark.parametrize("name", PAGES)
def test_page_is_set_without_a_warning(name: str, tmp_path: Path) -> None:
    page = tmp_path / name
    page.write_text(PAGES[name])
    command = [need_program("groff"), "-man", "-Tutf8", "-ww", "-z", str(page)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stderr == ""


def test_page_of_settings_has_every_setting() -> None:
    page = PAGES["nodecpu.toml.5"].replace(r"\-", "-")
    assert [s.key for s in SETTINGS if rf"\fB{s.key}\fR = " not in page] == []


def test_page_of_the_command_has_every_verb_and_option() -> None:
    page = PAGES["nodecpu.1"].replace(r"\-", "-")
    for verb in verbs_of(parser_of()):
        assert f".SS nodecpu {' '.join(verb.path)}" in page
        assert [name for option in verb.options for name in option.names if rf"\fB{name}\fR" not in page] == []


def test_no_line_of_a_page_is_taken_for_a_request() -> None:
    requests = {".TH", ".SH", ".SS", ".TP", ".B", ".I", ".BR", ".EX", ".EE"}
    lines = [line for page in PAGES.values() for line in page.splitlines() if line.startswith((".", "'"))]
    assert [line for line in lines if line.split()[0] not in requests] == []


def completed(words: str) -> list[str]:
    """Return what bash offers for the last word."""
    script = completion.bash(parser_of()) + (
        f"COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _nodecpu; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    done = subprocess.run(["bash", "-euc", script], check=True, capture_output=True, text=True)
    return done.stdout.split()


def test_bash_offers_verbs_actions_and_options() -> None:
    verbs = list(dict.fromkeys(verb.path[0] for verb in verbs_of(parser_of())))
    assert completed("nodecpu ''") == verbs
    assert completed("nodecpu stat") == ["status"]
    assert {"check", "show", "init"} <= set(completed("nodecpu config ''"))
    assert "--json" in completed("nodecpu status --")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_know_every_verb(shell: str) -> None:
    text = getattr(completion, shell)(parser_of())
    assert [verb.path[-1] for verb in verbs_of(parser_of()) if verb.path[-1] not in text] == []


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_accept_the_file(shell: str, tmp_path: Path) -> None:
    file = tmp_path / "completion"
    file.write_text(getattr(completion, shell)(parser_of()))
    subprocess.run([need_program(shell), "-n", str(file)], check=True)


@pytest.mark.parametrize(
    ("python", "package"),
    [("0.1.0", "0.1.0"), ("1.0rc1", "1.0~rc1"), ("0.2.0.dev3", "0.2.0~dev3"), ("1.0b2", "1.0~b2")],
)
def test_version_before_a_release_sorts_before_it(python: str, package: str) -> None:
    assert package_version(python) == package


def test_versions_that_packages_cannot_have_are_refused() -> None:
    with pytest.raises(ValueError, match="not a version"):
        package_version("1.0+local")


def test_distributions_are_the_promised_ones() -> None:
    assert [(target.name, target.python) for target in TARGETS] == [
        ("debian12", "3.11"),
        ("debian13", "3.13"),
        ("ubuntu24.04", "3.12"),
        ("el9", "3.12"),
        ("el10", "3.12"),
    ]


def test_zsh_of_each_distribution_finds_its_completion() -> None:
    places = {target.name: target.zsh for target in TARGETS}
    assert (places["debian12"], places["ubuntu24.04"]) == ("vendor-completions", "vendor-completions")
    assert (places["el9"], places["el10"]) == ("site-functions", "site-functions")


def test_alert_rules_and_dashboard_are_packed_and_tests_of_rules_are_not() -> None:
    assert [path.name for path in watching_files()] == ["nodecpu.rules.yml", "nodecpu.json"]


def test_sbom_names_each_module_with_its_licence() -> None:
    text = sbom([ATTRS], version="1.0", epoch=0)
    assert text == sbom([ATTRS], version="1.0", epoch=0)
    (listed,) = json.loads(text)["components"]
    assert listed["purl"] == "pkg:pypi/attrs@26.1.0"
    assert listed["licenses"] == [{"expression": "MIT"}]


def test_copyright_defines_every_licence_that_it_uses() -> None:
    text = copyright_text([ATTRS], directory="/usr/lib/nodecpu")
    used = set(re.findall(r"^License: (\S+)$", text, re.MULTILINE))
    assert {"Apache-2.0", "MIT"} == used
    assert "/usr/lib/nodecpu/attrs/LICENSE" in text


def test_module_with_an_unknown_licence_stops_the_build(tmp_path: Path) -> None:
    (tmp_path / "odd-1.dist-info").mkdir()
    (tmp_path / "odd-1.dist-info" / "METADATA").write_text("Name: odd\nVersion: 1\nLicense: ask the author\n")
    with pytest.raises(ValueError, match="licence not understood: 'ask the author'"):
        components(tmp_path)
