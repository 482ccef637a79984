"""What this node is called, by the kubelet's own files (shell, read-only; U106).

The kubelet's client certificate is what it is known by, so that it comes first. Only files count: they are there before
the kubelet runs, and our unit hides other programs' processes. Whether there is a Node of that name, the API server
tells: nothing is published without (D4).
"""

from __future__ import annotations

import base64
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nodecpu.kube.certificate import read_certificate
from nodecpu.kube.credentials import user_and_cluster
from nodecpu.preflight.files import read_text, text

_CERTIFICATE: Final = "pki/kubelet-client-current.pem"
_KUBECONFIGS: Final = (
    "etc/kubernetes/kubelet.conf",
    "var/lib/rancher/rke2/agent/kubelet.kubeconfig",
    "var/lib/rancher/k3s/agent/kubelet.kubeconfig",
)
"""Where kubeadm, RKE2 and k3s keep the kubelet's; others keep it in the kubelet's directory."""

_FLAG_FILES: Final = (
    "etc/default/kubelet",
    "etc/sysconfig/kubelet",
    "etc/systemd/system/kubelet.service.d/*.conf",
    "etc/systemd/system/kubelet.service",
    "usr/lib/systemd/system/kubelet.service.d/*.conf",
    "usr/lib/systemd/system/kubelet.service",
)
_OVERRIDE: Final = re.compile(
    r"^[^#\n]*--hostname-override[= ][\"']?([A-Za-z0-9][A-Za-z0-9.-]*)", re.ASCII | re.MULTILINE
)
_OF_NODE: Final = "system:node:"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeName:
    """A name and what told it; ``is_proven``: the API server knows the kubelet by it."""

    name: str
    source: str
    is_proven: bool = False


def find_node_name(root: Path, kubelet: Path, *, configured: str = "") -> NodeName:
    """Return the configured name, else the kubelet's: by its certificate, its flags, the host's name, in this order.

    ``root`` is where the host's files are, ``kubelet`` the kubelet's directory. Source: kubelet
    pkg/kubelet/certificate (common name), cmd/kubelet (``--hostname-override``, small letters).
    """
    if configured:
        return NodeName(name=configured, source="the configuration")
    if name := _certified(read_text(kubelet / _CERTIFICATE)):
        return NodeName(name=name, source="the kubelet's certificate", is_proven=True)
    for path in (*(root / one for one in _KUBECONFIGS), kubelet / "kubeconfig"):
        if name := _by_kubeconfig(root, path):
            return NodeName(name=name, source=f"the certificate in {path}", is_proven=True)
    for path in _flag_files(root, kubelet):
        if found := _OVERRIDE.search(read_text(path) or ""):
            return NodeName(name=found[1].lower(), source=f"--hostname-override in {path}")
    return NodeName(name=socket.gethostname().lower(), source="the host's name")


def _certified(pem: str | None) -> str:
    found = read_certificate((pem or "").encode())
    name = "" if found is None else found.common_name
    return name.removeprefix(_OF_NODE) if name.startswith(_OF_NODE) else ""


def _by_kubeconfig(root: Path, path: Path) -> str:
    """Return the name in the certificate of a kubeconfig's current user; empty if it has none that can be read."""
    user, _ = user_and_cluster(path)
    if not isinstance(user, dict):
        return ""
    if file := text(user, "client-certificate"):
        return _certified(read_text(root / file.lstrip("/") if file.startswith("/") else path.parent / file))
    try:
        return _certified(base64.b64decode(text(user, "client-certificate-data")).decode(errors="replace"))
    except ValueError:
        return ""


def _flag_files(root: Path, kubelet: Path) -> Iterator[Path]:
    """Yield the files that hold the kubelet's flags, what overrides others first."""
    yield kubelet / "kubeadm-flags.env"
    for pattern in _FLAG_FILES:
        yield from sorted(root.glob(pattern), reverse=True)
