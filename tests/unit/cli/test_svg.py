"""The node as SVG: well formed, every CPU once, owners told apart without colour, on machines of any size."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from nodecpu.admin.state import NodeState
from nodecpu.cli import main
from nodecpu.cli.render.svg import draw_svg
from nodecpu.errors import HostError
from nodecpu.lab.machine import parse_machine, write_machine
from tests.unit.nodestates import claim, container, machine, n4c16, node_state

SVG = "{http://www.w3.org/2000/svg}"


def titles(picture: str) -> list[str]:
    return [title.text or "" for title in ElementTree.fromstring(picture).iter(f"{SVG}title")]


def texts(picture: str) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(picture).iter(f"{SVG}text")]


def crowded(cpus: int) -> NodeState:
    made = machine(2, 2, 2, cpus // 16, 2, adjacent=False)
    claims = tuple(claim(f"job-{i}", f"{4 + 2 * i}-{5 + 2 * i}") for i in range(30)) if cpus > 64 else ()
    return node_state(made, reserved="0", isolated="1", unusable="2", claims=claims)


@pytest.mark.parametrize("cpus", [16, 128, 1024])
def test_every_cpu_is_drawn_once(cpus: int) -> None:
    picture = draw_svg(crowded(cpus))
    drawn = [int(match[1]) for title in titles(picture) if (match := re.match(r"CPU (\d+): ", title))]
    assert sorted(drawn) == list(range(cpus))
    assert len(picture) < 400 * cpus + 20_000


def test_cells_carry_number_and_mark_and_the_legend_names_all() -> None:
    words = texts(draw_svg(n4c16()))
    assert {str(cpu) for cpu in range(16)} <= set(words)
    assert words.count("A") == 3 + 1  # its CPUs, and the legend
    assert {"claim shop/web", "4-5", "held by shop/web-0/app", "numa 3, 16 GiB", "socket 1"} <= set(words)


@pytest.mark.parametrize("cpus", [16, 64, 128, 256])
def test_number_and_mark_of_a_cell_do_not_touch(cpus: int) -> None:
    """With some thirty claims the marks have two letters; a bold letter is at most 1.1 of its size wide."""
    for cell in ElementTree.fromstring(draw_svg(crowded(cpus))).iter(f"{SVG}g"):
        if cell.find(f"{SVG}title") is None or len(words := cell.findall(f"{SVG}text")) < 2:
            continue
        number, mark = words
        size = float(mark.attrib["font-size"])
        left = float(mark.attrib["x"]) - size * (0.8 * (len(mark.text or "") - 1) + 1.1)
        right = float(number.attrib["x"]) + 0.62 * float(number.attrib["font-size"]) * len(number.text or "")
        assert right < left, (number.text, mark.text)


def test_large_machines_have_the_number_at_the_beginning_of_each_row() -> None:
    words = texts(draw_svg(crowded(1024)))
    assert "0" in words
    assert "AD" in words  # the thirtieth claim
    assert "733" not in words


def test_pictures_have_no_negative_or_overflowing_sizes() -> None:
    for state in (n4c16(), crowded(16), crowded(128), crowded(1024), node_state(machine(1, 1, 1, 1, 1))):
        root = ElementTree.fromstring(draw_svg(state))
        width = float(root.attrib["width"])
        for rect in root.iter(f"{SVG}rect"):
            if "%" not in rect.attrib["width"]:
                assert 0 < float(rect.attrib["width"]) <= width


def test_four_nodes_of_a_socket_for_which_the_page_is_too_narrow_stand_two_by_two() -> None:
    root = ElementTree.fromstring(draw_svg(node_state(machine(1, 4, 4, 8, 2))))
    boxes = [one for one in root.iter(f"{SVG}g") for text in one.findall(f"{SVG}text") if "numa" in (text.text or "")]
    corners = [one.attrib["transform"].removeprefix("translate(").rstrip(")").split(",") for one in boxes]
    assert len(corners) == 4
    assert [len({corner[axis] for corner in corners}) for axis in (0, 1)] == [2, 2]


def test_cpu_with_two_owners_has_light_words_on_a_dark_ground() -> None:
    twice = node_state(machine(1, 1, 1, 2, 1), claims=(claim("a", "0"), claim("b", "0")))
    marks = [one for one in ElementTree.fromstring(draw_svg(twice)).iter(f"{SVG}text") if one.text == "!"]
    assert {one.attrib["fill"] for one in marks} == {"#ffffff"}


def test_picture_of_a_small_machine_is_as_wide_as_its_title() -> None:
    root = ElementTree.fromstring(draw_svg(node_state(machine(1, 1, 1, 1, 1))))
    title = next(root.iter(f"{SVG}text"))
    end = float(title.attrib["x"]) + 0.65 * float(title.attrib["font-size"]) * len(title.text or "")
    assert end <= float(root.attrib["width"])


def test_names_from_outside_cannot_leave_their_place() -> None:
    evil = '</text><script>x("&")</script>\x1b'
    state = node_state(
        machine(1, 1, 1, 2, 1),
        claims=(claim(evil, "0"),),
        containers=(container(evil, "multi", "1", exclusive="1"),),
    )
    root = ElementTree.fromstring(draw_svg(state))
    assert not list(root.iter(f"{SVG}script"))


def test_topology_writes_a_file_and_never_half_a_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_machine(parse_machine("1 socket, 1 node, 2 cores, 2 threads"), tmp_path)
    target = tmp_path / "node.svg"
    assert main(["topology", "--root", str(tmp_path), "--svg", str(target)]) == 0
    assert len(titles(target.read_text())) == 4
    assert main(["topology", "--root", str(tmp_path), "--svg", "-"]) == 0
    assert capsys.readouterr().out == target.read_text()
    assert main(["topology", "--root", str(tmp_path), "--svg", str(tmp_path / "no/node.svg")]) == HostError.exit_code
    assert "cannot be written" in capsys.readouterr().err
