"""The API server's HTTP face over ``objects``: list, watch, get, create, update, patch, delete, and faults on demand.

Plain HTTP/1.1 on loopback, keep-alive, chunked watches. Each connection is served by a task of its own.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import formatdate
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from nodecpu.lab.admission import admitted
from nodecpu.lab.jsontree import Json, JsonObject, leaf, merged, node, text, without
from nodecpu.lab.objects import (
    ACCOUNTS,
    KINDS,
    PODS,
    ApiError,
    Change,
    Key,
    Kind,
    ObjectStore,
    selected,
)
from nodecpu.lab.slicerules import Features
from nodecpu.lab.trace import Trace

_MAX_BODY: Final = 3 << 20
_PATCHES: Final = (
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/json-patch+json",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something to go wrong. ``verb`` and ``plural`` say where ("*": everywhere), ``times`` how often (-1: always).

    ``status`` answers so, ``retry_after_s`` with when to ask again; ``delay_s`` waits first; ``drop`` names paths
    (``spec.devices.*.taints``) that are lost on writing; ``close`` ends the connection without an answer.
    """

    verb: str = "*"
    plural: str = "*"
    status: int = 0
    retry_after_s: int = 0
    delay_s: float = 0.0
    drop: tuple[str, ...] = ()
    close: bool = False
    times: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One HTTP request, taken apart."""

    method: str
    kind: Kind
    namespace: str
    name: str
    subresource: str
    query: Mapping[str, str]
    body: JsonObject
    content_type: str

    @property
    def verb(self) -> str:
        """Return the API verb."""
        if self.method == "GET" and self.query.get("watch") in ("1", "true"):
            return "watch"
        verbs = {"GET": "get" if self.name else "list", "POST": "create", "PUT": "update", "PATCH": "patch"}
        return verbs.get(self.method, "delete" if self.name else "deletecollection")

    @property
    def act(self) -> str:
        """Return the verb; of a dry run ``try``, since nothing comes of it."""
        return "try" if "dryRun" in self.query else self.verb

    @property
    def key(self) -> Key:
        """Return the key of the object named."""
        return Key(kind=self.kind, namespace=self.namespace, name=self.name)


DRIVERS_RIGHTS: Final = frozenset(
    (verb, plural)
    for plural, verbs in (
        ("nodes", "get"),
        ("pods", "list watch"),
        ("events", "create patch"),
        ("resourceclaims", "get"),
        ("resourceslices", "list watch create update delete"),
        ("noderesourcetopologies", "get create update"),
        ("serviceaccounts/token", "create"),
    )
    for verb in verbs.split()
)
"""What a node's daemon may do in a cluster: what its manifests ask for."""


