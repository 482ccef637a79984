"""A scope's cpuset is set by systemd where there is one; ``systemctl`` is played by a script that says what it got."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from nodecpu.cpuset import CpuSet, NodeSet
from nodecpu.enforce.systemd import Systemd
from nodecpu.policy.plan import Placement

SCOPE = "kubepods-besteffort-pod1_2.slice:cri-containerd:abc"
WANTED = Placement(cpus=CpuSet.parse("0-1,4"), mems=NodeSet.parse("1"))


def script(directory: Path, text: str) -> Path:
    path = directory / "systemctl"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_scope_gets_its_cpus_and_memory_nodes_until_it_ends(tmp_path: Path) -> None:
    """E1, third means with the systemd driver."""
    said = tmp_path / "said"
    systemd = Systemd(command=str(script(tmp_path, f'echo "$@" > {said}')), booted=tmp_path)
    assert asyncio.run(systemd.set_cpuset(SCOPE, WANTED))
    assert said.read_text() == (
        "set-property --runtime cri-containerd-abc.scope AllowedCPUs=0-1,4 AllowedMemoryNodes=1\n"
    )


def test_memory_nodes_are_left_alone_where_they_are_not_ours_to_set(tmp_path: Path) -> None:
    said = tmp_path / "said"
    systemd = Systemd(command=str(script(tmp_path, f'echo "$@" > {said}')), booted=tmp_path)
    assert asyncio.run(systemd.set_cpuset(SCOPE, Placement(cpus=WANTED.cpus, mems=NodeSet())))
    assert said.read_text().endswith("AllowedCPUs=0-1,4\n")


@pytest.mark.parametrize(
    ("path", "booted", "text"),
    [
        ("/kubepods/besteffort/pod1/abc", ".", "exit 0"),
        (SCOPE, "no-such-directory", "exit 0"),
        (SCOPE, ".", "exit 1"),
    ],
    ids=["cgroupfs driver", "no systemd", "systemd refuses"],
)
def test_without_scope_or_systemd_nothing_is_set(tmp_path: Path, path: str, booted: str, text: str) -> None:
    """E1: the cgroup file is what is left then."""
    systemd = Systemd(command=str(script(tmp_path, text)), booted=tmp_path / booted)
    assert not asyncio.run(systemd.set_cpuset(path, WANTED))


def test_a_command_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    systemd = Systemd(command=str(tmp_path / "missing"), booted=tmp_path)
    assert not asyncio.run(systemd.set_cpuset(SCOPE, WANTED))


@pytest.mark.parametrize(
    ("said", "cpus"),
    [("0-1 4", "0-1,4"), ("0-1,4", "0-1,4"), ("", None), ("[unset]", None)],
)
def test_systemd_tells_what_it_would_write(tmp_path: Path, said: str, cpus: str | None) -> None:
    """E1, U74: so that a reload can be told from others."""
    systemd = Systemd(command=str(script(tmp_path, f"echo '{said}'")), booted=tmp_path)
    assert asyncio.run(systemd.told(SCOPE)) == (None if cpus is None else CpuSet.parse(cpus))
    assert asyncio.run(systemd.told("/kubepods/besteffort/pod1/abc")) is None


@pytest.mark.parametrize(("left_alone_s", "calls"), [(3600.0, 1), (0.0, 2)])
def test_a_systemd_that_does_not_answer_is_left_alone_for_a_while(
    tmp_path: Path, left_alone_s: float, calls: int
) -> None:
    """E1: hundreds of containers that are to be widened do not wait for it one after the other."""
    said = tmp_path / "said"
    command = str(script(tmp_path, f'echo "$1" >> {said}; exec sleep 3600'))
    systemd = Systemd(command=command, booted=tmp_path, timeout_s=1.0, left_alone_s=left_alone_s)

    async def story() -> None:
        assert not await systemd.set_cpuset(SCOPE, WANTED)
        assert await systemd.told(SCOPE) is None

    asyncio.run(story())
    assert len(said.read_text().splitlines()) == calls
