"""A part of the long fuzz loop of ``tests.fuzz.http``."""

from __future__ import annotations

import pytest

from nodecpu.kube.client import KubeClient
from tests.fuzz import http

COUNT = 300


def test_whatever_an_api_server_answers_is_a_value_or_a_typed_error() -> None:
    """No answer ends the daemon, nor holds it up."""
    outcomes = http.run(COUNT, seed=1)
    assert outcomes.total() == COUNT
    assert {"value", "lines", "LinkError", "ApiError"} <= outcomes.keys()


def test_error_of_another_kind_is_told_with_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def failing(*_: object, **__: object) -> bytes:
        raise ValueError("a header cannot be read")

    monkeypatch.setattr(KubeClient, "get", failing)
    with pytest.raises(AssertionError, match=r"answer 7/0, .*a header cannot be read"):
        http.run(1, seed=7)
