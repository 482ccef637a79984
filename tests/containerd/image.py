"""A container image without a registry: an OCI layout in one tar file, made of the machine's static busybox."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path

IMAGE = "localhost/nodecpu-test:1"
"""Serves as the sandbox image too."""

_APPLETS = ("sh", "sleep", "cat", "env", "grep", "true")


def write_image(busybox: Path, target: Path) -> None:
    """Write the layout to ``target``; the same busybox gives the same bytes. Source: OCI image layout 1.0."""
    layer = _layer(busybox.read_bytes())
    config = _json(
        {
            "architecture": _architecture(),
            "os": "linux",
            "config": {"Entrypoint": ["/bin/sleep"], "Cmd": ["86400"], "Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
    )
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": _descriptor("application/vnd.oci.image.config.v1+json", config),
            "layers": [_descriptor("application/vnd.oci.image.layer.v1.tar", layer)],
        }
    )
    entry = _descriptor("application/vnd.oci.image.manifest.v1+json", manifest)
    index = _json({"schemaVersion": 2, "manifests": [{**entry, "annotations": {"io.containerd.image.name": IMAGE}}]})
    with tarfile.open(target, "w") as layout:
        _add(layout, "oci-layout", _json({"imageLayoutVersion": "1.0.0"}))
        _add(layout, "index.json", index)
        for blob in (layer, config, manifest):
            _add(layout, f"blobs/sha256/{hashlib.sha256(blob).hexdigest()}", blob)


def _layer(busybox: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        for directory in ("bin", "etc", "proc", "sys", "dev", "tmp"):
            entry = tarfile.TarInfo(directory)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            layer.addfile(entry)
        _add(layer, "bin/busybox", busybox, mode=0o755)
        _add(layer, "etc/passwd", b"root:x:0:0:root:/:/bin/sh\n")
        for applet in _APPLETS:
            entry = tarfile.TarInfo(f"bin/{applet}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            layer.addfile(entry)
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, data: bytes, *, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    archive.addfile(entry, io.BytesIO(data))


def _architecture() -> str:
    """Return the machine's name as Go and OCI spell it."""
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _descriptor(media_type: str, data: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "digest": _digest(data), "size": len(data)}
