"""Client, claims and pods against an API server over HTTP (N1, C1, C7)."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path

import pytest

from nodecpu.errors import BadRequest, LinkError, NotReady
from nodecpu.ids import ClaimUID, PodUID
from nodecpu.kube.claims import ClaimReader
from nodecpu.kube.client import ApiError, KubeClient, api_path
from nodecpu.kube.pods import PodWatch
from nodecpu.lab.apiserver import Fault
from nodecpu.lab.jsontree import JsonObject
from nodecpu.lab.objects import PODS, SLICES, Key
from nodecpu.policy.facts import PodSpec
from tests.apiserver import CLAIMS, Cluster, cluster, kubeconfig
from tests.kubelet import run, until
from tests.support import shared_data

SLICES_PATH = "/apis/resource.k8s.io/v1/resourceslices"


class Pods:
    """Keeps pods as the service does."""

    def __init__(self) -> None:
        self.known: dict[PodUID, PodSpec] = {}
        self.lists = 0

    def pods_listed(self, pods: Sequence[PodSpec]) -> None:
        self.known = {pod.uid: pod for pod in pods}
        self.lists += 1

    def pod_seen(self, pod: PodSpec) -> None:
        self.known[pod.uid] = pod

    def pod_gone(self, uid: PodUID) -> None:
        self.known.pop(uid, None)

    def names(self) -> set[str]:
        return {pod.name for pod in self.known.values()}


def add_pod(one: Cluster, name: str, *, node: str = "node1", containers: object = ()) -> Key:
    one.server.store.create(
        PODS,
        "shop",
        json.loads(json.dumps({"metadata": {"name": name}, "spec": {"nodeName": node, "containers": containers}})),
    )
    return Key(kind=PODS, namespace="shop", name=name)


@asynccontextmanager
async def followed(one: Cluster) -> AsyncIterator[Pods]:
    pods = Pods()
    task = asyncio.create_task(PodWatch(one.client, node="node1", sink=pods, wait_s=0.01).run())
    try:
        await until(lambda: pods.lists > 0)
        yield pods
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def watch_to_the_end(client: KubeClient, *, silence_s: float) -> None:
    async with aclosing(client.watch(SLICES_PATH, {"watch": "true"}, silence_s=silence_s)) as lines:
        async for _ in lines:
            pass


def test_answers_and_errors_are_told_apart() -> None:
    async def test() -> None:
        async with cluster() as one:
            assert (one.client.answered, one.client.is_answering) == (None, True)
            assert json.loads(await one.client.get(SLICES_PATH))["items"] == []
            assert one.client.answered
            with pytest.raises(ApiError, match='resourceslices "x" not found') as refused:
                await one.client.get(f"{SLICES_PATH}/x")
            assert (refused.value.status, refused.value.reason, refused.value.is_transient) == (404, "NotFound", False)
            one.server.add_fault(Fault(status=503, times=1))
            with pytest.raises(ApiError) as refused:
                await one.client.get(SLICES_PATH)
            assert refused.value.is_transient
            answering = [one.client.is_answering]
            one.server.add_fault(Fault(close=True, times=1))
            with pytest.raises(LinkError, match="RemoteDisconnected"):
                await one.client.get(SLICES_PATH)
            answering.append(one.client.is_answering)
            assert await one.client.get(SLICES_PATH)
            answering.append(one.client.is_answering)
            assert answering == [True, False, True]
            await one.server.stop()
            with pytest.raises(LinkError, match="Connection refused"):
                await one.client.get(SLICES_PATH)

    run(test)


def test_answer_that_does_not_come_is_given_up() -> None:
    """C7: each try is bounded."""

    async def test() -> None:
        async with cluster() as one:
            assert await one.client.get(SLICES_PATH)
            one.server.add_fault(Fault(delay_s=3, times=1))
            with pytest.raises(LinkError, match=r"timed out|no answer within"):
                await one.client.get(SLICES_PATH, timeout_s=0.2)
            one.server.add_fault(Fault(delay_s=3, times=1))
            with pytest.raises(LinkError):
                await one.client.get(SLICES_PATH, timeout_s=0.05)

    run(test)


def kube_threads() -> int:
    return sum(thread.name == "kube" for thread in threading.enumerate())


class Holding:
    """A server that answers nobody until it is told to. ``waiting`` are the calls it has not answered."""

    def __init__(self) -> None:
        self.open = 0
        self.waiting = 0
        self.answers = asyncio.Event()

    async def speak(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                self.waiting += 1
                told, left = asyncio.create_task(self.answers.wait()), asyncio.create_task(reader.read(1))
                await asyncio.wait((told, left), return_when=asyncio.FIRST_COMPLETED)
                told.cancel()
                left.cancel()
                await asyncio.wait((told, left))
                self.waiting -= 1
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        self.open -= 1


async def failures(client: KubeClient, calls: int) -> list[str]:
    """Make calls at once with a fifth of a second each, and return what each of them failed of."""
    ends = await asyncio.gather(*(client.get(SLICES_PATH, timeout_s=0.2) for _ in range(calls)), return_exceptions=True)
    return [end.message if isinstance(end, LinkError) else repr(end) for end in ends]


def test_hanging_calls_are_bounded_in_number_and_time() -> None:
    """C7: what waits for a place gives up in time too, and the places come back.

    What is seen depends on the order of things, not on how long they take: the server answers when it is told to.
    """

    async def test() -> None:
        held = Holding()
        server = await asyncio.start_server(held.speak, "127.0.0.1", 0)
        client = KubeClient(kubeconfig(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"), timeout_s=120)
        # All places are taken by calls that have time: the others give up, and leave them alone.
        holders = [asyncio.create_task(client.get(SLICES_PATH)) for _ in range(8)]
        await until(lambda: held.waiting == 8, limit_s=60)
        assert await failures(client, 22) == ["API server: no answer within 0.45 s"] * 22
        assert (held.waiting, held.open, kube_threads()) == (8, 8, 8)
        assert not any(holder.done() for holder in holders)
        held.answers.set()
        assert await asyncio.gather(*holders) == [b"{}"] * 8

        # Calls that hang themselves: each gives up, and each place is there again.
        held.answers.clear()
        assert all(words.startswith("API server: ") for words in await failures(client, 30))
        await until(lambda: not kube_threads(), limit_s=60)
        calls = [asyncio.create_task(client.get(SLICES_PATH)) for _ in range(9)]
        await until(lambda: held.waiting == 8, limit_s=60)
        assert kube_threads() == 8
        held.answers.set()
        assert await asyncio.gather(*calls) == [b"{}"] * 9
        client.close()
        server.close()
        await until(lambda: not held.open, limit_s=60)

    run(test)


class Freezing:
    """A server that answers so many calls together: each has a connection of its own.

    Connections made before ``freeze`` are never answered again, nor closed.
    """

    def __init__(self, calls: int) -> None:
        self.open = 0
        self._frozen = 0
        self._made = 0
        self._together = asyncio.Barrier(calls)

    def freeze(self, calls: int) -> None:
        self._frozen = self._made
        self._together = asyncio.Barrier(calls)

    async def speak(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._made += 1
        self.open += 1
        number = self._made
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                if number > self._frozen:
                    await self._together.wait()
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        self.open -= 1


def test_host_without_room_for_a_thread_takes_no_place_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """C7: the calls fail as in an outage, and the next one after it is made."""

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async def test() -> None:
        async with cluster() as one:
            with monkeypatch.context() as patch:
                patch.setattr(threading.Thread, "start", start)
                assert await failures(one.client, 9) == ["API server: can't start new thread"] * 9
            assert await one.client.get(SLICES_PATH)

    run(test)


def test_connections_that_died_without_a_word_cost_one_call_alone() -> None:
    """U87: of many idle ones behind a balancer that forgot them, a call finds the first, and no other call the rest."""

    async def test() -> None:
        frozen = Freezing(4)
        server = await asyncio.start_server(frozen.speak, "127.0.0.1", 0)
        client = KubeClient(kubeconfig(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"), timeout_s=10)
        await asyncio.gather(*(client.get(SLICES_PATH) for _ in range(4)))
        frozen.freeze(3)
        with pytest.raises(LinkError):
            await client.get(SLICES_PATH, timeout_s=0.2)
        await until(lambda: not any(thread.name == "kube" for thread in threading.enumerate()))
        assert await asyncio.gather(*(client.get(SLICES_PATH) for _ in range(3))) == [b"{}"] * 3
        client.close()
        server.close()
        await until(lambda: not frozen.open)

    run(test)


def keepalive_timers(port: int) -> list[float]:
    """Return in how many seconds the kernel looks at idle connections to a port. Source: Linux proc_net_tcp.rst."""
    found = []
    for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]:
        _, _, peer, state, _, timer, *_ = line.split()
        active, _, when = timer.partition(":")
        if (int(peer.partition(":")[2], 16), state, active) == (port, "01", "02"):
            found.append(int(when, 16) / 100)
    return found


CUT_SHORT = "the stream ended in the midst of an answer"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def test_idle_connection_is_kept_alive() -> None:
    """U87: a balancer or firewall on the way drops what is silent for long, and says nothing."""

    async def test() -> None:
        async with cluster() as one:
            await one.client.get(SLICES_PATH)
            port = int(one.server.url.rpartition(":")[2])
            timers = keepalive_timers(port)
            assert len(timers) == 1
            assert timers[0] <= 30

    run(test)


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[KubeClient]:
    """Yield a client of a server that gives one answer, whatever it is asked, and ends the connection."""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(speak, "127.0.0.1", 0)
    client = KubeClient(kubeconfig(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"), timeout_s=30)
    yield client
    client.close()
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        pytest.param(b"", "RemoteDisconnected", id="nothing"),
        pytest.param(b"SSH-2.0-OpenSSH\r\n\r\n", "BadStatusLine", id="other protocol"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort", CUT_SHORT, id="short"),
        pytest.param(CHUNKED + b"zz\r\nabc\r\n", CUT_SHORT, id="bad chunk"),
        pytest.param(CHUNKED + b"5\r\nabc", CUT_SHORT, id="cut chunk"),
        pytest.param(CHUNKED + b"3\r\n{}\n\r\n", CUT_SHORT, id="no last chunk"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 1000 + b"\r\n", "got more than 100 headers", id="many headers"
        ),
    ],
)
def test_what_is_no_answer_is_a_link_error(answer: bytes, words: str) -> None:
    async def test() -> None:
        async with answering(answer) as client:
            with pytest.raises(LinkError, match=f"API server: .*{words}"):
                await client.get(SLICES_PATH)
            with pytest.raises(LinkError, match=f"API server: .*{words}"):
                await watch_to_the_end(client, silence_s=30)

    run(test)


@pytest.mark.parametrize("target", ["http://[::1", "http://127.0.0.1:1/elsewhere", "//[x"])
def test_redirection_is_no_answer_whatever_it_names(target: str) -> None:
    async def test() -> None:
        async with answering(
            f"HTTP/1.1 302 Found\r\nLocation: {target}\r\nContent-Length: 0\r\n\r\n".encode()
        ) as client:
            with pytest.raises(ApiError, match="302"):
                await client.get(SLICES_PATH)
            with pytest.raises(ApiError, match="302"):
                await watch_to_the_end(client, silence_s=30)

    run(test)


@pytest.mark.parametrize(
    "date",
    ["yesterday", "Mon, 01 Jan 0001 0:00:7770040000", "Tue, 01 Dec 2026 04:00:00 +00022222222222222222222"],
    ids=["words", "seconds", "zone"],
)
def test_date_of_an_answer_that_is_none_tells_nothing_and_harms_nobody(date: str) -> None:
    async def test() -> None:
        async with answering(f"HTTP/1.1 200 OK\r\nDate: {date}\r\nContent-Length: 2\r\n\r\n{{}}".encode()) as client:
            assert await client.get(SLICES_PATH) == b"{}"
            assert client.clock_skew_s is None

    run(test)


def test_endless_event_is_given_up() -> None:
    """Memory stays bounded whatever the server sends."""

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
        with suppress(ConnectionError):
            for _ in range(64):
                writer.write(b"x" * (1 << 18))
                await writer.drain()
        writer.transport.abort()

    async def test() -> None:
        server = await asyncio.start_server(speak, "127.0.0.1", 0)
        client = KubeClient(kubeconfig(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"), timeout_s=5)
        with pytest.raises(LinkError, match="an event of more than"):
            await watch_to_the_end(client, silence_s=5)
        client.close()
        server.close()
        await server.wait_closed()

    run(test)


def test_name_from_outside_stays_one_name() -> None:
    assert api_path("namespaces", "a/../b?c", "ü") == "/namespaces/a%2F..%2Fb%3Fc/%C3%BC"


@pytest.mark.parametrize("content", [None, "", "[]", "{", "apiVersion: v1"])
def test_unusable_kubeconfig_is_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "kubeconfig"
    if content is not None:
        path.write_text(content)

    async def test() -> None:
        client = KubeClient(path, timeout_s=1)
        with pytest.raises(LinkError, match=rf"kubeconfig {path} cannot be used"):
            await client.get(SLICES_PATH)

    run(test)


def test_kubeconfig_may_be_a_file_and_may_come_late(tmp_path: Path) -> None:
    async def test() -> None:
        async with cluster() as one:
            path = tmp_path / "kubeconfig"
            client = KubeClient(path, timeout_s=5)
            with pytest.raises(LinkError, match="cannot be used"):
                await client.get(SLICES_PATH)
            path.write_text(json.dumps(kubeconfig(one.server.url)))
            assert await client.get(SLICES_PATH)
            client.close()

    run(test)


def test_watch_that_is_left_ends_at_once() -> None:
    async def test() -> None:
        async with cluster() as one:
            query = {"watch": "true", "fieldSelector": "spec.nodeName=node1"}
            async with aclosing(one.client.watch("/api/v1/pods", query, silence_s=60)) as lines:
                add_pod(one, "a")
                assert json.loads(await anext(aiter(lines)))["type"] == "ADDED"
            with pytest.raises(LinkError):
                async with aclosing(
                    one.client.watch("/api/v1/pods", query | {"resourceVersion": "999"}, silence_s=0.1)
                ) as w:
                    await anext(aiter(w))

    run(test)


def test_claim_is_read() -> None:
    """C1, with the claim recorded from a real API server."""
    recorded = json.loads(shared_data("wire", "api", "claim-c1-allocated-p1.json").read_text())

    async def test() -> None:
        async with cluster() as one:
            reader = ClaimReader(one.client, driver="rec.example", node="node1")
            with pytest.raises(BadRequest, match="claim default/c1: does not exist"):
                await reader.fetch(ClaimUID("u"), "default", "c1", timeout_s=5)
            stored = one.server.store.create(CLAIMS, "default", recorded)
            key = Key(kind=CLAIMS, namespace="default", name="c1")
            uid = ClaimUID(json.loads(json.dumps(stored))["metadata"]["uid"])
            with pytest.raises(BadRequest, match="not allocated"):
                await reader.fetch(uid, "default", "c1", timeout_s=5)
            one.server.store.patch(key, {"status": recorded["status"]}, status=True)
            claim = await reader.fetch(uid, "default", "c1", timeout_s=5)
            assert [(r.device, r.cpus) for r in claim.results] == [("dev0", 2)]
            with pytest.raises(BadRequest, match="its UID is"):
                await reader.fetch(ClaimUID("another"), "default", "c1", timeout_s=5)

    run(test)


def test_claims_are_refused_that_a_real_server_would_refuse() -> None:
    """By every way to write them: a new one, a replacement, a patch, a status."""
    path = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"

    def claim(*names: str) -> dict[str, object]:
        requests = [{"name": name, "exactly": {"deviceClassName": "cpus"}} for name in names]
        return {"metadata": {"name": "c1"}, "spec": {"devices": {"requests": requests}}}

    def status(request: str) -> dict[str, object]:
        results = [{"request": request, "driver": "dra.cpu", "pool": "n", "device": "d"}]
        return claim("a", "b") | {"status": {"allocation": {"devices": {"results": results}}}}

    async def test() -> None:
        async with cluster() as one:

            async def send(method: str, where: str, body: dict[str, object]) -> None:
                await one.client.send(method, f"{path}{where}", json.dumps(body).encode())

            async def refuse(fault: str, method: str, where: str, body: dict[str, object]) -> None:
                before = one.server.store.find(CLAIMS)
                with pytest.raises(ApiError, match=fault) as refused:
                    await send(method, where, body)
                assert (refused.value.status, refused.value.reason) == (422, "Invalid")
                assert one.server.store.find(CLAIMS) == before

            await refuse(r"metadata\.name", "POST", "", claim() | {"metadata": {"name": "NOT a label"}})
            await refuse(r"requests\[1\]\.name", "POST", "", claim("a", "X Y"))
            await send("POST", "", claim("a", "b"))
            await refuse("spec: .* immutable", "PUT", "/c1", claim("a"))
            await refuse("spec: .* immutable", "PATCH", "/c1", claim("a"))
            await send("PATCH", "/c1", {"metadata": {"labels": {"a": "b"}}})
            await refuse(r"results\[0\]\.request", "PUT", "/c1/status", status("c"))
            await send("PUT", "/c1/status", status("a"))
            await send("PUT", "/c1/status", status("a"))
            await refuse("status.allocation: .* immutable", "PUT", "/c1/status", status("b"))
            await send("PUT", "/c1/status", claim("a", "b"))
            await send("PUT", "/c1/status", status("b"))

    run(test)


def test_patched_slices_are_refused_that_a_real_server_would_refuse() -> None:
    pool: JsonObject = {"name": "n", "generation": 1, "resourceSliceCount": 1}
    spec: JsonObject = {"driver": "dra.cpu", "nodeName": "n", "pool": pool, "devices": [{"name": "d"}]}

    async def test() -> None:
        async with cluster() as one:
            one.server.store.create(SLICES, "", {"metadata": {"name": "s"}, "spec": spec})
            with pytest.raises(ApiError, match=r"spec\.driver: field is immutable") as refused:
                await one.client.send("PATCH", f"{SLICES_PATH}/s", b'{"spec": {"driver": "other"}}')
            assert refused.value.status == 422
            await one.client.send("PATCH", f"{SLICES_PATH}/s", b'{"spec": {"devices": [{"name": "e"}]}}')

    run(test)


@pytest.mark.parametrize("fault", [Fault(status=500), Fault(status=403), Fault(status=429), Fault(close=True)])
def test_api_server_in_trouble_is_worth_another_try(fault: Fault) -> None:
    """C7: what can come right soon is told apart from what cannot."""

    async def test() -> None:
        async with cluster() as one:
            one.server.add_fault(fault)
            reader = ClaimReader(one.client, driver="dra.cpu", node="node1")
            with pytest.raises(NotReady, match="claim shop/web: cannot be read"):
                await reader.fetch(ClaimUID("u"), "shop", "web", timeout_s=5)
            assert reader.is_answering is not fault.close

    run(test)


def test_pods_of_this_node_are_followed() -> None:
    """N1."""

    async def test() -> None:
        async with cluster() as one:
            add_pod(one, "before")
            add_pod(one, "elsewhere", node="node2")
            async with followed(one) as pods:
                assert pods.names() == {"before"}
                key = add_pod(one, "after")
                add_pod(one, "elsewhere-too", node="node2")
                await until(lambda: pods.names() == {"before", "after"})
                one.server.store.patch(key, {"metadata": {"annotations": {"a": "b"}}})
                await until(lambda: any(pod.annotations == {"a": "b"} for pod in pods.known.values()))
                one.server.store.remove(key)
                await until(lambda: pods.names() == {"before"})

    run(test)


def test_pods_are_in_step_again_after_the_server_was_away() -> None:
    """N1: broken connections, an outage, and a server that has forgotten where we were."""

    async def test() -> None:
        async with cluster() as one:
            gone = add_pod(one, "gone")
            async with followed(one) as pods:
                await one.server.break_connections()
                add_pod(one, "b")
                await until(lambda: pods.names() == {"gone", "b"})
                assert pods.lists == 1
                await one.server.stop()
                one.server.store.remove(gone)
                add_pod(one, "c")
                one.server.store.forget()
                await one.restart()
                await until(lambda: pods.names() == {"b", "c"})
                assert pods.lists == 2

    run(test)


def test_api_server_may_come_after_us() -> None:
    """N1."""

    async def test() -> None:
        async with cluster() as one:
            add_pod(one, "a")
            one.server.add_fault(Fault(status=500, times=3))
            async with followed(one) as pods:
                assert pods.names() == {"a"}

    run(test)


def test_pod_that_cannot_be_read_does_not_hide_the_others() -> None:
    async def test() -> None:
        async with cluster() as one:
            add_pod(one, "bad", containers=[{"name": 7}])
            add_pod(one, "good", containers=[{"name": "c"}])
            async with followed(one) as pods:
                assert pods.names() == {"good"}
                add_pod(one, "worse", containers="no")
                add_pod(one, "fine")
                await until(lambda: pods.names() == {"good", "fine"})

    run(test)
