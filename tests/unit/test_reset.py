"""``nodecpu reset``: shared containers get room, holders keep theirs, and never beside a daemon (R5, U128)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nodecpu.cli import main
from nodecpu.config import Config, render_toml
from nodecpu.cpuset import CpuSet, NodeSet
from nodecpu.errors import HostError, StateError
from nodecpu.ids import ClaimUID, ContainerID, PodUID, SandboxID
from nodecpu.policy.facts import QoS
from nodecpu.policy.grants import ContainerGrant, Group, Link
from nodecpu.policy.plan import Change, Placement
from nodecpu.reset import Outcome, reset
from nodecpu.store.containers import ContainerStore
from nodecpu.store.database import locked
from nodecpu.topology.sysfs import read_boot_id
from tests.unit.preflight.test_host import config, unified


class NoSystemd:
    async def set_cpuset(self, cgroups_path: str, placement: Placement) -> bool:
        return False


def grant(name: str, group: Group, exclusive: str = "", claimed: str = "") -> ContainerGrant:
    links = (Link(claim_uid=ClaimUID("u"), cpus=CpuSet.parse(claimed)),) if claimed else ()
    return ContainerGrant(
        id=ContainerID(name),
        sandbox_id=SandboxID("s"),
        pod_uid=PodUID("p"),
        namespace="shop",
        pod=name,
        name="app",
        group=group,
        pool="root",
        qos=QoS.BURSTABLE,
        exclusive=CpuSet.parse(exclusive),
        mems=NodeSet.parse("0"),
        links=links,
        uses_shared=group is Group.SHARED,
        path=f"/kubepods.slice/{name}",
    )


def cgroup(root: Path, name: str, cpus: str) -> Path:
    """Make a container's cgroup; its effective set is what was written, as a link keeps it."""
    directory = root / "cgroup/kubepods.slice" / name
    directory.mkdir()
    (directory / "cpuset.cpus").write_text(cpus)
    (directory / "cpuset.mems").write_text("0")
    (directory / "cpuset.cpus.effective").symlink_to("cpuset.cpus")
    (directory / "cpuset.mems.effective").symlink_to("cpuset.mems")
    return directory / "cpuset.cpus"


@pytest.fixture
def node(tmp_path: Path) -> Config:
    """Return a stopped node: shared and reserved containers on CPU 0, one exclusive, one claimed, one gone."""
    settings = config(tmp_path, 'policy.reserved = "0"')
    unified(tmp_path)
    grants = (
        grant("web", Group.SHARED),
        grant("dns", Group.RESERVED),
        grant("db", Group.MULTI, exclusive="1"),
        grant("job", Group.CLAIMED, claimed="2"),
        grant("old", Group.SHARED),
    )
    store = ContainerStore(settings.paths.run / "containers.db")
    store.load(read_boot_id(tmp_path))
    store.commit(Change(put_containers=grants))
    store.close()
    for name, cpus in (("web", "3"), ("dns", "0"), ("db", "1"), ("job", "2")):
        cgroup(tmp_path, name, cpus)
    return settings


def cpus(root: Path, name: str) -> str:
    return (root / "cgroup/kubepods.slice" / name / "cpuset.cpus").read_text()


def test_shared_containers_get_all_that_nobody_has_as_its_own(node: Config, tmp_path: Path) -> None:
    report = reset(node, NoSystemd())
    assert str(report.cpus) == "0,3"
    assert dict(report.outcomes) == {
        "shop/web/app": Outcome.WIDENED,
        "shop/dns/app": Outcome.WIDENED,
        "shop/db/app": Outcome.LEFT,
        "shop/job/app": Outcome.LEFT,
        "shop/old/app": Outcome.GONE,
    }
    assert [cpus(tmp_path, name) for name in ("web", "dns", "db", "job")] == ["0,3", "0,3", "1", "2"]
    assert reset(node, NoSystemd()).outcomes["shop/web/app"] is Outcome.WIDE


def test_everything_means_the_cpus_of_others_too(node: Config, tmp_path: Path) -> None:
    reset(node, NoSystemd(), everything=True)
    assert [cpus(tmp_path, name) for name in ("web", "db")] == ["0-3", "1"]


def test_trying_changes_nothing(node: Config, tmp_path: Path) -> None:
    assert reset(node, NoSystemd(), try_only=True).outcomes["shop/web/app"] is Outcome.WIDENED
    assert cpus(tmp_path, "web") == "3"


def test_nothing_is_reset_beside_a_running_daemon(node: Config, tmp_path: Path) -> None:
    with locked(node.paths.run / "lock"), pytest.raises(StateError, match="another process"):
        reset(node, NoSystemd())
    assert cpus(tmp_path, "web") == "3"


def test_node_without_books_is_told(tmp_path: Path) -> None:
    with pytest.raises(HostError, match="nothing can be reset"):
        reset(config(tmp_path), NoSystemd())


def test_container_that_cannot_be_widened_is_told(
    node: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    effective = tmp_path / "cgroup/kubepods.slice/web/cpuset.cpus.effective"
    effective.unlink()
    effective.write_text("3")
    file = tmp_path / "node.toml"
    file.write_text(render_toml(node))
    assert main(["reset", "--config", str(file)]) == 1
    assert "shop/web/app: failed" in capsys.readouterr().out
    assert main(["reset", "--config", str(file), "--dry-run", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["cpus"] == "0,3"
    assert told["containers"]["shop/dns/app"] == "wide already"
