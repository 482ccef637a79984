"""The runtime's end of NRI, over a blocking socket: whatever serves the other end is what is measured.

A call's time is from the write of its bytes to the read that completes its answer, less the processor time that this
end took meanwhile; messages are built before and taken apart after. ``own_share`` tells how much was taken off,
``used_s`` is to tell the processor time of the other end so far.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from nodecpu.nri.mux import PLUGIN_CONN, RUNTIME_CONN, Mux
from nodecpu.nri.ttrpc import Request, Response, Ttrpc
from nodecpu.proto import nri_pb2
from tests.bench.measure import Took

SERVICE = "nri.pkg.api.v1alpha1.Plugin"
PATIENCE_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a call took, and what came back."""

    took: Took
    payload: bytes


class RuntimeEnd:
    """Listens on the NRI socket; one plugin at a time."""

    def __init__(self, path: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        self._listener.settimeout(PATIENCE_S)
        self._link: socket.socket | None = None
        self._mux, self._calls, self._serves = Mux(), Ttrpc(), Ttrpc()
        self._answers: list[Response] = []
        self._registered = False
        self.used_s: Callable[[], float] = lambda: 0.0
        self.answered_at = 0.0
        self._own_s = 0.0
        self._wall_s = 0.0

    @property
    def own_share(self) -> float:
        """How much of the time of all calls so far was spent in this process."""
        return self._own_s / self._wall_s if self._wall_s else 0.0

    def accept(self) -> None:
        """Take the plugin's connection and configure it."""
        if self._link is not None:
            self._link.close()
        self._link, _ = self._listener.accept()
        self._link.settimeout(PATIENCE_S)
        self._mux, self._calls, self._serves = Mux(), Ttrpc(), Ttrpc()
        self._registered = False
        while not self._registered:
            self._hear()
        configure = nri_pb2.ConfigureRequest(runtime_name="containerd", runtime_version="v2.1.9")
        self.call("Configure", configure.SerializeToString())

    def call(self, method: str, payload: bytes) -> Answer:
        """Return the answer to a call; raises RuntimeError for an error."""
        assert self._link is not None
        _, message = self._calls.send_request(SERVICE, method, payload)
        frames = self._mux.send(PLUGIN_CONN, message)
        used_s = self.used_s()
        before_s, start = time.thread_time(), time.perf_counter()
        self._link.sendall(frames)
        end = start
        while not self._answers:
            end = self._hear()
        own_s = time.thread_time() - before_s
        self._own_s += own_s
        self._wall_s += end - start
        self.answered_at = end
        answer = self._answers.pop()
        if answer.error is not None:
            raise RuntimeError(f"{method}: {answer.error}")
        took = Took(wall_s=end - start - own_s, cpu_s=self.used_s() - used_s)
        return Answer(took=took, payload=answer.payload)

    def drop(self) -> None:
        """End the connection, if there is one, and forget whose it was."""
        self.used_s = lambda: 0.0
        if self._link is not None:
            self._link.close()
            self._link = None

    def close(self) -> None:
        """End all."""
        self.drop()
        self._listener.close()

    def _hear(self) -> float:
        """Take in what comes next; return when it came."""
        assert self._link is not None
        data = self._link.recv(1 << 18)
        at = time.perf_counter()
        if not data:
            raise RuntimeError("the plugin closed the connection")
        self._mux.receive(data)
        while (frame := self._mux.next_event()) is not None:
            codec = self._calls if frame.conn == PLUGIN_CONN else self._serves
            codec.receive(frame.payload)
            while (event := codec.next_event()) is not None:
                if isinstance(event, Response):
                    self._answers.append(event)
                elif isinstance(event, Request):
                    self._registered = self._registered or event.method == "RegisterPlugin"
                    with contextlib.suppress(BrokenPipeError):
                        self._link.sendall(
                            self._mux.send(RUNTIME_CONN, self._serves.send_response(event.stream_id, b""))
                        )
        return at
