"""The files that credentials come from (thin, blocking; a client thread's): which they are, whether they changed.

A kubeconfig names further files: certificate, key, authority, token. Any of them may be replaced at any time, most
often by a link that is set anew; they are looked at by what the path leads to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from nodecpu.kube.certificate import read_certificate, token_expiry

_USER_FILES: Final = ("tokenFile", "client-certificate", "client-key")
_CLUSTER_FILES: Final = ("certificate-authority",)

Stamps = Mapping[Path, tuple[int, int, int, int] | None]
"""What tells one content of a file from another; None: not there."""


def files_of(path: Path) -> tuple[Path, ...]:
    """Return a kubeconfig and the files that its current context names; itself alone if it cannot be read."""
    user, cluster = user_and_cluster(path)
    names = [*(_text(user, key) for key in _USER_FILES), *(_text(cluster, key) for key in _CLUSTER_FILES)]
    return (path, *(path.parent / name for name in names if name))


def token_file(path: Path) -> Path | None:
    """Return the file of the token that a kubeconfig's current user has, None if it has none."""
    user, _ = user_and_cluster(path)
    name = _text(user, "tokenFile")
    return path.parent / name if name else None


def user_and_cluster(path: Path) -> tuple[object, object]:
    """Return the user and the cluster of a kubeconfig's current context, None for what cannot be read."""
    try:
        config: object = msgspec.yaml.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError):
        return None, None
    context = _named(config, "contexts", _text(config, "current-context"), "context")
    user = _named(config, "users", _text(context, "user"), "user")
    return user, _named(config, "clusters", _text(context, "cluster"), "cluster")


def stamps_of(files: Iterable[Path]) -> Stamps:
    """Return what the files are at this moment."""
    found: dict[Path, tuple[int, int, int, int] | None] = {}
    for path in files:
        try:
            status = path.stat()
        except OSError:
            found[path] = None
        else:
            found[path] = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
    return found


def expiry_of(certificate: str | None, authorization: str | None) -> float | None:
    """Return when the first of both ends, in Unix seconds; None if neither tells. ``certificate`` is a path."""
    ends: list[float] = []
    if certificate:
        try:
            found = read_certificate(Path(certificate).read_bytes())
        except OSError:
            found = None
        if found is not None:
            ends.append(found.expires_at)
    if authorization and (end := token_expiry(authorization.rpartition(" ")[2])) is not None:
        ends.append(end)
    return min(ends, default=None)


def _named(config: object, part: str, name: str, inner: str) -> object:
    entries = config.get(part) if isinstance(config, dict) else None
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and entry.get("name") == name:
            return entry.get(inner)
    return None


def _text(value: object, key: str) -> str:
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, str) else ""