def now() -> str:
    """Return the time as the API writes it."""
    return datetime.now(tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class ApiServer:
    """Serves ``store`` between ``start`` and ``stop``; may be started again on the same port.

    ``tokens`` are those that are accepted, ``rights`` the verbs and plurals that are granted; None for whatever comes.
    ``features`` is the version it plays, with its gates; a ``port`` of 0 is one of the kernel's choice.
    """

    def __init__(self, trace: Trace, *, bookmark_s: float = 5.0, port: int = 0) -> None:
        self.tokens: frozenset[str] | None = None
        self.rights: frozenset[tuple[str, str]] | None = None
        self.features = Features()
        self.store = ObjectStore(now=now, changed=self._wake)
        self._trace = trace
        self._bookmark_s = bookmark_s
        self._faults: list[Fault] = []
        self._watchers: set[asyncio.Event] = set()
        self._connections: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self._server: asyncio.Server | None = None
        self._port = port

    @property
    def url(self) -> str:
        """Return the address of the server, the same for its whole life."""
        return f"http://127.0.0.1:{self._port}"

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        """Listen, at a restart on the same port as before; connections are served by ``tasks``."""

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = tasks.create_task(self._serve(reader, writer))
            self._connections[task] = writer
            task.add_done_callback(self._connections.pop)

        self._server = await asyncio.start_server(accept, "127.0.0.1", self._port, limit=_MAX_BODY)
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening and end every connection, watches included."""
        if self._server is not None:
            self._server.close()
            await self.break_connections()
            await self._server.wait_closed()
            self._server = None

    def add_fault(self, fault: Fault) -> None:
        """Let something go wrong from now on."""
        self._faults.append(fault)

    @property
    def pending_faults(self) -> int:
        """How often something is still to go wrong, not counting what always does."""
        return sum(max(fault.times, 0) for fault in self._faults)

    def clear_faults(self) -> None:
        """Let all go well again."""
        self._faults.clear()

    async def break_connections(self) -> None:
        """End every connection at once, as a restart or a network fault does."""
        ended = tuple(self._connections)
        for task, writer in tuple(self._connections.items()):
            writer.transport.abort()
            task.cancel()
        await asyncio.gather(*ended, return_exceptions=True)

    def _wake(self) -> None:
        for event in self._watchers:
            event.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await self._serve_one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        method, target, _ = lines[0].split(" ", 2)
        headers = {
            name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)
        }
        raw = await reader.readexactly(min(int(headers.get("content-length", "0")), _MAX_BODY))
        try:
            if (plain := self._unstored(method, target, raw)) is not None:
                _answer(writer, 201 if method == "POST" else 200, plain)
                return True
            request = parse_request(method, target, raw, headers.get("content-type", ""))
            self._authorize(request, headers.get("authorization", ""))
            fault = self._fault_for(request)
            if fault.delay_s:
                await asyncio.sleep(fault.delay_s)
            if fault.close:
                return False
            if request.verb == "watch" and not fault.status:
                await self._watch(request, writer)
                return False
            answer = self._act(request, fault)
            self._trace.add("api", "node", _describe(request), text(answer, "metadata", "name"))
            _answer(writer, 201 if request.method == "POST" else 200, answer)
        except ApiError as error:
            did = "TRY" if "dryRun=" in target else method
            self._trace.add("api", "node", f"{did} {urlsplit(target).path}", f"{error.status} {error.reason}")
            _answer(writer, error.status, error.body(), retry_after_s=error.retry_after_s)
        await writer.drain()
        return True

    def _unstored(self, method: str, target: str, raw: bytes) -> JsonObject | None:
        """Return the answer to what is asked without any object being meant: versions, groups, one's own rights."""
        if target.startswith("/version"):
            minor = self.features.minor
            return {"major": "1", "minor": str(minor), "gitVersion": f"v1.{minor}.2"}
        if method == "GET" and target == "/apis/resource.k8s.io/v1":
            return {"kind": "APIResourceList", "groupVersion": "resource.k8s.io/v1", "resources": []}
        if method == "POST" and target == "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews":
            body: JsonObject = json.loads(raw)
            attributes = node(body, "spec", "resourceAttributes")
            what = "/".join(filter(None, (text(attributes, "resource"), text(attributes, "subresource"))))
            asked = (text(attributes, "verb"), what)
            return {**body, "status": {"allowed": self.rights is None or asked in self.rights}}
        return None

    def _authorize(self, request: Request, authorization: str) -> None:
        if self.tokens is not None and authorization.removeprefix("Bearer ") not in self.tokens:
            raise ApiError(401, "Unauthorized", "Unauthorized")
        what = "/".join(filter(None, (request.kind.plural, request.subresource)))
        if self.rights is not None and (request.verb, what) not in self.rights:
            raise ApiError(403, "Forbidden", f"cannot {request.verb} resource {what}")

    def _fault_for(self, request: Request) -> Fault:
        for index, fault in enumerate(self._faults):
            if fault.verb in ("*", request.act) and fault.plural in ("*", request.kind.plural) and fault.times:
                if fault.times > 0:
                    self._faults[index] = replace(fault, times=fault.times - 1)
                return fault
        return Fault()

    def _act(self, request: Request, fault: Fault) -> JsonObject:
        verb = request.verb
        if fault.status:
            message = f"fault injected: {verb} {request.kind.plural}"
            raise ApiError(fault.status, "InternalError", message, retry_after_s=fault.retry_after_s)
        if verb == "get":
            return self.store.get(request.key)
        if verb == "list":
            return self._list(request)
        if verb == "delete":
            return self._delete(request)
        return self._write(request, fault)

    def _write(self, request: Request, fault: Fault) -> JsonObject:
        verb = request.verb
        if (request.kind, request.subresource) == (ACCOUNTS, "token"):
            return self._issue(request)
        if verb == "deletecollection":
            raise ApiError(405, "MethodNotAllowed", "deletecollection is not supported")
        body, status = _without(request.body, fault.drop), request.subresource == "status"
        old = None if verb == "create" else self.store.get(request.key, uid=text(body, "metadata", "uid"))
        if old is not None and verb == "patch":
            body = _patched(request, old, body)
        body = admitted(request.kind, body, old, status=status, features=self.features)
        if request.act == "try":
            return body
        if old is None:
            return self.store.create(request.kind, request.namespace, body)
        return self.store.update(request.key, body, status=status)

    def _issue(self, request: Request) -> JsonObject:
        """Return a TokenRequest with its token, which is accepted from now on where ``tokens`` are asked for."""
        account = self.store.get(replace(request, subresource="").key)
        spec = node(request.body, "spec")
        bound = node(spec, "boundObjectRef")
        issued, life = int(time.time()), leaf(spec, "expirationSeconds")
        about: JsonObject = {
            "namespace": request.namespace,
            "serviceaccount": {"name": request.name, "uid": text(account, "metadata", "uid")},
        }
        if text(bound, "kind") == "Node":
            about["node"] = {"name": text(bound, "name"), "uid": text(bound, "uid")}
        ends = issued + (life if isinstance(life, int) else 3600)
        payload: JsonObject = {"iat": issued, "exp": ends, "aud": leaf(spec, "audiences"), "kubernetes.io": about}
        token = unsigned_token(payload)
        if self.tokens is not None:
            self.tokens |= {token}
        return request.body | {"status": {"token": token}}

    def _list(self, request: Request) -> JsonObject:
        items = self.store.find(request.kind, request.namespace, request.query.get("fieldSelector", ""))
        for item in items:
            item.pop("apiVersion")
            item.pop("kind")
        return {
            "kind": f"{request.kind.kind}List",
            "apiVersion": request.kind.api_version,
            "metadata": {"resourceVersion": str(self.store.version)},
            "items": list(items),
        }

    def _delete(self, request: Request) -> JsonObject:
        grace = leaf(request.body, "gracePeriodSeconds")
        if request.kind is PODS and grace != 0:
            return self.store.mark_deleted(request.key, grace_s=grace if isinstance(grace, int) else 30)
        conditions = node(request.body, "preconditions")
        return self.store.delete(request.key, uid=text(conditions, "uid"), version=text(conditions, "resourceVersion"))

    async def _watch(self, request: Request, writer: asyncio.StreamWriter) -> None:
        selector = request.query.get("fieldSelector", "")
        timeout_s = float(request.query.get("timeoutSeconds", "3600"))
        self._trace.add("api", "node", _describe(request), selector)
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
            b"Connection: close\r\n\r\n"
        )
        asked = request.query.get("resourceVersion", "")
        if asked in ("", "0"):
            position = self.store.version
            for item in self.store.find(request.kind, request.namespace, selector):
                _chunk(writer, {"type": "ADDED", "object": item})
            if request.query.get("sendInitialEvents") == "true":
                _chunk(writer, _bookmark(request.kind, position, initial=True))
        else:
            position = int(asked)
        awake = asyncio.Event()
        self._watchers.add(awake)
        try:
            async with asyncio.timeout(timeout_s):
                await self._stream(request, writer, awake, position)
        except TimeoutError:
            writer.write(b"0\r\n\r\n")
        except ApiError as error:
            _chunk(writer, {"type": "ERROR", "object": error.body()})
            writer.write(b"0\r\n\r\n")
        finally:
            self._watchers.discard(awake)

    async def _stream(
        self, request: Request, writer: asyncio.StreamWriter, awake: asyncio.Event, position: int
    ) -> None:
        bookmarks = request.query.get("allowWatchBookmarks") == "true"
        selector = request.query.get("fieldSelector", "")
        while not writer.is_closing():
            awake.clear()
            for change in self.store.changes_after(position):
                position = change.version
                if _concerns(change, request, selector):
                    _chunk(writer, {"type": change.type, "object": change.object})
            await writer.drain()
            try:
                async with asyncio.timeout(self._bookmark_s):
                    await awake.wait()
            except TimeoutError:
                if bookmarks:
                    _chunk(writer, _bookmark(request.kind, position, initial=False))


