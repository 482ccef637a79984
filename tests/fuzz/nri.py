"""Hostile bytes for the NRI side: mutated frames through mux, ttrpc, protobuf and plugin.

Deterministic: input number n of a seed is always the same. ``python -m tests.fuzz.nri [COUNT [SEED]]`` runs long.
Each input is cut into reads at random. Every outcome must be an event, a reply, or one of our typed errors; after every
read the codecs store just what has come of frames and messages that are not whole yet, as ``Tally`` counts it, and a
length that is too large has ended them.
"""

from __future__ import annotations

import logging
import random
import sys
import time
from collections import Counter
from struct import unpack_from
from typing import Final

from nodecpu.errors import NodeCpuError, PeerProtocolError
from nodecpu.nri import bytequeue, convert
from nodecpu.nri import mux as mux_module
from nodecpu.nri import plugin as plugin_module
from nodecpu.nri import ttrpc as ttrpc_module
from nodecpu.nri.mux import MAX_PAYLOAD, PLUGIN_CONN, RUNTIME_CONN, Mux
from nodecpu.nri.plugin import PLUGIN_SERVICE, Plugin
from nodecpu.nri.ttrpc import HEADER_SIZE, MAX_DATA, Refused, Request, Ttrpc
from nodecpu.policy.plan import Creation
from nodecpu.proto import nri_pb2
from tests.fuzz.branches import Branches
from tests.nri_fakes import FakeService, placement, update

TRACED: Final = 5000
"""Inputs whose branches are counted, which is slow."""

_ODD_NUMBERS: Final = (
    0,
    1,
    2,
    9,
    10,
    11,
    4095,
    4096,
    4097,
    MAX_PAYLOAD,
    MAX_PAYLOAD + 1,
    1 << 24,
    1 << 31,
    (1 << 32) - 1,
)


def seeds() -> list[bytes]:
    """Return valid streams to start from: every kind of call in both forms, short and long, answers too."""
    pod = nri_pb2.PodSandbox(id="s1", name="web", uid="u1", namespace="shop", annotations={"a": "b"})
    container = nri_pb2.Container(id="c1", pod_sandbox_id="s1", name="main", env=["DRA_CPUSET_u=0-3,8", "PATH=/bin"])
    container.linux.resources.cpu.cpus = "0-3"
    container.linux.resources.cpu.shares.value = 512
    long = nri_pb2.Container(id="c2", pod_sandbox_id="s1", args=["x" * 5000])
    resources = nri_pb2.LinuxResources(cpu=nri_pb2.LinuxCPU(quota=nri_pb2.OptionalInt64(value=-1)))
    messages = [
        ("Configure", nri_pb2.ConfigureRequest(runtime_name="cri-o", runtime_version="1.34.1", request_timeout=2000)),
        ("Synchronize", nri_pb2.SynchronizeRequest(pods=[pod], containers=[container], more=True)),
        ("Synchronize", nri_pb2.SynchronizeRequest(containers=[long])),
        ("RunPodSandbox", nri_pb2.RunPodSandboxRequest(pod=pod)),
        ("CreateContainer", nri_pb2.CreateContainerRequest(pod=pod, container=container)),
        ("CreateContainer", nri_pb2.CreateContainerRequest(pod=pod, container=long)),
        ("UpdateContainer", nri_pb2.UpdateContainerRequest(pod=pod, container=container, linux_resources=resources)),
        ("StopContainer", nri_pb2.StopContainerRequest(container=container)),
        ("RemoveContainer", nri_pb2.RemoveContainerRequest(container=container)),
        ("StateChange", nri_pb2.StateChangeEvent(event=nri_pb2.REMOVE_POD_SANDBOX, pod=pod)),
        ("StateChange", nri_pb2.StateChangeEvent(event=nri_pb2.POST_START_CONTAINER, pod=pod, container=container)),
        ("NoSuchCall", nri_pb2.Empty()),
    ]
    mux, calls, found = Mux(), Ttrpc(), []
    for method, message in messages:
        request = calls.send_request(PLUGIN_SERVICE, method, message.SerializeToString(), timeout_ns=10**9)[1]
        found.append(mux.send(PLUGIN_CONN, request))
    found.append(b"".join(found))
    found.append(mux.send(RUNTIME_CONN, bytes(4) + bytes.fromhex("000000010200")))
    return found


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Return ``data`` after a few random changes."""
    out = bytearray(data)
    for _ in range(rng.choice((0, 1, 1, 2, 3, 8))):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(7):
            case 0 if out:
                out[at % len(out)] ^= 1 << rng.randrange(8)
            case 1:
                out[at : at + rng.randrange(1, 16)] = b""
            case 2:
                out[at:at] = rng.randbytes(rng.randrange(1, 16))
            case 3:
                out[at : at + 4] = rng.choice(_ODD_NUMBERS).to_bytes(4, "big")
            case 4:  # a length or id field at the start of a frame or message
                out[(first := rng.choice((0, 4, 8, 12))) : first + 4] = rng.choice(_ODD_NUMBERS).to_bytes(4, "big")
            case 5:
                out += out[at : at + rng.randrange(1, 64)]
            case _:
                del out[at:]
    return bytes(out)


class Tally:
    """Counts by itself what of a trunk's bytes has to be kept; ``is_over``: a length was too large."""

    def __init__(self) -> None:
        self.is_over = False
        self._trunk = bytearray()
        self._streams = {PLUGIN_CONN: bytearray(), RUNTIME_CONN: bytearray()}

    @property
    def stored(self) -> dict[int, int]:
        """How many bytes each stream has to keep, and the trunk as connection 0."""
        kept = len(self._trunk)
        if kept >= 8 and unpack_from(">I", self._trunk)[0] not in self._streams:
            kept = 0  # what nobody reads is not kept
        return {0: kept, **{conn: len(stream) for conn, stream in self._streams.items()}}

    def count(self, chunk: bytes) -> None:
        """Take in one read."""
        self._trunk += chunk
        while len(self._trunk) >= 8 and not self.is_over:
            conn, length = unpack_from(">II", self._trunk)
            self.is_over = length > MAX_PAYLOAD
            if self.is_over or len(self._trunk) < 8 + length:
                return
            if conn in self._streams:
                self._streams[conn] += self._trunk[8 : 8 + length]
                self._take_messages(self._streams[conn])
            del self._trunk[: 8 + length]

    def _take_messages(self, stream: bytearray) -> None:
        while len(stream) >= HEADER_SIZE:
            (length,) = unpack_from(">I", stream)
            self.is_over = length > MAX_DATA
            if self.is_over or len(stream) < HEADER_SIZE + length:
                return
            del stream[: HEADER_SIZE + length]


