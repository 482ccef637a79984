"""Quotas in the cgroup tree: read and raised, version 1 and 2, both drivers' names (G14)."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodecpu.enforce.quota import Cover, CpuQuotas

SYSTEMD = "kubepods-burstable-podab_c.slice:cri-containerd:1234"
CGROUPFS = "/kubepods/burstable/podab-c/1234"
PODS = {
    SYSTEMD: "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podab_c.slice",
    CGROUPFS: "kubepods/burstable/podab-c",
}
SCOPES = {SYSTEMD: "cri-containerd-1234.scope", CGROUPFS: "1234"}


class Tree:
    """A cgroup tree of plain files."""

    def __init__(self, root: Path, version: str, path: str) -> None:
        self.root = root
        self.unified = version == "v2"
        self.path = path
        self.base = root if self.unified else root / version
        if self.unified:
            (root / "cgroup.controllers").write_text("cpu\n")
        self.pod = self.base / PODS[path]
        self.container = self.pod / SCOPES[path]
        self.container.mkdir(parents=True)

    def put(self, place: Path, quota_us: int, period_us: int = 100_000) -> None:
        if self.unified:
            (place / "cpu.max").write_text(f"{'max' if quota_us < 0 else quota_us} {period_us}\n")
        else:
            (place / "cpu.cfs_quota_us").write_text(f"{quota_us}\n")
            (place / "cpu.cfs_period_us").write_text(f"{period_us}\n")

    def has(self, place: Path) -> str:
        return (place / ("cpu.max" if self.unified else "cpu.cfs_quota_us")).read_text().strip()


@pytest.fixture(params=["v2", "cpu", "cpu,cpuacct"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[pytest.param(SYSTEMD, id="systemd"), pytest.param(CGROUPFS, id="cgroupfs")])
def tree(request: pytest.FixtureRequest, version: str, tmp_path: Path) -> Tree:
    return Tree(tmp_path, version, request.param)


def test_pods_quota_is_raised_when_it_is_below(tree: Tree) -> None:
    """G14."""
    tree.put(tree.pod, 1_000)
    quotas = CpuQuotas(tree.root)
    assert quotas.cover_pod(tree.path, 800_000, lift=True) is Cover.RAISED
    assert tree.has(tree.pod) == ("800000 100000" if tree.unified else "800000")
    assert quotas.cover_pod(tree.path, 800_000, lift=True) is Cover.ENOUGH


@pytest.mark.parametrize("quota_us", [-1, 800_000, 900_000])
def test_pods_quota_that_is_enough_is_left_alone(tree: Tree, quota_us: int) -> None:
    """G14: it is never lowered."""
    tree.put(tree.pod, quota_us)
    before = tree.has(tree.pod)
    assert CpuQuotas(tree.root).cover_pod(tree.path, 800_000, lift=True) is Cover.ENOUGH
    assert tree.has(tree.pod) == before


def test_pods_quota_is_left_too_low_where_it_is_not_to_be_lifted(tree: Tree) -> None:
    """G14: claims.lift_pod_quota."""
    tree.put(tree.pod, 1_000)
    assert CpuQuotas(tree.root).cover_pod(tree.path, 800_000, lift=False) is Cover.TOO_LOW
    assert tree.has(tree.pod).split()[0] == "1000"


def test_quotas_of_other_periods_are_compared_as_shares_of_time(tree: Tree) -> None:
    """G14."""
    tree.put(tree.pod, 20_000, 10_000)  # two CPUs
    quotas = CpuQuotas(tree.root)
    assert quotas.cover_pod(tree.path, 200_000, lift=True) is Cover.ENOUGH
    assert quotas.cover_pod(tree.path, 400_000, lift=True) is Cover.RAISED
    assert tree.has(tree.pod) == ("400000 100000" if tree.unified else "40000")


@pytest.mark.parametrize(
    ("have", "need", "cover", "after"),
    [
        pytest.param(1_000, -1, Cover.RAISED, -1, id="lifted"),
        pytest.param(1_000, 250_000, Cover.RAISED, 250_000, id="raised"),
        pytest.param(-1, -1, Cover.ENOUGH, -1, id="none needed, none there"),
        pytest.param(-1, 250_000, Cover.ENOUGH, -1, id="none there"),
        pytest.param(300_000, 250_000, Cover.ENOUGH, 300_000, id="enough"),
    ],
)
def test_containers_quota(tree: Tree, have: int, need: int, cover: Cover, after: int) -> None:
    """G14."""
    tree.put(tree.container, have)
    assert CpuQuotas(tree.root).cover_container(tree.path, need) is cover
    assert tree.has(tree.container).split()[0].replace("max", "-1") == str(after)


def test_everything_from_the_container_up_is_told(tree: Tree) -> None:
    """G14: judged up to kubepods."""
    tree.put(tree.container, -1)
    tree.put(tree.pod, 300_000)
    tree.put(tree.pod.parent, 900_000)
    found = list(CpuQuotas(tree.root).chain(tree.path))
    assert [quota for _, quota in found] == [300_000, 900_000]
    assert found[0][0] == "/" + PODS[tree.path]


def test_what_cannot_be_read_is_taken_for_enough(tree: Tree) -> None:
    """A container that is gone, a kernel without the controller, a path of no kind we know."""
    quotas = CpuQuotas(tree.root)
    for path in (tree.path, "", "/../x", "/kubepods/none/1"):
        assert quotas.cover_pod(path, 100_000, lift=True) is Cover.ENOUGH
        assert quotas.cover_container(path, 100_000) is Cover.ENOUGH
    (tree.pod / "cpu.max").write_text("odd\n")
    assert list(quotas.chain("")) == []
    assert quotas.cover_pod(tree.path, 100_000, lift=True) is Cover.ENOUGH


class Refusing(CpuQuotas):
    """A kernel that takes no quota: with cgroup v1, of a container above its pod's."""

    def _write(self, place: Path, quota_us: int) -> bool:
        return False


def test_a_write_that_the_kernel_refuses_is_too_low(tree: Tree) -> None:
    """G14, E1."""
    tree.put(tree.pod, 1_000)
    tree.put(tree.container, 1_000)
    quotas = Refusing(tree.root)
    assert quotas.cover_pod(tree.path, 800_000, lift=True) is Cover.TOO_LOW
    assert quotas.cover_container(tree.path, 800_000) is Cover.TOO_LOW