def _patched(request: Request, old: JsonObject, patch: JsonObject) -> JsonObject:
    """Return what a merge patch makes of an object; ApiError for patches of other types."""
    if request.content_type.partition(";")[0] not in _PATCHES[:2]:
        raise ApiError(415, "UnsupportedMediaType", f"patch of type {request.content_type} is not supported")
    body = merged(old, patch)
    return body if isinstance(body, dict) else old


def _without(body: JsonObject, paths: Iterable[str]) -> JsonObject:
    for path in paths:
        dropped = without(body, path.split("."))
        body = dropped if isinstance(dropped, dict) else body
    return body


def unsigned_token(payload: JsonObject) -> str:
    """Return a JSON web token that nobody signed."""
    parts = [json.dumps(part).encode() for part in ({"alg": "none"}, payload)]
    return ".".join([*(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts), "unsigned"])


def parse_request(method: str, target: str, raw: bytes, content_type: str) -> Request:
    """Return an HTTP request taken apart; ApiError for paths that are not served and bodies that are no objects."""
    parts = urlsplit(target)
    names = [unquote(name) for name in parts.path.strip("/").split("/")]
    group = ""
    if names[:2] == ["api", "v1"]:
        names = names[2:]
    elif names[:1] == ["apis"] and len(names) > 3:
        group, names = names[1], names[3:]
    else:
        raise ApiError(404, "NotFound", f"the server could not find {parts.path}")
    namespace = ""
    if len(names) > 2 and names[0] == "namespaces":
        namespace, names = names[1], names[2:]
    kind = next((kind for kind in KINDS if kind.group == group and kind.plural == names[0]), None)
    if kind is None or len(names) > 3:
        raise ApiError(404, "NotFound", f"the server could not find {parts.path}")
    try:
        body: Json = json.loads(raw) if raw else {}
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise ApiError(400, "BadRequest", "body is no JSON object")
    names += ["", ""]
    return Request(
        method=method,
        kind=kind,
        namespace=namespace,
        name=names[1],
        subresource=names[2],
        query=dict(parse_qsl(parts.query)),
        body=body,
        content_type=content_type,
    )


