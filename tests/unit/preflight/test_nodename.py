"""What this node is called, by the files of the kubelet (U106)."""

from __future__ import annotations

import base64
import json
import socket
from pathlib import Path

import pytest

from nodecpu.preflight.nodename import NodeName, find_node_name
from tests.unit.kube.test_certificate import FAR, NODE

HOST = socket.gethostname().lower()
UNIT = "etc/systemd/system/kubelet.service.d/10-kubeadm.conf"


def put(root: Path, name: str, content: str | bytes) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def found(root: Path, *, configured: str = "") -> NodeName:
    return find_node_name(root, root / "var/lib/kubelet", configured=configured)


def kubeconfig(user: dict[str, str]) -> str:
    return json.dumps(
        {
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "a", "user": "me"}}],
            "users": [{"name": "other", "user": {}}, {"name": "me", "user": user}],
        }
    )


def test_name_is_the_first_that_is_told(tmp_path: Path) -> None:
    """U106: what is nearer to what the API server knows comes first."""
    assert found(tmp_path) == NodeName(name=HOST, source="the host's name")
    unit = put(tmp_path, UNIT, '[Service]\nEnvironment="KUBELET_EXTRA_ARGS=--v=2 --hostname-override=Node-C"\n')
    assert found(tmp_path) == NodeName(name="node-c", source=f"--hostname-override in {unit}")
    flags = put(tmp_path, "var/lib/kubelet/kubeadm-flags.env", 'KUBELET_KUBEADM_ARGS="--hostname-override node-b"\n')
    assert found(tmp_path) == NodeName(name="node-b", source=f"--hostname-override in {flags}")
    config = put(tmp_path, "etc/kubernetes/kubelet.conf", kubeconfig({"client-certificate": "/pki/k.pem"}))
    put(tmp_path, "pki/k.pem", NODE)
    assert found(tmp_path) == NodeName(name="worker-1", source=f"the certificate in {config}", is_proven=True)
    put(tmp_path, "pki/k.pem", "gone")
    put(tmp_path, "var/lib/kubelet/pki/kubelet-client-current.pem", NODE)
    assert found(tmp_path) == NodeName(name="worker-1", source="the kubelet's certificate", is_proven=True)
    assert found(tmp_path, configured="n9") == NodeName(name="n9", source="the configuration")


@pytest.mark.parametrize(
    "path",
    ["var/lib/kubelet/kubeconfig", "var/lib/rancher/k3s/agent/kubelet.kubeconfig", "etc/kubernetes/kubelet.conf"],
)
@pytest.mark.parametrize("is_data", [True, False])
def test_certificate_stands_in_the_kubeconfig_or_beside_it(tmp_path: Path, path: str, *, is_data: bool) -> None:
    data = {"client-certificate-data": base64.b64encode(NODE).decode()}
    config = put(tmp_path, path, kubeconfig(data if is_data else {"client-certificate": "k.pem"}))
    put(config.parent, "k.pem", NODE)
    assert found(tmp_path).name == "worker-1"


@pytest.mark.parametrize(
    "text",
    [
        "# --hostname-override=node-x\n",
        "ExecStart=/usr/bin/kubelet --hostname-override=$(hostname -f)\n",
        "ExecStart=/usr/bin/kubelet --hostname-override=${NAME}\n",
        "ExecStart=/usr/bin/kubelet --hostname-override=%H\n",
        "ExecStart=/usr/bin/kubelet --hostname-override-not=node-x\n",
    ],
)
def test_flag_that_says_nothing_by_itself_is_passed_over(tmp_path: Path, text: str) -> None:
    put(tmp_path, UNIT, text)
    assert found(tmp_path).name == HOST


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"[", b"- a", b"users: 3", FAR, kubeconfig({"client-certificate-data": "?"}).encode()]
)
def test_file_that_is_of_another_form_tells_no_name(tmp_path: Path, content: bytes) -> None:
    """A certificate of somebody who is no node is none of the kubelet's."""
    put(tmp_path, "var/lib/kubelet/pki/kubelet-client-current.pem", content)
    put(tmp_path, "etc/kubernetes/kubelet.conf", content)
    assert found(tmp_path).name == HOST
