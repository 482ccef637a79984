"""Where packages are built, and the virtual machine: each made once for all tests here."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.e2e.packages import built, need_tools
from tests.e2e.vm import VirtualMachine, virtual_machine
from tests.e2e.vmsite import INSTALLED, PINNED, Node, Scene, Site, install, pin


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tell with a failure on the virtual machine what its kernel said last."""
    report = yield
    machine = getattr(item, "funcargs", {}).get("machine")
    if report.failed and isinstance(machine, VirtualMachine):
        report.sections.append(("the machine's console", machine.console()))
    return report


@pytest.fixture(scope="session")
def built_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory that packages are built in."""
    return tmp_path_factory.mktemp("packages")


@pytest.fixture(scope="package")
def machine() -> Iterator[VirtualMachine]:
    """Return the virtual machine, which has just booted."""
    with virtual_machine() as begun:
        yield begun


@pytest.fixture(scope="package")
def site(machine: VirtualMachine, built_in: Path, tmp_path_factory: pytest.TempPathFactory) -> Site:
    """Return the machine after the role has run, once and for all."""
    need_tools("ansible-tools")
    made = install(machine, tmp_path_factory.mktemp("plays"), built("debian13", "0.1.0", built_in))
    machine.save(INSTALLED)
    return made


@pytest.fixture
def node(site: Site) -> Node:
    """Return the node as it was after its installation."""
    site.machine.restore(INSTALLED)
    return Node(site.machine)


@pytest.fixture(scope="package")
def scene(site: Site) -> Scene:
    """Have a shared container, and a holder that it made room for, running; keep the machine as it is then."""
    site.machine.restore(INSTALLED)
    seen = pin(Node(site.machine))
    site.machine.save(PINNED)
    return seen


@pytest.fixture
def pinned(site: Site, scene: Scene) -> Node:
    """Return the node with those two, on which the scene says that they run."""
    del scene
    site.machine.restore(PINNED)
    return Node(site.machine)
