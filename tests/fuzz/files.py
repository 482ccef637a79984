"""Hostile input for what is read from files of the node and from small texts: targets for ``tests.fuzz.decoders``.

Databases, credentials, other programs' configuration, kernel files, annotations, variables, single requests. Most of
these belong to root or come from a peer that is trusted; all the same none may end the daemon by being damaged.
"""

from __future__ import annotations

import base64
import binascii
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from nodecpu.admin import server
from nodecpu.admin.state import Refusal, Request
from nodecpu.attraction import attraction
from nodecpu.dra import metadata, podresources
from nodecpu.enforce.cgroups import Cgroups
from nodecpu.enforce.quota import Cover, CpuQuotas
from nodecpu.kube.certificate import read_certificate, token_expiry
from nodecpu.kube.credentials import expiry_of, files_of, token_file
from nodecpu.kube.renewal import read_token
from nodecpu.locality import Locality, Wanted
from nodecpu.nri.versions import runtime_version
from nodecpu.policy.annotations import HintSource, preferences_of
from nodecpu.policy.evidence import shown_by, told_by
from nodecpu.policy.rules import Rules
from nodecpu.preflight.kubelet import read_kubelet
from nodecpu.preflight.runtime import read_runtimes
from nodecpu.proto import health_pb2
from nodecpu.proto import podresources_pb2 as pb
from nodecpu.store.claims import ClaimStore, Job
from tests.property.test_decoders import UID
from tests.unit.kube.test_certificate import FAR, NODE, token
from tests.unit.policy.given import container, sandbox
from tests.unit.policy.machines import N4C16, books, build_topology
from tests.unit.store.test_database import CLAIM as CLAIM_ROW

SLOW: Final = (
    *("state file", "kubeconfig", "kubelet configuration", "runtime configuration"),
    *("mounts", "cgroup files"),
)
"""Decoders that take milliseconds."""

Take = Callable[[bytes], None]
More = tuple[Sequence[bytes], Take, bool]
"""Good inputs, what takes one, and whether they are JSON."""

_DOMAIN: Final = "resource-policy.nri.io"
_KUBECONFIG: Final = b"""\
current-context: c
contexts: [{name: c, context: {user: u, cluster: k}}]
users: [{name: u, user: {tokenFile: token, client-certificate: cert.pem}}]
clusters: [{name: k, cluster: {server: "https://api:6443", certificate-authority: ca.pem}}]
"""
_KUBELET: Final = b"""\
kind: KubeletConfiguration
cpuManagerPolicy: static
memoryManagerPolicy: None
reservedSystemCPUs: 0-1
featureGates: {DynamicResourceAllocation: true}
"""
_CONTAINERD: Final = b"""\
version = 3
imports = ["/etc/containerd/conf.d/*.toml"]
[plugins.'io.containerd.nri.v1.nri']
disable = false
[plugins.'io.containerd.cri.v1.runtime']
enable_cdi = true
cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
"""
_MOUNTS: Final = b"""\
25 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
40 25 259:3 / /var/lib/data\\040x rw - xfs /dev/nvme1n1 rw
"""
_AFFINITY: Final = b"""\
main:
- scope: {key: pod/name, operator: In, values: [a, b]}
  match: {key: labels/app, operator: Exists}
  weight: -10
other: [c]
"""


class _Files:
    """A directory with one file that is written anew for each input."""

    def __init__(self, directory: Path, name: str) -> None:
        self.root = directory
        self.path = directory / name
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def put(self, data: bytes) -> None:
        self.path.write_bytes(data)