class Victim:
    """What the bytes go through; ``outcomes`` counts what became of them."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self._service = FakeService(
            creation=Creation(placement=placement("0-3", "0", 1024), updates=(update("other", "4-7"),)),
            updates=(update("other", "4-7"),),
        )

    def feed(self, data: bytes, rng: random.Random) -> None:
        """Feed one input in random reads. Raises AssertionError, or whatever must not be raised."""
        mux = Mux()
        codecs = {PLUGIN_CONN: Ttrpc(), RUNTIME_CONN: Ttrpc()}
        codecs[RUNTIME_CONN].send_request("s", "RegisterPlugin", b"")
        plugin = Plugin(self._service)
        tally = Tally()
        at = 0
        while at < len(data):
            size = rng.choice((1, 2, 7, 8, 9, 100, 4096, len(data)))
            chunk = data[at : at + size]
            at += size
            tally.count(chunk)
            try:
                self._read(mux, codecs, plugin, chunk)
            except PeerProtocolError:
                failure = self._failure_of(mux, codecs)
                assert tally.is_over or "does not parse" in failure
                return
            assert not tally.is_over, "a length that is too large is waited for"
            assert {0: mux.buffered, **{conn: codec.buffered for conn, codec in codecs.items()}} == tally.stored
        self._service.calls.clear()
        self._service.sandboxes.clear()
        self._service.containers.clear()

    def _read(self, mux: Mux, codecs: dict[int, Ttrpc], plugin: Plugin, chunk: bytes) -> None:
        mux.receive(chunk)
        while (frame := mux.next_event()) is not None:
            codec = codecs[frame.conn]
            codec.receive(frame.payload)
            while (event := codec.next_event()) is not None:
                self.outcomes[type(event).__name__] += 1
                if isinstance(event, Request):
                    mux.send(frame.conn, self._answer(codec, plugin, event))
                elif isinstance(event, Refused):
                    mux.send(frame.conn, event.answer)

    def _answer(self, codec: Ttrpc, plugin: Plugin, request: Request) -> bytes:
        try:
            reply = plugin.handle(request.service, request.method, request.payload)
        except NodeCpuError as error:
            self.outcomes[type(error).__name__] += 1
            return codec.send_error(request.stream_id, 2, str(error))
        self.outcomes["reply"] += 1
        return codec.send_response(request.stream_id, reply)

    def _failure_of(self, mux: Mux, codecs: dict[int, Ttrpc]) -> str:
        """Return what ended one of the codecs, which now takes nothing and stores nothing."""
        self.outcomes["PeerProtocolError"] += 1
        all_codecs: list[Mux | Ttrpc] = [mux, *codecs.values()]
        dead = [one for one in all_codecs if one.failure is not None]
        assert len(dead) == 1
        assert dead[0].buffered == 0
        try:
            dead[0].receive(b"x")
        except PeerProtocolError:
            return dead[0].failure or ""
        raise AssertionError("a dead codec took more")


def run(count: int, seed: int, more_seeds: list[bytes]) -> Counter[str]:
    """Run ``count`` inputs; return how often each outcome occurred. A failure names its seed and number."""
    start = seeds() + more_seeds
    victim = Victim()
    logging.disable(logging.CRITICAL)  # most of the time would go into warnings
    try:
        for number in range(count):
            rng = random.Random(f"{seed}/{number}")
            data = rng.randbytes(rng.randrange(200)) if number % 16 == 0 else mutated(rng.choice(start), rng)
            try:
                victim.feed(data, rng)
            except Exception as error:
                raise AssertionError(f"seed {seed}, input {number}: {data[:200].hex()}") from error
    finally:
        logging.disable(logging.NOTSET)
    return victim.outcomes


def main(arguments: list[str]) -> int:
    count = int(arguments[0]) if arguments else 1_000_000
    seed = int(arguments[1]) if len(arguments) > 1 else 1
    began = time.monotonic()
    outcomes = run(count, seed, [])
    with Branches((mux_module, ttrpc_module, bytequeue, convert, plugin_module)) as branches:
        run(min(count, TRACED), seed, [])
    print(f"{count} inputs of seed {seed} in {time.monotonic() - began:.0f} s: {dict(outcomes.most_common())}")  # noqa: T201 - output
    print("\n".join([f"branches taken by the first {min(count, TRACED)}:", *branches.lines()]))  # noqa: T201 - output
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
