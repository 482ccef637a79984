"""The API server behind four calls (shell): what is asked goes out, bytes or a typed error come back.

The ``kubernetes`` package reads the credentials and holds the connections; objects stay JSON, since its models would
drop the fields they do not know. Calls block in threads of their own, few and bounded; each has a time and a size it
never exceeds. It is imported in such a thread, when the first call is made: that takes half a second.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from nodecpu.errors import TRIED_AGAIN, LinkError, NodeCpuError
from nodecpu.kube.credentials import Stamps, expiry_of, files_of, stamps_of
from nodecpu.log import kv

if TYPE_CHECKING:
    import urllib3

MAX_ANSWER_BYTES: Final = 64 << 20
MAX_LINE_BYTES: Final = 8 << 20
"""An event of a watch holds one object, which etcd keeps below 1.5 MiB."""

MAX_RETRY_AFTER_S: Final = 300.0
"""A server that wants to be left alone for longer is asked again all the same."""

_SECONDS: Final = re.compile(r"[0-9]{1,6}", re.ASCII)
"""The form of Retry-After that API servers use. Source: RFC 9110, 10.2.3; apiserver filters, priority-and-fairness."""

_PIECE: Final = 1 << 16
_THREADS: Final = 8
_SLACK_S: Final = 0.25
"""How much later than a call's own limits it is given up: those say more of what went wrong."""

_UNAUTHORIZED: Final = 401
_LOOK_S: Final = 1.0
"""How often the credentials' files are looked at."""