class _Databases:
    """A claims database that is opened, read and written to."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir()
        store = ClaimStore(directory / "claims.db")
        store.set_meta("boot_id", "b")
        store.commit([Job(puts=(CLAIM_ROW,))])
        store.close()
        self.good = (directory / "claims.db").read_bytes()

    def take(self, data: bytes) -> None:
        shutil.rmtree(self._directory)
        self._directory.mkdir(mode=0o700)
        (self._directory / "claims.db").write_bytes(data)
        store = ClaimStore(self._directory / "claims.db")
        try:
            found = store.load()
            assert found in ((), (CLAIM_ROW,)) or store.is_rebuilt or all(one.results for one in found)
            store.meta("boot_id")
            store.commit([Job(puts=(CLAIM_ROW,))])
            assert CLAIM_ROW in store.load()
        finally:
            store.close()


def _kubeconfig(directory: Path) -> Take:
    files = _Files(directory, "kubeconfig")

    def take(data: bytes) -> None:
        files.put(data)
        assert files_of(files.path)[0] == files.path
        token_file(files.path)

    return take


def _certificate(directory: Path) -> Take:
    files = _Files(directory, "cert.pem")

    def take(data: bytes) -> None:
        der = base64.b64encode(data)
        for pem in (data, b"-----BEGIN CERTIFICATE-----\n" + der + b"\n-----END CERTIFICATE-----"):
            found = read_certificate(pem)
            assert found is None or isinstance(found.common_name, str)
            files.put(pem)
            expiry_of(str(files.path), None)

    return take


def _token(data: bytes) -> None:
    """Take the payload of a token, and a token as it is."""
    whole = token().split(".")
    for text in (
        ".".join((whole[0], base64.urlsafe_b64encode(data).decode().rstrip("="), "x")),
        data.decode("latin-1"),
    ):
        token_expiry(text)
        expiry_of(None, f"Bearer {text}")
        found = read_token(text)
        assert found is None or found.node is not None


def _kubelet(directory: Path) -> Take:
    files = _Files(directory, "var/lib/kubelet/config.yaml")
    state = files.path.with_name("cpu_manager_state")

    def take(data: bytes) -> None:
        files.put(data)
        state.write_bytes(data)
        found = read_kubelet(files.root, files.path.parent)
        assert isinstance(found.reserved, str)
        assert all(isinstance(one, str) for one in (*found.cpu.values(), *found.memory.values()))

    return take


def _runtime(directory: Path) -> Take:
    files = _Files(directory, "etc/containerd/config.toml")

    def take(data: bytes) -> None:
        files.put(data)
        for found in read_runtimes(files.root):
            assert found.nri in (None, True, False)
            assert all(isinstance(one, str) for one in found.cdi_dirs or ())

    return take


def _mounts(directory: Path) -> Take:
    files = _Files(directory, "proc/self/mountinfo")
    locality = Locality(directory, build_topology(N4C16))
    mounting = replace(container(), mounts=("/var/lib/data x/1", "/etc"))

    def take(data: bytes) -> None:
        files.put(data)
        locality.hints(mounting, Wanted(sources=frozenset({HintSource.MOUNTS})))

    return take


def _cgroups(directory: Path) -> Take:
    names = (
        "cpuset.cpus.effective",
        "cpuset.mems.effective",
        "cpuset.cpus",
        "cpu.max",
        "cgroup.procs",
        "cgroup.events",
    )
    places = [_Files(directory, f"kubepods/c1/{name}") for name in names]
    (directory / "cgroup.controllers").write_text("cpuset cpu")
    (directory / "kubepods" / "cpuset.cpus.effective").write_text("0-15")
    cgroups, quotas = Cgroups(directory), CpuQuotas(directory)

    def take(data: bytes) -> None:
        for place in places:
            place.put(data)
        seen = cgroups.effective("/kubepods/c1")
        assert seen is None or seen.cpus
        cgroups.configured("/kubepods/c1")
        cgroups.is_populated("/kubepods/c1")
        assert isinstance(quotas.cover_container("/kubepods/c1", 100_000), Cover)
        cgroups.effective(data.decode("latin-1"))

    return take


def _variables(data: bytes) -> None:
    pairs = (pair.partition("=")[::2] for pair in data.decode("latin-1").split("\n"))
    env = dict(pairs)
    for found in told_by(env):
        assert found.cpus
        assert all(part <= found.cpus for part in found.requests.values())
    assert all(len(uid) == len(UID) for uid in shown_by(container(env=env, devices=tuple(env))))


def _annotations() -> Take:
    ledger = books().ledger

    def take(data: bytes) -> None:
        text = data.decode("latin-1")
        lines = dict(line.partition("=")[::2] for line in text.split("\n"))
        wanted: Mapping[str, str] = {f"affinity.{_DOMAIN}": text, f"memory-type.{_DOMAIN}": text, **lines}
        read = preferences_of(Rules(), "shop", "main", wanted)
        attraction(Rules(), ledger, lambda grant: None, sandbox(), container(), read.preferences)

    return take


def _pod_resources(data: bytes) -> None:
    health_pb2.NodeWatchResourcesRequest.FromString(data)
    with suppress(DecodeError):
        for one in pb.GetPodResourcesResponse.FromString(data).pod_resources.containers:
            assert all(given.nodes for given in podresources._devices(one.devices))


def _version(data: bytes) -> None:
    name, _, version = data.decode("latin-1").partition(" ")
    for nri in ("", version):
        found = runtime_version(name, version, nri)
        assert found.nri is None or len(found.nri) == 3


def _request(data: bytes) -> None:
    found = server.parsed(data)
    assert isinstance(found, Request | Refusal)
    assert metadata._generation(data) >= 0


def more_targets(scratch: Path) -> dict[str, More]:
    """Return the targets by name; ``scratch`` is an empty directory."""
    databases = _Databases(scratch / "state")
    pod = pb.PodResources(
        containers=[
            pb.ContainerResources(
                name="main",
                devices=[
                    pb.ContainerDevices(resource_name="x/nic", topology=pb.TopologyInfo(nodes=[pb.NUMANode(ID=number)]))
                    for number in (0, 3, 1 << 40)
                ],
            )
        ]
    )
    payload = {"exp": 1e9, "iat": 1, "aud": ["a"], "kubernetes.io": {"node": {"name": "n", "uid": UID}}}
    ders = [binascii.a2b_base64(b"".join(pem.splitlines()[1:-1])) for pem in (NODE, FAR)]
    deep = b'{"verb": "try", "objects": [' + b"[" * 2000 + b"]" * 2000 + b"]}"
    ranges = f"DRA_CPUSET_{UID}=0-3,8\nDRA_CPUSET_{UID}_cpus=0-1\nPATH=/bin\ndra.cpu/cpu=claim-{UID}-0=".encode()
    flags = f"prefer-isolated-cpus.{_DOMAIN}/pod=true\ntopologyhints.{_DOMAIN}/container.main=mounts,devices".encode()
    return {
        "state file": ((databases.good,), databases.take, False),
        "kubeconfig": ((_KUBECONFIG,), _kubeconfig(scratch / "kubeconfig"), False),
        "certificate": ((*ders, NODE), _certificate(scratch / "certificate"), False),
        "token": ((json.dumps(payload).encode(),), _token, True),
        "kubelet configuration": ((_KUBELET,), _kubelet(scratch / "kubelet"), False),
        "runtime configuration": ((_CONTAINERD,), _runtime(scratch / "runtime"), False),
        "mounts": ((_MOUNTS,), _mounts(scratch / "mounts"), False),
        "cgroup files": (
            (b"0-3,8\n", b"max 100000\n", b"50000 100000", b"populated 1"),
            _cgroups(scratch / "cg"),
            False,
        ),
        "variables": ((ranges,), _variables, False),
        "annotations": ((_AFFINITY, flags), _annotations(), False),
        "pod resources": ((pb.GetPodResourcesResponse(pod_resources=pod).SerializeToString(),), _pod_resources, False),
        "version": ((b"containerd v2.1.0-rc.1+x", b"cri-o 1.37.0", b"containerd 1.7.24~ds1"), _version, False),
        "request": ((b'{"verb": "state"}', deep, b'{"metadata": {"generation": 4}}'), _request, False),
    }
