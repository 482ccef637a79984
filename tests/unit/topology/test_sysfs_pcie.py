"""PCIe roots near CPUs (T1, T4, D2)."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodecpu.lab.machine import parse_machine, write_machine
from nodecpu.topology.sysfs import read_topology
from tests.unit.topology.builder import SysfsBuilder


def machine(root: Path) -> SysfsBuilder:
    """Return two nodes with CPUs and one with memory alone, nearest to the second."""
    made = SysfsBuilder(root, "0-3")
    made.nodes_online("0-2")
    made.node(0, "0-1", "10 20 28")
    made.node(1, "2-3", "20 10 17")
    made.node(2, "", "28 17 10")
    return made


def device(made: SysfsBuilder, path: str, node: object) -> None:
    made.file(f"sys/devices/{path}/numa_node", str(node))


def roots(made: SysfsBuilder) -> dict[str, str]:
    return {root.name: str(root.cpus) for root in made.read().pcie_roots}


def test_root_is_near_the_cpus_of_its_devices_node(tmp_path: Path) -> None:
    """T4."""
    made = machine(tmp_path)
    device(made, "pci0000:00/0000:00:1f.0", 0)
    device(made, "pci0000:00/0000:00:02.0", -1)
    device(made, "pci0001:3a/0001:3a:00.0", 1)
    device(made, "pci0000:80/0000:80:00.0", 2)
    assert roots(made) == {"pci0000:00": "0-1", "pci0000:80": "2-3", "pci0001:3a": "2-3"}


@pytest.mark.parametrize("told", [("-1",), ("0", "1"), ("nonsense",), ("7",), ()])
def test_root_of_no_one_node_is_left_out(tmp_path: Path, told: tuple[str, ...]) -> None:
    """T1, D2: what is not known is not published."""
    made = machine(tmp_path)
    made.file("sys/devices/pci0000:00/uevent", "")
    for number, node in enumerate(told):
        device(made, f"pci0000:00/0000:00:{number:02x}.0", node)
    assert roots(made) == {}


def test_only_what_is_directly_below_devices_is_a_root(tmp_path: Path) -> None:
    """A storage controller's own domain belongs to the root above it, and so does what is behind a bridge."""
    made = machine(tmp_path)
    device(made, "pci0000:64/0000:64:00.5", 1)
    device(made, "pci0000:64/0000:64:00.5/pci10000:00/10000:00:00.0", 0)
    device(made, "pci0000:64/0000:64:01.0/0000:65:00.0", 0)
    device(made, "platform/pci0000:00/0000:00:00.0", 0)
    device(made, "pcix:00/0000:00:00.0", 0)
    assert roots(made) == {"pci0000:64": "2-3"}


def test_every_root_is_near_the_only_node(tmp_path: Path) -> None:
    made = SysfsBuilder(tmp_path, "0-3")
    device(made, "pci0000:00/0000:00:00.0", -1)
    assert roots(made) == {"pci0000:00": "0-3"}


def test_machine_of_the_lab_has_the_roots_that_its_text_asks_for(tmp_path: Path) -> None:
    write_machine(parse_machine("2 sockets, 2 nodes, 1 core, 2 threads, pci-roots 2, memory-only 1 hbm"), tmp_path)
    found = {root.name: str(root.cpus) for root in read_topology(tmp_path).pcie_roots}
    assert found == {f"pci0000:{n:02x}": f"{n // 2 * 2}-{n // 2 * 2 + 1}" for n in range(8)}