_SOCKET_OPTIONS: Final = (
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
"""A connection whose peer went without a word is known to be dead 45 s later, and those on the way see it used."""

_log = logging.getLogger(__name__)

_NO_QUERY: Final[Mapping[str, str]] = {}

_T = TypeVar("_T")


class ApiError(NodeCpuError):
    """The API server answered, and not with success. ``status`` is HTTP's, ``reason`` Kubernetes' (``Conflict``).

    ``retry_after_s`` is how long it wants to be left alone, 0 if it did not say.
    """

    code = "api"

    def __init__(self, message: str, *, status: int, reason: str, hint: str = "", retry_after_s: float = 0.0) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.reason = reason
        self.retry_after_s = retry_after_s

    @property
    def is_transient(self) -> bool:
        """Return whether the same call may succeed soon: overload, or a server in trouble."""
        return self.status == 429 or self.status >= 500


class Api(Protocol):
    """The API server. Paths begin with ``/api`` or ``/apis``; all raise ApiError and LinkError."""

    @property
    def is_answering(self) -> bool:
        """Return whether the last call was answered, be it with an error; True before the first."""
        ...

    async def get(self, path: str, query: Mapping[str, str] = _NO_QUERY, *, timeout_s: float | None = None) -> bytes:
        """Return an object, or a list of objects; ``timeout_s`` can only shorten what is set for all calls."""
        ...

    async def send(self, method: str, path: str, body: bytes) -> bytes:
        """Return the object as it was stored (POST, PUT, PATCH by merge), or the answer to a DELETE."""
        ...

    def watch(self, path: str, query: Mapping[str, str], *, silence_s: float) -> AsyncGenerator[bytes, None]:
        """Yield the lines of a watch until the server ends it; LinkError after ``silence_s`` without a byte."""
        ...


def api_path(*names: str) -> str:
    """Return the path made of these names, each quoted: a name from outside stays one name."""
    return "".join(f"/{quote(name, safe='')}" for name in names)


class _Status(msgspec.Struct, frozen=True, kw_only=True):
    message: str = ""
    reason: str = ""


class KubeClient:
    """The API server of a kubeconfig: its path, or its content already read."""

    def __init__(self, kubeconfig: Path | Mapping[str, object], *, timeout_s: float) -> None:
        self._kubeconfig = kubeconfig
        self._timeout_s = timeout_s
        self.answered: bool | None = None
        """Whether the last call was answered, be it with an error; None before the first has ended."""
        self._closed = False
        self._places = asyncio.Semaphore(_THREADS)
        self._lock = threading.Lock()
        self._connection: _Connection | None = None
        self._looked_at = 0.0
        self.clock_skew_s: float | None = None
        """How far the API server's clock was ahead of ours at the last answer, to a second or two; None: not told."""

    @property
    def credentials_expire_at(self) -> float | None:
        """Return when the credentials in use end, in Unix seconds; None if that is not known."""
        return None if self._connection is None else self._connection.expires_at

    @property
    def is_answering(self) -> bool:
        """Return whether the last call was answered, be it with an error; True before the first."""
        return self.answered is not False

    async def get(self, path: str, query: Mapping[str, str] = _NO_QUERY, *, timeout_s: float | None = None) -> bytes:
        """Return an object, or a list of objects; ``timeout_s`` can only shorten what is set for all calls."""
        limit_s = self._timeout_s if timeout_s is None else min(timeout_s, self._timeout_s)
        return await self._ask(lambda: self._call("GET", path, query, b"", limit_s), limit_s + _SLACK_S)

    async def send(self, method: str, path: str, body: bytes) -> bytes:
        """Return the object as it was stored (POST, PUT, PATCH by merge), or the answer to a DELETE."""
        limit_s = self._timeout_s
        return await self._ask(lambda: self._call(method, path, _NO_QUERY, body, limit_s), limit_s + _SLACK_S)

    async def watch(self, path: str, query: Mapping[str, str], *, silence_s: float) -> AsyncGenerator[bytes, None]:
        """Yield the lines of a watch until the server ends it; LinkError after ``silence_s`` without a byte.

        To be closed (``contextlib.aclosing``) by whoever leaves it early.
        """
        stream = _Stream(
            path,
            lambda: self._open("GET", path, query, b"", connect_s=self._timeout_s, read_s=silence_s),
        )
        try:
            await self._ask(stream.open, self._timeout_s + _SLACK_S)
            rest = bytearray()
            while piece := await self._ask(stream.read, None):
                rest += piece
                if b"\n" in piece:
                    *lines, tail = bytes(rest).split(b"\n")
                    rest = bytearray(tail)
                    for line in filter(None, lines):
                        yield line
                if len(rest) > MAX_LINE_BYTES:
                    raise LinkError(f"API server: an event of more than {MAX_LINE_BYTES} bytes from {path}")
        finally:
            await asyncio.to_thread(stream.close)

    def close(self) -> None:
        """Close idle connections; no call may follow."""
        self._closed = True
        if self._connection is not None:
            self._connection.close()

    async def _ask(self, call: Callable[[], _T], limit_s: float | None) -> _T:
        try:
            answer = await self._run(call, limit_s)
        except LinkError:
            self.answered = False
            raise
        except ApiError:
            self.answered = True
            raise
        self.answered = True
        return answer

    async def _run(self, call: Callable[[], _T], limit_s: float | None) -> _T:
        """Return what the call returns, made in a thread that does not keep the process from exiting.

        A pool of the standard library would: it joins its threads, and one may hang on a dead peer or name server. A
        call that is given up keeps its place until its thread is done: there are never more threads than places.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[_T] = loop.create_future()

        def deliver(result: _T | None, error: BaseException | None) -> None:
            self._places.release()
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]  # None only where _T is

        def work() -> None:
            result, error = None, None
            try:
                result = call()
            except BaseException as raised:  # noqa: BLE001 - carried over to the caller
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(deliver, result, error)

        try:
            async with asyncio.timeout(limit_s):
                await self._places.acquire()
                try:
                    threading.Thread(target=work, name="kube", daemon=True).start()
                except RuntimeError as error:  # the host has no room for another: nobody will give the place back
                    self._places.release()
                    raise LinkError(f"API server: {error}", hint=TRIED_AGAIN) from error
                return await future
        except TimeoutError:
            raise LinkError(f"API server: no answer within {limit_s:g} s", hint=TRIED_AGAIN) from None

    def _call(self, method: str, path: str, query: Mapping[str, str], body: bytes, limit_s: float) -> bytes:
        end = time.monotonic() + limit_s
        where = f"{method} {path}"
        try:
            with _translated(where):
                response = self._open(method, path, query, body, connect_s=limit_s, read_s=limit_s)
                self.clock_skew_s = _skew_s(response.headers.get("Date", ""))
                answer = _read_all(response, end, where)
        except LinkError:
            # What took this connection may have taken the idle ones as well: the next call must not try one by one.
            if self._connection is not None:
                self._connection.close()
            raise
        finally:
            if self._closed and self._connection is not None:
                self._connection.close()  # given up by its caller, it has just put its connection back
        if not 200 <= response.status < 300:
            raise _refused(where, response.status, answer, response.headers.get("Retry-After", ""))
        return answer

    def _open(
        self, method: str, path: str, query: Mapping[str, str], body: bytes, *, connect_s: float, read_s: float
    ) -> urllib3.BaseHTTPResponse:
        """Return the answer with its body still to be read; a 401 is asked again once, with credentials read anew."""
        connection = self._connected()
        response = connection.open(method, path, query, body, connect_s=connect_s, read_s=read_s)
        if response.status != _UNAUTHORIZED:
            return response
        renewed = self._connected(refused=connection)
        if renewed is connection:
            return response
        response.drain_conn()
        response.release_conn()
        return renewed.open(method, path, query, body, connect_s=connect_s, read_s=read_s)

    def _connected(self, *, refused: _Connection | None = None) -> _Connection:
        """Return a connection with the credentials as they are in their files (at most a second old).

        ``refused``: those of this one were not accepted, another is made whether files changed or not.
        """
        with self._lock:
            old, now = self._connection, time.monotonic()
            if old is not None:
                if refused is None and now - self._looked_at < _LOOK_S:
                    return old
                if refused not in (None, old):
                    return old  # another thread was faster
                if refused is None and not old.is_stale():
                    self._looked_at = now
                    return old
            self._looked_at = now
            try:
                self._connection = made = _Connection(self._kubeconfig)
            except LinkError as error:
                if old is None:
                    raise
                kv(_log, logging.WARNING, "credentials cannot be read again, the old ones stay", err=error)
                return old
            if old is not None:
                kv(_log, logging.INFO, "credentials read again")
                old.close()
            return made


class _Connection:
    """What the ``kubernetes`` package makes of a kubeconfig: address, credentials and a pool of connections."""

    def __init__(self, kubeconfig: Path | Mapping[str, object]) -> None:
        from kubernetes import client, config  # noqa: PLC0415 - slow, and this runs in a thread

        # Before they are read: a change meanwhile is seen later, never missed.
        self._stamps: Stamps = stamps_of(files_of(kubeconfig)) if isinstance(kubeconfig, Path) else {}
        settings = client.Configuration()
        try:
            if isinstance(kubeconfig, Path):
                config.load_kube_config(  # type: ignore[no-untyped-call]  # a library without types
                    str(kubeconfig), client_configuration=settings, persist_config=False
                )
            else:
                config.load_kube_config_from_dict(  # type: ignore[no-untyped-call]  # a library without types
                    dict(kubeconfig), client_configuration=settings, persist_config=False
                )
        # The package lets out whatever its parsers raise; all of it means the same to us.
        except Exception as error:
            where = kubeconfig if isinstance(kubeconfig, Path) else "given"
            # Words of a parser may quote the file, which holds secrets.
            told = str(error)[:200] if isinstance(error, config.ConfigException | OSError) else type(error).__name__
            raise LinkError(
                f"kubeconfig {where} cannot be used: {told}",
                hint="[kube] kubeconfig has to name a readable file with cluster, user and context",
            ) from error
        self.expires_at = expiry_of(
            settings.cert_file, settings.get_api_key_with_prefix("BearerToken", alias="authorization")
        )
        settings.connection_pool_maxsize = _THREADS
        settings.socket_options = list(_SOCKET_OPTIONS)
        self._settings = settings
        self._client = client.ApiClient(settings)

    def is_stale(self) -> bool:
        """Return whether any of the files that this was made of is another one now."""
        return stamps_of(self._stamps) != self._stamps

    def open(
        self, method: str, path: str, query: Mapping[str, str], body: bytes = b"", *, connect_s: float, read_s: float
    ) -> urllib3.BaseHTTPResponse:
        """Return the answer with its body still to be read, after one try."""
        import urllib3  # noqa: PLC0415 - came with kubernetes

        headers = {"Accept": "application/json", "User-Agent": "nodecpu"}
        if token := self._settings.get_api_key_with_prefix("BearerToken", alias="authorization"):
            headers["Authorization"] = token
        if body:
            headers["Content-Type"] = "application/merge-patch+json" if method == "PATCH" else "application/json"
        pool: urllib3.PoolManager = self._client.rest_client.pool_manager
        return pool.request(
            method,
            f"{self._settings.host.rstrip('/')}{path}" + (f"?{urlencode(query)}" if query else ""),
            body=body or None,
            headers=headers,
            preload_content=False,
            retries=False,
            redirect=False,  # nor is it looked whereto
            timeout=urllib3.Timeout(connect=connect_s, read=read_s),
        )

    def close(self) -> None:
        """Close idle connections, and those in use when they are given back; calls to come make new ones."""
        manager: urllib3.PoolManager = self._client.rest_client.pool_manager
        for key in manager.pools.keys():  # noqa: SIM118 - no mapping: it cannot be iterated
            if (pool := manager.pools.get(key)) is not None:
                pool.close()  # clear alone leaves it to the garbage collector
        manager.clear()


class _Stream:
    """A watch's answer. One thread opens and reads it piece by piece; ``close`` comes from another."""

    def __init__(self, path: str, opener: Callable[[], urllib3.BaseHTTPResponse]) -> None:
        self._where = f"watch {path}"
        self._opener = opener
        self._reading = threading.Lock()
        self._response: urllib3.BaseHTTPResponse | None = None
        self._closed = False

    def open(self) -> None:
        """Ask; ApiError unless the watch was granted."""
        with _translated(self._where):
            response = self._response = self._opener()
            if self._closed:
                response.close()
            elif not 200 <= response.status < 300:
                told = response.headers.get("Retry-After", "")
                raise _refused(self._where, response.status, response.read(_PIECE), told)

    def read(self) -> bytes:
        """Return what has come, at least one byte; empty at the end."""
        response = self._response
        with self._reading, _translated(self._where):
            return b"" if response is None or self._closed else response.read1(_PIECE)

    def close(self) -> None:
        """End the stream, whoever waits on it."""
        self._closed = True
        response = self._response
        if response is None:
            return
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            response.shutdown()  # lets go of a reader; the rest has to wait until it is out
        with self._reading:
            response.close()


def _read_all(response: urllib3.BaseHTTPResponse, end: float, where: str) -> bytes:
    """Return the whole body; LinkError if it is too long in time or size. Ends the use of the connection."""
    pieces: list[bytes] = []
    size = 0
    try:
        while piece := response.read1(_PIECE):
            pieces.append(piece)
            size += len(piece)
            _check_limits(size, end, where)
    except BaseException:
        response.close()  # half read: of no use to others
        raise
    response.release_conn()
    return b"".join(pieces)


def _check_limits(size: int, end: float, where: str) -> None:
    if size > MAX_ANSWER_BYTES:
        raise LinkError(f"API server: {where}: an answer of more than {MAX_ANSWER_BYTES} bytes")
    if time.monotonic() > end:
        raise LinkError(f"API server: {where}: the answer takes too long")


@contextlib.contextmanager
def _translated(where: str) -> Iterator[None]:
    import urllib3  # noqa: PLC0415 - came with kubernetes

    try:
        yield
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise LinkError(f"API server: {where}: {_cause(error)}", hint=TRIED_AGAIN) from error


def _cause(error: BaseException) -> str:
    """Return the innermost words of an error: the outer ones hold addresses of objects, which differ each time.

    A body that is not whole has words of ours: those within are a parser's, which has seen nothing but its own input.
    """
    from http.client import IncompleteRead  # noqa: PLC0415 - came with kubernetes

    while (inner := error.__cause__ or error.__context__) is not None:
        if isinstance(inner, IncompleteRead):
            return "the stream ended in the midst of an answer, or what came of it is garbled"
        error = inner
    return f"{type(error).__name__}: {str(error)[:200]}"


def _refused(where: str, status: int, answer: bytes, retry_after: str) -> ApiError:
    try:
        told = msgspec.json.decode(answer, type=_Status)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        told = _Status()
    hint = (
        "grant the right or renew the credentials: docs/how-to/access.md, nodecpu manifests"
        if status in (401, 403)
        else ""
    )
    return ApiError(
        f"API server: {where}: {status} {told.reason or ''}: {told.message[:300]}".rstrip(": "),
        status=status,
        reason=told.reason,
        hint=hint,
        retry_after_s=min(float(retry_after), MAX_RETRY_AFTER_S) if _SECONDS.fullmatch(retry_after) else 0.0,
    )


def _skew_s(date: str) -> float | None:
    """Return how far a Date header is ahead of our clock. Source: RFC 9110, 6.6.1."""
    try:
        return parsedate_to_datetime(date).timestamp() - time.time()
    except (ValueError, OverflowError):
        return None
