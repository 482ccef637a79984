"""Starts the daemon in a twentieth of the usual time: a process that has all modules loaded forks for every start.

Nothing of the daemon has run before the fork, so what starts is a daemon like any other. Lines of JSON in (what to
start), lines out (``started PID``, ``ended PID CODE`` as ``waitpid`` tells).
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import json
import os
import select
import signal
import sys
import traceback
from pathlib import Path
from typing import Final

_MODULES: Final = (
    "nodecpu.cli.daemon",
    "nodecpu.daemon",
    "nodecpu.dra.registration",
    "nodecpu.dra.publish",
    "nodecpu.kube.client",
    "nodecpu.kube.claims",
    "nodecpu.kube.pods",
)


def main() -> None:
    for name in _MODULES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    died, notice = os.pipe()
    for end in (died, notice):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(notice)
    _say("loaded")
    rest = b""
    while True:
        ready, _, _ = select.select([0, died], [], [])
        if died in ready:
            os.read(died, 4096)
            _reap()
        if 0 in ready:
            data = os.read(0, 65536)
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                _fork(json.loads(line))


def _fork(wanted: dict[str, str]) -> None:
    child = os.fork()
    if child:
        _say(f"started {child}")
        return
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with Path(wanted["log"]).open("ab") as log, Path("/dev/null").open("rb") as nothing:
            os.dup2(nothing.fileno(), 0)
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        os.environ["NOTIFY_SOCKET"] = wanted["notify"]
        faulthandler.register(signal.SIGUSR1, all_threads=True)  # where is one that does not end?
        code = importlib.import_module("nodecpu.cli").main(["daemon", "--config", wanted["config"]])
    except BaseException:  # noqa: BLE001 - as the interpreter does at the end
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _reap() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not pid:
            return
        _say(f"ended {pid} {os.waitstatus_to_exitcode(status)}")


def _say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


if __name__ == "__main__":
    main()
