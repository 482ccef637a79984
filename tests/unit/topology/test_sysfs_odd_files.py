"""Missing, empty and odd files mean the plain thing; only the list of online CPUs has to be there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodecpu.cpuset import CpuSet
from nodecpu.errors import HostError
from nodecpu.lab.machine import parse_machine, write_machine
from nodecpu.topology.model import CoreType
from nodecpu.topology.sysfs import read_boot_id, read_topology
from tests.unit.topology.builder import CPU, SysfsBuilder
from tests.unit.topology.invariants import check_topology


def test_the_online_list_alone_is_a_plain_machine(tmp_path: Path) -> None:
    """T1: one package, one die, one node, no threads, no caches."""
    topology = SysfsBuilder(tmp_path, "0-3").read()
    check_topology(topology)
    assert [len(level) for level in (topology.packages, topology.dies, topology.cores)] == [1, 1, 4]
    assert topology.l2 == topology.l3 == topology.clusters == ()
    assert [(node.id, str(node.cpus), str(node.memory)) for node in topology.numa] == [(0, "0-3", "0")]
    assert not topology.has_smt
    assert not topology.isolated
    assert {cpu.core_type for cpu in topology.cpus.values()} == {CoreType.STANDARD}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        pytest.param(None, "cannot read", id="missing"),
        pytest.param("", "names no CPU", id="empty"),
        pytest.param("(null)", "not a list of CPUs", id="odd"),
    ],
)
def test_without_the_online_list_the_error_names_path_and_remedy(
    tmp_path: Path, content: str | None, problem: str
) -> None:
    """T1."""
    tree = SysfsBuilder(tmp_path, content or "")
    if content is None:
        (tmp_path / CPU / "online").unlink()
    with pytest.raises(HostError) as caught:
        tree.read()
    assert str(tmp_path / CPU / "online") in caught.value.message
    assert problem in caught.value.message
    assert "paths.root" in caught.value.hint


def test_a_missing_root_is_a_host_error(tmp_path: Path) -> None:
    """T1."""
    with pytest.raises(HostError, match="nowhere"):
        read_topology(tmp_path / "nowhere")


ODD = {
    "empty": b"",
    "a line end": b"\n",
    "null": b"(null)\n",
    "negative": b"-1\n",
    "no cluster": b"65535\n",
    "beyond any CPU": b"0-99999999\n",
    "words": b"not a list\n",
    "bytes": bytes(range(256)),
    "NULs behind": b"0\n\0\0\0\0",
    "a comma": b",\n",
    "long": b"0," * 3000,
    "a long number": b"9" * 5000,
}


@pytest.mark.parametrize("content", [pytest.param(content, id=name) for name, content in ODD.items()])
def test_odd_content_in_any_single_file_leaves_a_sound_topology(tmp_path: Path, content: bytes) -> None:
    """T1: whatever the file says, discovery succeeds and the levels are partitions."""
    write_machine(parse_machine("2 sockets, 1 nodes, 1 cores, 2 threads, memory-only 1 hbm"), tmp_path)
    lowest = [path for path in tmp_path.rglob("*") if path.is_file() and not {"cpu1", "cpu3"} & set(path.parts)]
    lowest.remove(tmp_path / CPU / "online")
    for path in lowest:
        kept = path.read_bytes()
        path.write_bytes(content)
        check_topology(read_topology(tmp_path))
        path.write_bytes(kept)


def test_odd_content_in_all_files_is_the_plain_machine(tmp_path: Path) -> None:
    """T1."""
    write_machine(parse_machine("2 sockets, 1 nodes, 2 cores, 2 threads"), tmp_path)
    for path in tmp_path.rglob("*"):
        if path.is_file() and path != tmp_path / CPU / "online":
            path.write_bytes(b"(null)\n")
    topology = read_topology(tmp_path)
    check_topology(topology)
    assert len(topology.packages) == 1
    assert len(topology.numa) == 2, "the directories still tell the nodes"


def test_nuls_behind_the_text_are_padding(tmp_path: Path) -> None:
    """T1: recorded files may be padded."""
    tree = SysfsBuilder(tmp_path, "0-1")
    tree.file(f"{CPU}/isolated", b"1\n\0\0\0")
    assert str(tree.read().isolated) == "1"


def test_a_list_longer_than_a_page_is_read_whole(tmp_path: Path) -> None:
    """T1: sysfs hands out one page per read."""
    even = ",".join(str(cpu) for cpu in range(0, 8000, 2))
    tree = SysfsBuilder(tmp_path, "0-1")
    tree.file(f"{CPU}/online", even)
    assert tree.read().online == CpuSet(range(0, 8000, 2))


def test_a_fifo_or_directory_in_place_of_a_file_does_not_hang(tmp_path: Path) -> None:
    """T1."""
    tree = SysfsBuilder(tmp_path, "0-1")
    os.mkfifo(tmp_path / CPU / "isolated")
    (tmp_path / CPU / "cpu0/topology/core_cpus_list").mkdir(parents=True)
    check_topology(tree.read())


@pytest.mark.parametrize(
    ("content", "found"),
    [pytest.param("3f1c\n", "3f1c", id="there"), pytest.param(None, "", id="missing")],
)
def test_boot_id_is_read_or_empty(tmp_path: Path, content: str | None, found: str) -> None:
    """T7."""
    if content is not None:
        path = tmp_path / "proc/sys/kernel/random/boot_id"
        path.parent.mkdir(parents=True)
        path.write_text(content)
    assert read_boot_id(tmp_path) == found