def _concerns(change: Change, request: Request, selector: str) -> bool:
    if change.kind is not request.kind or not selected(change.object, selector):
        return False
    return not request.namespace or text(change.object, "metadata", "namespace") == request.namespace


def _bookmark(kind: Kind, version: int, *, initial: bool) -> JsonObject:
    metadata: JsonObject = {"resourceVersion": str(version)}
    if initial:
        metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
    return {"type": "BOOKMARK", "object": {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": metadata}}


def _describe(request: Request) -> str:
    where = "/".join(filter(None, (request.kind.plural, request.namespace, request.name, request.subresource)))
    return f"{request.act} {where}"


def _answer(writer: asyncio.StreamWriter, status: int, body: JsonObject, *, retry_after_s: int = 0) -> None:
    content = json.dumps(body).encode()
    head = f"HTTP/1.1 {status} Lab\r\nContent-Type: application/json\r\nContent-Length: {len(content)}\r\n"
    head += f"Retry-After: {retry_after_s}\r\n" if retry_after_s else ""
    head += f"Date: {formatdate(usegmt=True)}\r\n\r\n"
    writer.write(head.encode() + content)


def _chunk(writer: asyncio.StreamWriter, event: JsonObject) -> None:
    content = json.dumps(event).encode() + b"\n"
    writer.write(f"{len(content):x}\r\n".encode() + content + b"\r\n")
