"""Kubernetes quantities: every form the API server writes, and nothing else."""

from __future__ import annotations

import pytest

from nodecpu.quantity import NANO, parse_milli, parse_quantity, parse_units


@pytest.mark.parametrize(
    ("text", "nano"),
    [
        ("4", 4 * NANO),
        ("+4", 4 * NANO),
        ("-4", -4 * NANO),
        ("4k", 4000 * NANO),
        ("2000m", 2 * NANO),
        ("4e0", 4 * NANO),
        ("4E3", 4000 * NANO),
        ("4E", 4 * 10**18 * NANO),
        ("1500e-3", 1500 * 10**6),
        ("0.5", NANO // 2),
        (".5", NANO // 2),
        ("5.", 5 * NANO),
        ("1.5Ki", 1536 * NANO),
        ("100u", 10**5),
        ("7n", 7),
        ("0.0000000001", 1),
        ("-0.0000000001", 0),
        ("007", 7 * NANO),
    ],
)
def test_every_form_has_its_value(text: str, nano: int) -> None:
    assert parse_quantity(text) == nano


@pytest.mark.parametrize(
    "text",
    ["", " ", "four", "4 ", "4x", "4KI", "4mi", "1e", "1e+", "e3", ".", "-", "--1", "1.2.3", "0x4", "٤", "4\n", "1_0"],
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="quantity"):
        parse_quantity(text)


@pytest.mark.parametrize("text", ["1" * 65, "9" * 60, "1e19", "1e-19", "9e18Ki", "10E"])
def test_values_beyond_what_kubernetes_keeps_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="quantity"):
        parse_quantity(text)


def test_coarser_steps_round_up() -> None:
    assert (parse_milli("0.0001"), parse_milli("100m"), parse_milli("2")) == (1, 100, 2000)
    assert (parse_units("1.5"), parse_units("128Mi"), parse_units("1n")) == (2, 128 << 20, 1)
