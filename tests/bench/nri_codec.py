"""Reading a CreateContainer call of 8 KB and writing its answer through mux and ttrpc, against protobuf alone."""

from __future__ import annotations

from collections.abc import Iterator

from nodecpu.nri.mux import PLUGIN_CONN, Mux
from nodecpu.nri.ttrpc import Request, Ttrpc
from nodecpu.proto import nri_pb2, ttrpc_pb2
from tests.bench.measure import Floor, Row, measured

CALLS = 200
SERVICE = "nri.pkg.api.v1alpha1.Plugin"


def rows() -> Iterator[Row]:
    """Yield the row."""
    payload = _payload()
    answer = nri_pb2.CreateContainerResponse()
    answer.adjust.linux.resources.cpu.cpus = "4-5"
    sent = answer.SerializeToString()
    runtime, trunk = Ttrpc(), Mux()
    calls = [
        trunk.send(PLUGIN_CONN, runtime.send_request(SERVICE, "CreateContainer", payload)[1]) for _ in range(CALLS)
    ]
    envelope = ttrpc_pb2.Request(service=SERVICE, method="CreateContainer", payload=payload).SerializeToString()

    def through_the_codecs() -> None:
        mux, ttrpc = Mux(), Ttrpc()
        for call in calls:
            mux.receive(call)
            while (frame := mux.next_event()) is not None:
                ttrpc.receive(frame.payload)
            event = ttrpc.next_event()
            assert isinstance(event, Request)
            nri_pb2.CreateContainerRequest.FromString(event.payload)
            mux.send(PLUGIN_CONN, ttrpc.send_response(event.stream_id, sent))

    def by_protobuf_alone() -> None:
        for _ in range(CALLS):
            request = ttrpc_pb2.Request.FromString(envelope)
            nri_pb2.CreateContainerRequest.FromString(request.payload)
            ttrpc_pb2.Response(payload=sent).SerializeToString()

    yield Row(
        what=f"NRI call of {len(payload)} bytes and its answer through the codecs",
        value=measured(through_the_codecs).cpu_s / CALLS * 1e6,
        unit="µs",
        floor=Floor(what="protobuf alone", value=measured(by_protobuf_alone).cpu_s / CALLS * 1e6),
    )


def _payload() -> bytes:
    request = nri_pb2.CreateContainerRequest()
    request.container.id = "c" * 64
    for number in range(60):
        request.container.env.append(f"VARIABLE_{number}=" + "x" * 60)
        request.container.mounts.add(source=f"/var/lib/source/{number}", destination=f"/mnt/{number}", type="bind")
    return request.SerializeToString()
