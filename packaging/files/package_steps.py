"""What the packages' scripts ask of configuration and books: exit code 1 is a no, with reasons. And the bytecode."""

from __future__ import annotations

import compileall
import importlib
import json
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path

import nodecpu
from nodecpu.admin.client import fetch_state
from nodecpu.cli import WAIT_S
from nodecpu.config import Config, load
from nodecpu.ending import await_ends
from nodecpu.errors import NodeCpuError
from nodecpu.preflight.host import arranged_host

CONFIG = Path("/etc/nodecpu/nodecpu.toml")
SHOWN = 10


def main(step: str, config_path: Path = CONFIG) -> int:
    """Answer a question, or write the bytecode."""
    if step == "compile":
        return compile_used()
    if step == "may-run":
        problems = may_run(load(config_path))
    elif step == "may-restart":
        problems = may_restart(_config(config_path))
    else:
        problems = may_remove(_config(config_path))
    sys.stderr.writelines(f"nodecpu: {line}\n" for line in problems)
    return 1 if problems else 0


def compile_used() -> int:
    """Write bytecode: of all of our own modules, and of those of others that the daemon loads, by loading them."""
    own = Path(nodecpu.__file__).parent
    compileall.compile_dir(own, quiet=1)
    for path in sorted(own.rglob("*.py")):
        if path.name not in {"__init__.py", "__main__.py"}:
            importlib.import_module(".".join(path.relative_to(own.parent).with_suffix("").parts))
    return 0


def may_run(config: Config) -> list[str]:
    """Return what a daemon would still lack."""
    if config.kube.enabled and not config.kube.kubeconfig.is_file():
        return [
            f"not started: there are no credentials for the API server at {config.kube.kubeconfig} yet.",
            "Put a kubeconfig there, then: systemctl start nodecpu",
        ]
    arranged, found = arranged_host(config)
    return [] if arranged is not None else [f"not started: {found.seen}", found.remedy]


def may_restart(config: Config, *, wait_s: float = WAIT_S) -> list[str]:
    """Wait until no container is being terminated; return why there can be no restart if some still are."""
    socket = config.paths.run / "admin.sock"
    try:
        await_ends(
            lambda: fetch_state(socket).terminating,
            wait_s=wait_s,
            clock=time.monotonic,
            sleep=time.sleep,
            told=lambda line: sys.stderr.writelines((f"nodecpu: {line}\n",)),
        )
    except NodeCpuError as error:
        return [error.message]
    return []


def may_remove(config: Config) -> list[str]:
    """Return why the package has to stay: claims in the books. Books that cannot be read are taken for held claims.

    A released claim is over for the kubelet; its row stays until the next claim's commit.
    """
    path = config.paths.state / "claims.db"
    if not path.exists():
        return []
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as db:
            rows = [json.loads(row) for (row,) in db.execute("SELECT row FROM claims ORDER BY uid")]
        rows = [row for row in rows if not row.get("released")]
    except (sqlite3.Error, ValueError) as error:
        return [f"not removed: the books {path} cannot be read: {error}", *_forced()]
    if not rows:
        return []
    names = [f"  claim {row.get('namespace', '?')}/{row.get('name', '?')}" for row in rows]
    rest = [f"  and {len(rows) - SHOWN} more"] if len(rows) > SHOWN else []
    return [
        f"not removed: {len(rows)} claims hold CPUs of this node. Without a driver their pods stay Terminating.",
        *names[:SHOWN],
        *rest,
        "Drain the node or delete these pods first.",
        *_forced(),
    ]


def _config(path: Path) -> Config:
    """Return the configuration; the default one if the file is wrong or gone, which must not keep the package."""
    try:
        return load(path)
    except NodeCpuError:
        return Config()


def _forced() -> list[str]:
    return ["To remove it all the same, run the removal again with NODECPU_FORCE_REMOVE=1 in its environment."]


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
