"""The link to a runtime over a real socket: registered, served, lost and found again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from nodecpu.errors import LinkError, LocalProtocolError, NoCapacity
from nodecpu.nri.connection import Link, LinkSettings, LinkState
from nodecpu.nri.mux import PLUGIN_CONN
from nodecpu.nri.plugin import Plugin
from nodecpu.nri.ttrpc import CallError, Code, Ignored, Response
from nodecpu.policy.plan import Creation
from nodecpu.proto import nri_pb2
from tests.nri_fakes import PATIENCE_S, FakeRuntime, FakeService, Watcher, listening, placement, update

POD = nri_pb2.PodSandbox(id="s1", name="web", uid="u1", namespace="shop")
MAIN = nri_pb2.Container(id="c1", pod_sandbox_id="s1", name="main")
CREATE = nri_pb2.CreateContainerRequest(pod=POD, container=MAIN)


class Clock:
    """Time that moves only when told."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Bench:
    """A link with all around it."""

    link: Link
    service: FakeService
    watcher: Watcher
    clock: Clock
    socket: Path
    running: asyncio.Task[None]

    async def ended(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self.running


@asynccontextmanager
async def _linked(tmp_path: Path, *, register_timeout_s: float = 30.0) -> AsyncIterator[Bench]:
    service, watcher, clock = FakeService(), Watcher(), Clock()
    settings = LinkSettings(
        socket=tmp_path / "nri.sock",
        plugin_name="nodecpu",
        plugin_index="90",
        retry_first_s=0.001,
        retry_max_s=0.01,
        register_timeout_s=register_timeout_s,
    )
    link = Link(settings, Plugin(service), watcher, clock=clock, jitter=lambda: 1.0)
    running = asyncio.create_task(link.run())
    try:
        yield Bench(link, service, watcher, clock, settings.socket, running)
    finally:
        link.close()
        await asyncio.wait([running])


Story = Callable[[Bench, FakeRuntime], Awaitable[None]]


def _play(tmp_path: Path, story: Story, *, register_timeout_s: float = 30.0) -> None:
    """Run a story with a link and a runtime that listens from the start."""

    async def play() -> None:
        async with (
            listening(tmp_path / "nri.sock") as runtime,
            _linked(tmp_path, register_timeout_s=register_timeout_s) as bench,
        ):
            await story(bench, runtime)

    asyncio.run(play())


def _text(response: Response) -> str:
    assert response.error is not None
    return response.error.message


def test_plugin_registers_and_is_synchronised(tmp_path: Path) -> None:
    async def story(bench: Bench, runtime: FakeRuntime) -> None:
        end = await runtime.accept()
        register = nri_pb2.RegisterPluginRequest.FromString((await end.register()).payload)
        assert (register.plugin_name, register.plugin_idx) == ("nodecpu", "90")
        await bench.watcher.reached(LinkState.REGISTERED)
        assert (await end.call("Configure", nri_pb2.ConfigureRequest(runtime_name="containerd"))).error is None
        assert (await end.call("Synchronize", nri_pb2.SynchronizeRequest())).error is None
        await bench.watcher.reached(LinkState.SYNCHRONIZED)
        bench.link.close()
        await bench.ended()
        assert [state for state, _ in bench.watcher.seen] == [
            LinkState.CONNECTING,
            LinkState.REGISTERED,
            LinkState.SYNCHRONIZED,
            LinkState.AWAY,
        ]
        assert bench.service.calls == [("connected",), ("synchronize",), ("lost",)]

    _play(tmp_path, story)


def test_answer_to_the_registration_may_come_last(tmp_path: Path) -> None:
    """Either the answer or Configure can be seen first."""

    async def story(bench: Bench, runtime: FakeRuntime) -> None:
        end = await runtime.accept()
        register = await end.request()
        await end.call("Configure", nri_pb2.ConfigureRequest())
        await end.call("Synchronize", nri_pb2.SynchronizeRequest())
        end.answer(register)
        assert (await end.call("CreateContainer", CREATE)).error is None
        assert bench.link.state is LinkState.SYNCHRONIZED

    _play(tmp_path, story)


def test_socket_that_is_not_there_is_waited_for(tmp_path: Path) -> None:
    async def play() -> None:
        async with _linked(tmp_path) as bench:
            await bench.watcher.reached(LinkState.AWAY)
            assert "enable_nri" in bench.watcher.seen[-1][1]
            async with listening(bench.socket) as runtime:
                await (await runtime.accept()).bring_up()
                await bench.watcher.reached(LinkState.SYNCHRONIZED)

    asyncio.run(play())


def test_reason_to_be_away_is_told_once(tmp_path: Path) -> None:
    async def play() -> None:
        async with _linked(tmp_path) as bench:
            await bench.watcher.reached(LinkState.AWAY)
            async with listening(bench.socket) as runtime:
                await (await runtime.accept()).close()
                await bench.watcher.reached(LinkState.AWAY, times=2)
                assert len({detail for state, detail in bench.watcher.seen if state is LinkState.AWAY}) == 2

    asyncio.run(play())


def test_restarted_runtime_is_found_again_a_hundred_times(tmp_path: Path) -> None:
    """The runtime replaces its socket file at its start."""

    async def play() -> None:
        async with _linked(tmp_path) as bench:
            for _ in range(100):
                async with listening(bench.socket) as runtime:
                    await (await runtime.accept()).bring_up()
            await bench.watcher.reached(LinkState.AWAY, times=100)
            assert bench.service.calls[:300] == [("connected",), ("synchronize",), ("lost",)] * 100

    asyncio.run(play())


def test_refused_registration_is_told_and_tried_again(tmp_path: Path) -> None:
    async def story(bench: Bench, runtime: FakeRuntime) -> None:
        end = await runtime.accept()
        end.refuse(await end.request(), Code.UNKNOWN, "invalid plugin index")
        assert await end.next_event() is None
        await bench.watcher.reached(LinkState.AWAY)
        assert bench.watcher.seen[-1][1] == "the runtime refused plugin 90-nodecpu: invalid plugin index"
        await (await runtime.accept()).bring_up()
        await bench.watcher.reached(LinkState.SYNCHRONIZED)

    _play(tmp_path, story)


def test_peer_that_accepts_and_says_nothing_is_left_after_a_while(tmp_path: Path) -> None:
    async def story(bench: Bench, runtime: FakeRuntime) -> None:
        end = await runtime.accept()
        await end.request()
        assert await end.next_event() is None
        await bench.watcher.reached(LinkState.AWAY)
        assert bench.watcher.seen[-1][1] == "RegisterPlugin: no answer of the runtime in 0.01 s"

    _play(tmp_path, story, register_timeout_s=0.01)


def test_broken_protocol_ends_the_link_and_a_new_one_is_made(tmp_path: Path) -> None:
    async def story(bench: Bench, runtime: FakeRuntime) -> None:
        end = await runtime.accept()
        await end.bring_up()
        end.writer.write(b"\xff" * 8)
        assert await end.next_event() is None
        await bench.watcher.reached(LinkState.AWAY)
        assert "mux frame of 4294967295 bytes" in bench.watcher.seen[-1][1]
        await (await runtime.accept()).bring_up()

    _play(tmp_path, story)


def test_half_a_request_is_no_event(tmp_path: Path) -> None:
    async def story(bench: Bench, runtime: FakeRuntime) -> None:
        end = await runtime.accept()
        await end.bring_up()
        message = end.calls.send_request("s", "CreateContainer", bytes(9000))[1]
        end.writer.write(end.mux.send(PLUGIN_CONN, message)[:6000])
        await end.close()
        await bench.watcher.reached(LinkState.AWAY)
        assert bench.service.calls == [("connected",), ("synchronize",), ("lost",)]

    _play(tmp_path, story)


def test_long_requests_and_replies_pass(tmp_path: Path) -> None:
    async def story(bench: Bench, runtime: FakeRuntime) -> None:
        bench.service.updates = tuple(update(f"{i:064x}", "0-3") for i in range(3000))
        end = await runtime.accept()
        await end.register()
        await end.call("Configure", nri_pb2.ConfigureRequest())
        message = nri_pb2.SynchronizeRequest(pods=[POD])
        for number in range(1000):
            message.containers.add(id=f"c{number}", pod_sandbox_id="s1", args=["x" * 3000])
        reply = nri_pb2.SynchronizeResponse.FromString((await end.call("Synchronize", message)).payload)
        assert len(reply.update) == 3000
        assert len(bench.service.containers) == 1000

    _play(tmp_path, story)


def test_requests_in_one_read_are_answered_in_order(tmp_path: Path) -> None:
    async def story(bench: Bench, runtime: FakeRuntime) -> None:
        end = await runtime.accept()
        await end.bring_up()
        for number in range(300):
            container = nri_pb2.Container(id=f"c{number}", pod_sandbox_id="s1", name=str(number))
            end.send("StopContainer", nri_pb2.StopContainerRequest(container=container))
        answers = [await end.response() for _ in range(300)]
        assert [answer.stream_id for answer in answers] == sorted(answer.stream_id for answer in answers)
        assert bench.service.calls[2:] == [("stop", str(number)) for number in range(300)]

    _play(tmp_path, story)


def test_unknown_call_is_unimplemented_and_the_link_stays(tmp_path: Path) -> None:
    """interfaces.md 1.8: after this a runtime turns to StateChange, which is served."""

    async def story(bench: Bench, runtime: FakeRuntime) -> None:
        end = await runtime.accept()
        await end.bring_up()
        for service, method in (("nri.pkg.api.v1alpha1.Plugin", "NewCall"), ("other.Service", "Configure")):
            end.send(method, nri_pb2.Empty(), service=service)
            error = (await end.response()).error
            assert error is not None
            assert error.status == Code.UNIMPLEMENTED
        change = nri_pb2.StateChangeEvent(event=nri_pb2.RUN_POD_SANDBOX, pod=POD)
        assert (await end.call("StateChange", change)).error is None
        assert bench.service.calls[-1] == ("run", "web")

    _play(tmp_path, story)


def test_error_of_the_service_is_the_text_of_the_answer(tmp_path: Path) -> None:
    async def story(bench: Bench, runtime: FakeRuntime) -> None:
        def full(verb: str) -> None:
            if verb == "create":
                raise NoCapacity("pod shop/web: no CPU left", hint="free some")

        bench.service.before_answer = full
        end = await runtime.accept()
        await end.bring_up()
        answer = await end.call("CreateContainer", CREATE)
        assert _text(answer) == "pod shop/web: no CPU left (free some)"
        assert answer.error is not None
        assert answer.error.status == Code.UNKNOWN
        assert (await end.call("RemoveContainer", nri_pb2.RemoveContainerRequest(container=MAIN))).error is None

    _play(tmp_path, story)


def test_bug_in_a_handler_is_answered_and_ends_the_daemon(tmp_path: Path) -> None:
    async def story(bench: Bench, runtime: FakeRuntime) -> None:
        def crash(verb: str) -> None:
            if verb == "create":
                raise OSError("not translated at its boundary")

        bench.service.before_answer = crash
        end = await runtime.accept()
        await end.bring_up()
        assert _text(await end.call("CreateContainer", CREATE)) == "CreateContainer: internal error"
        assert await end.next_event() is None
        with pytest.raises(OSError, match="not translated"):
            await bench.ended()

    _play(tmp_path, story)


def test_bug_before_the_registration_is_answered_ends_the_daemon_too(tmp_path: Path) -> None:
    async def story(bench: Bench, runtime: FakeRuntime) -> None:
        def crash(verb: str) -> None:
            raise ZeroDivisionError(verb)

        bench.service.before_answer = crash
        end = await runtime.accept()
        await end.request()
        assert (await end.call("Configure", nri_pb2.ConfigureRequest())).error is not None
        bench.service.before_answer = lambda verb: None
        with pytest.raises(ZeroDivisionError):
            await bench.ended()

    _play(tmp_path, story)


@pytest.mark.parametrize(
    ("told_ms", "timeout_ns", "took_s", "is_late"),
    [
        (2000, 0, 1.49, False),
        (2000, 0, 1.51, True),
        (0, 0, 1.49, False),
        (0, 0, 1.51, True),
        (8000, 0, 5.9, False),
        (8000, 0, 6.1, True),
        (8000, 1_999_000_000, 1.49, False),
        (8000, 1_999_000_000, 1.51, True),
        (2000, 60_000_000_000, 1.51, True),
    ],
)
def test_creation_past_three_quarters_of_the_time_is_refused_and_taken_back(
    tmp_path: Path, told_ms: int, timeout_ns: int, took_s: float, *, is_late: bool
) -> None:
    """At the deadline the runtime would drop us and start it unpinned; CRI-O tells no more of one that failed."""

    async def story(bench: Bench, runtime: FakeRuntime) -> None:
        def slow(verb: str) -> None:
            if verb == "create":
                bench.clock.now_s += took_s

        bench.service.before_answer = slow
        bench.service.creation = Creation(placement=placement("0"))
        end = await runtime.accept()
        await end.bring_up(request_timeout_ms=told_ms)
        end.send("CreateContainer", CREATE, timeout_ns=timeout_ns)
        answer = await end.response()
        assert (answer.error is not None) is is_late
        if is_late:
            assert "CreateContainer: not done in 75% of the time" in _text(answer)
        await end.call("Shutdown", nri_pb2.Empty())
        expected = [("create", "web", "main"), ("remove", "web", "main")][: 2 if is_late else 1]
        assert bench.service.calls[2:] == expected

    _play(tmp_path, story)


def test_request_that_waited_too_long_for_those_before_it_is_not_begun(tmp_path: Path) -> None:
    async def story(bench: Bench, runtime: FakeRuntime) -> None:
        def slow(verb: str) -> None:
            if verb == "run":
                bench.clock.now_s += 1.6

        bench.service.before_answer = slow
        end = await runtime.accept()
        await end.bring_up()
        both = b""
        for method, message in (
            ("RunPodSandbox", nri_pb2.RunPodSandboxRequest(pod=POD)),
            ("CreateContainer", CREATE),
        ):
            payload = message.SerializeToString()
            request = end.calls.send_request("nri.pkg.api.v1alpha1.Plugin", method, payload)[1]
            both += end.mux.send(PLUGIN_CONN, request)
        end.writer.write(both)
        assert (await end.response()).error is None
        assert "CreateContainer: not done" in _text(await end.response())
        assert ("create", "web", "main") not in bench.service.calls

    _play(tmp_path, story)


def test_late_stop_is_still_a_success(tmp_path: Path) -> None:
    async def story(bench: Bench, runtime: FakeRuntime) -> None:
        def slow(verb: str) -> None:
            bench.clock.now_s += 60.0

        bench.service.before_answer = slow
        end = await runtime.accept()
        await end.bring_up()
        assert (await end.call("StopContainer", nri_pb2.StopContainerRequest(container=MAIN))).error is None

    _play(tmp_path, story)


def test_unasked_update_goes_out_and_its_success_is_awaited(tmp_path: Path) -> None:
    async def story(bench: Bench, runtime: FakeRuntime) -> None:
        end = await runtime.accept()
        await end.bring_up()
        sending = asyncio.create_task(bench.link.update_containers(update("c1", "0-3")))
        request = await end.request()
        assert request.method == "UpdateContainers"
        [entry] = nri_pb2.UpdateContainersRequest.FromString(request.payload).update
        assert (entry.container_id, entry.linux.resources.cpu.cpus) == ("c1", "0-3")
        end.answer(request)
        await sending

    _play(tmp_path, story)


def test_unasked_update_that_fails_is_an_error(tmp_path: Path) -> None:
    async def story(bench: Bench, runtime: FakeRuntime) -> None:
        end = await runtime.accept()
        await end.bring_up()
        sending = asyncio.create_task(bench.link.update_containers(update("c1", "0-3")))
        end.refuse(await end.request(), Code.UNKNOWN, "NRI update of (some) containers failed")
        with pytest.raises(CallError, match="failed"):
            await sending
        sending = asyncio.create_task(bench.link.update_containers(update("c1", "0-3")))
        failed = nri_pb2.UpdateContainersResponse(failed=[nri_pb2.ContainerUpdate(container_id="c1")])
        end.answer(await end.request(), failed.SerializeToString())
        with pytest.raises(CallError, match="could not apply"):
            await sending

    _play(tmp_path, story)


def test_unanswered_update_is_given_up_and_the_late_answer_ignored(tmp_path: Path) -> None:
    """R6: the link stays."""

    async def story(bench: Bench, runtime: FakeRuntime) -> None:
        end = await runtime.accept()
        await end.bring_up()
        with pytest.raises(LinkError, match=r"UpdateContainers: no answer of the runtime in 0\.01 s"):
            await bench.link.update_containers(update("c1", "0-3"), timeout_s=0.01)
        end.answer(await end.request())
        assert (await end.call("CreateContainer", CREATE)).error is None
        assert bench.link.state is LinkState.SYNCHRONIZED

    _play(tmp_path, story)


def test_update_under_way_fails_when_the_runtime_goes(tmp_path: Path) -> None:
    async def story(bench: Bench, runtime: FakeRuntime) -> None:
        end = await runtime.accept()
        await end.bring_up()
        sending = asyncio.create_task(bench.link.update_containers(update("c1", "0-3")))
        await end.request()
        await end.close()
        with pytest.raises(LinkError, match="closed"):
            await sending

    _play(tmp_path, story)


def test_update_inside_a_request_is_refused(tmp_path: Path) -> None:
    """interfaces.md 1.11: the runtime could not answer before it drops us."""
    refused: list[str] = []

    async def story(bench: Bench, runtime: FakeRuntime) -> None:
        def inside(verb: str) -> None:
            if verb == "create":
                with pytest.raises(LocalProtocolError) as error:
                    bench.link.update_containers(update("c1", "0-3")).close()
                refused.append(str(error.value))

        bench.service.before_answer = inside
        end = await runtime.accept()
        await end.bring_up()
        assert (await end.call("CreateContainer", CREATE)).error is None

    _play(tmp_path, story)
    assert refused == ["an update was to be sent inside a request"]


def test_update_to_a_runtime_that_may_deadlock_is_refused(tmp_path: Path) -> None:
    """E1: only to runtimes known to be safe."""

    async def story(bench: Bench, runtime: FakeRuntime) -> None:
        end = await runtime.accept()
        await end.bring_up(nri_version="v0.12.0")
        with pytest.raises(LocalProtocolError, match="not known to survive"):
            await bench.link.update_containers(update("c1", "0-3"))

    _play(tmp_path, story)


def test_update_without_a_link_fails(tmp_path: Path) -> None:
    async def play() -> None:
        async with _linked(tmp_path) as bench:
            with pytest.raises(LinkError, match="no synchronised link"):
                await bench.link.update_containers(update("c1", "0-3"))

    asyncio.run(play())


def test_call_on_the_connection_that_we_do_not_serve_is_unimplemented(tmp_path: Path) -> None:
    async def story(bench: Bench, runtime: FakeRuntime) -> None:
        end = await runtime.accept()
        await end.bring_up()
        message = end.serves.send_request("s", "m", b"")[1]
        end.writer.write(end.mux.send(2, message))
        error = (await end.response()).error
        assert error is not None
        assert error.status == Code.UNIMPLEMENTED
        assert bench.link.state is LinkState.SYNCHRONIZED

    _play(tmp_path, story)


def test_request_out_of_order_is_answered_and_the_link_stays(tmp_path: Path) -> None:
    async def story(bench: Bench, runtime: FakeRuntime) -> None:
        end = await runtime.accept()
        await end.bring_up()
        end.writer.write(end.mux.send(PLUGIN_CONN, bytes.fromhex("00000000000000010100")))
        assert isinstance(await end.next_event(), Ignored)  # the refusal, for an id that this end has closed
        assert (await end.call("CreateContainer", CREATE)).error is None

    _play(tmp_path, story)


def test_runtime_that_does_not_read_stops_us_from_reading_on(tmp_path: Path) -> None:
    """Replies cannot pile up: what is not taken from us is not asked of us."""

    async def story(bench: Bench, runtime: FakeRuntime) -> None:
        bench.service.updates = tuple(update(f"{i:064x}", "0-3") for i in range(500))
        end = await runtime.accept()
        await end.bring_up()
        transport = end.writer.transport
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        for number in range(200):
            container = nri_pb2.Container(id=f"c{number}", name=str(number), args=["x" * 2000])
            end.send("StopContainer", nri_pb2.StopContainerRequest(container=container))
        for _ in range(2000):
            await asyncio.sleep(0)
        assert len(bench.service.calls) < 100
        transport.resume_reading()
        for _ in range(200):
            assert (await end.response()).error is None

    _play(tmp_path, story)


def test_close_before_the_runtime_comes_ends_the_run(tmp_path: Path) -> None:
    async def play() -> None:
        async with _linked(tmp_path) as bench:
            bench.link.close()
            await bench.ended()
            assert bench.service.calls == []

    asyncio.run(play())


def test_cancelled_run_closes_the_socket(tmp_path: Path) -> None:
    async def story(bench: Bench, runtime: FakeRuntime) -> None:
        end = await runtime.accept()
        await end.bring_up()
        bench.running.cancel()
        assert await end.next_event() is None
        await asyncio.wait([bench.running])
        assert bench.running.cancelled()
        assert bench.service.calls[-1] == ("lost",)

    _play(tmp_path, story)
