"""A second driver of the same name on a node is noticed, and what a dead one left is not taken for one (R6, R7)."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodecpu.dra.residence import refuse_second
from nodecpu.errors import HostError


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "dra.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(path))
        server.listen(0)
        yield path


def test_a_socket_that_is_served_is_refused_with_who_to_look_for(listener: Path) -> None:
    with pytest.raises(HostError, match="is served by another process") as told:
        refuse_second(listener)
    assert f"src {listener}" in told.value.hint


def test_one_that_is_too_busy_to_answer_is_refused_as_well(listener: Path) -> None:
    with contextlib.ExitStack() as waiting:
        for _ in range(2):  # the kernel lets one more wait than was asked for
            peer = waiting.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            peer.settimeout(0)
            with contextlib.suppress(BlockingIOError):
                peer.connect(str(listener))
        with pytest.raises(HostError, match="is served by another process"):
            refuse_second(listener)


def test_a_socket_that_nobody_serves_any_more_is_as_none(tmp_path: Path) -> None:
    path = tmp_path / "dra.sock"
    refuse_second(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(path))
    refuse_second(path)
