"""Keeps the node's ResourceSlices as they should be (shell; D3, D4, D5).

What is stored is known from a watch and from the answers to our own writes; what to write is planned by ``slices``.
Until the first ``publish`` nothing is touched. Whoever deletes or changes slices meanwhile (the kubelet deletes them at
each of its starts) finds them back after a moment, and after ever longer ones if it keeps at it.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from nodecpu.dra.devices import Device
from nodecpu.dra.dryrun import INVALID, SLICES, Trials, kinds_of
from nodecpu.dra.slices import (
    Create,
    Delete,
    Form,
    JsonObject,
    NodeAllocatable,
    Pool,
    Replace,
    Slice,
    Write,
    canonical,
    decode_slice,
    delete_options,
    dropped_fields,
    gates_of,
    has_list,
    list_attributes,
    make_pool,
    node_allocatable_form,
    plan_writes,
    slice_object,
    vital_fields,
)
from nodecpu.dra.stored import StoredSlices
from nodecpu.errors import BadRequest, LinkError, NodeCpuError
from nodecpu.failpoints import reach
from nodecpu.kube.client import Api, ApiError, api_path
from nodecpu.kube.watch import Backoff, Change, Watcher, asked_to_wait_s
from nodecpu.log import kv

_CALM_S: Final = 120.0
"""Without a repair for so long, the next one is quick again."""

_PASSES: Final = 4
"""Plans in a row: one, another when the server drops what matters, and some for slices that go meanwhile."""

LOOK_S: Final = 600.0
"""How long until it is looked again whether the server has learnt what it lacked."""

_VERSION_NUMBER: Final = re.compile(r"[0-9]{1,4}", re.ASCII)

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishStatus:
    """How publishing stands: ``in_step`` once what is stored is what should be.

    ``dropped`` are the fields of our slices that the server does not keep; ``withheld``: it does not keep what makes
    the devices safe, so that none are published; ``counted``: it keeps that the devices' CPUs are the node's, so that
    the scheduler counts claims (G13); ``error`` is why the last try failed.
    """

    in_step: bool = False
    dropped: tuple[str, ...] = ()
    withheld: bool = False
    counted: bool = False
    error: str = ""

    @property
    def is_lacking(self) -> bool:
        """Return whether the server does not keep all that was sent."""
        return self.withheld or bool(self.dropped)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    devices: tuple[Device, ...]
    closed: bool
    counted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Traits:
    """What of the devices depends on gates: ``lists`` of values, capacity that is ``shared``, and their form."""

    form: Form
    lists: bool
    shared: bool


class _Version(msgspec.Struct, frozen=True, kw_only=True):
    major: str = ""
    minor: str = ""


class _NodeMetadata(msgspec.Struct, frozen=True, kw_only=True):
    uid: str


class _Node(msgspec.Struct, frozen=True, kw_only=True):
    metadata: _NodeMetadata


class SlicePublisher:
    """The slices of one driver on one node; the pool is named like the node."""

    def __init__(self, api: Api, *, driver: str, node: str, wait_s: float = 1.0, look_s: float = LOOK_S) -> None:
        """``wait_s`` is the first pause after a failure, and before a repair; they grow to 30 s.

        ``look_s`` is the time between two looks at a server that lacks something.
        """
        self.status = PublishStatus()
        self.settled: Callable[[], None] = lambda: None
        """Called each time that what is stored is what should be, as far as the server keeps it."""
        self._api = api
        self._driver = driver
        self._node = node
        self._wanted: _Wanted | None = None
        self._stored = StoredSlices()
        self._accepted: dict[str, tuple[JsonObject, JsonObject]] = {}
        self._version: tuple[int, int] | None = None
        self._version_is_due = True
        self._look_s = look_s
        self._looked: _Traits | None = None  # what it was looked for last
        self._look_is_due = False
        self._lacks: tuple[str, ...] = ()
        self._dropped: dict[str, tuple[str, ...]] = {}
        self._made: tuple[_Wanted, Form, Pool] | None = None
        self._told: tuple[str, ...] = ()
        self._due = asyncio.Event()
        self._asked = asyncio.Event()  # until what was asked for is stored: till then a difference is not others' doing
        self._failures = Backoff(first_s=wait_s, cap_s=30.0)
        self._repairs = Backoff(first_s=wait_s, cap_s=30.0)
        self._repaired_at = float("-inf")
        selector = f"spec.nodeName={node},spec.driver={driver}"
        self._watcher = Watcher(
            api,
            path=SLICES,
            selector=selector,
            sink=self,
            wait_s=wait_s,
            opening=self._watch_opening,
        )

    def publish(self, devices: Sequence[Device], *, closed: bool = False, counted: bool = False) -> None:
        """Have exactly these devices published, in this order; the latest call counts.

        ``closed``: the devices stay, but no more pods are to be sent for them (D5). ``counted``: they say that their
        CPUs are the node's, where the server knows of that (D3).
        """
        wanted = _Wanted(devices=tuple(devices), closed=closed, counted=counted)
        if wanted == self._wanted:
            return
        self.status = replace(self.status, in_step=False)
        self._wanted = wanted
        self._asked.set()
        self._due.set()

    async def run(self) -> None:
        """Keep the slices as wanted until cancelled, whatever happens to the API server. They stay afterwards."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watcher.run(), name="slices watch")
            while True:
                await self._wait_until_due()
                try:
                    await self._reconcile()
                except (LinkError, ApiError, BadRequest) as error:
                    self._failed(error)
                    await asyncio.sleep(max(asked_to_wait_s(error), self._failures.next_s()))
                    self._due.set()

    def listing(self) -> None:
        """Take it that all slices of ours are asked for now."""
        self._stored.listing()

    def listed(self, objects: Sequence[msgspec.Raw], version: str) -> None:
        """Take all slices there are of ours."""
        self._stored.listed([one for value in objects if (one := _decoded(value)) is not None], version)
        self._due.set()

    def changed(self, change: Change, value: msgspec.Raw) -> None:
        """Take one slice; what is older than an answer to our own write is passed over."""
        one = _decoded(value)
        if one is None:
            return
        if self._gone(one) if change is Change.DELETED else self._stored.changed(one):
            self._due.set()

    def _watch_opening(self) -> None:
        """Have the server asked for its version again: perhaps it is another one now."""
        self._version_is_due = True
        if self._asks_for_version():
            self._due.set()

    def _asks_for_version(self) -> bool:
        """Return whether what is written depends on the version, or another one might keep what this one does not."""
        return self.status.is_lacking or (self._wanted is not None and self._wanted.counted)

    async def _wait_until_due(self) -> None:
        try:
            async with asyncio.timeout(self._look_s if self.status.is_lacking else None):
                await self._due.wait()
        except TimeoutError:
            self._look_is_due = True
        self._due.clear()

    async def _reconcile(self) -> None:
        await self._learn_version()
        if self._plan() and not self._asked.is_set():
            await self._pause_before_repair()
            self._asked.set()
            self._look_is_due = True  # perhaps it is another server now
        # The plan is made anew after each wait: it is made of what is known then.
        for _ in range(_PASSES):
            seen_uid = await self._look()
            writes = self._plan()
            if not writes:
                break
            pool, node_uid = self._pool(), seen_uid or await self._node_uid()
            for write in writes:
                if not await self._write(pool, write, node_uid):
                    break
        else:
            raise LinkError("slices do not become what was written", hint="something changes them on their way")
        if self._stored.is_known:
            self._asked.clear()
        await self._learn_version()  # of a server that lacks something, to notice when it is another one
        self._failures.reset()
        if not self._asked.is_set():  # else something was asked for meanwhile
            self._in_step()

    async def _look(self) -> str:
        """Find out what the server would not keep before it is written; return the Node's UID if it was asked for."""
        wanted = self._wanted
        if wanted is None or not self._stored.is_known or not wanted.devices:
            return ""
        traits = _Traits(
            form=self._full_form(wanted),
            lists=any(map(has_list, wanted.devices)),
            shared=any(device.step for device in wanted.devices),
        )
        is_new = traits != self._looked and (self.status.withheld or bool(self._plan()))
        if not (self._look_is_due or is_new):
            return ""
        node_uid = await self._node_uid()
        trials = Trials(api=self._api, driver=self._driver, node=self._node, node_uid=node_uid)
        lacks = await trials.lacking(wanted.devices, traits.form)
        if lacks is None:
            lacks = await self._stored_trial(trials, wanted.devices, traits.form)
        self._look_is_due, self._looked = False, traits
        if lacks is not None:
            self._take(lacks)
        return node_uid

    async def _stored_trial(self, trials: Trials, devices: Sequence[Device], form: Form) -> tuple[str, ...] | None:
        """Find it out where admission takes no dry run; None if it takes no slice either."""
        self._asked.set()  # should it not come to the deletion, nobody else is to blame for what is left
        found = await trials.stored(devices, form)
        if found is None:
            return None
        lacks, trial = found
        await self._delete(trial)
        return lacks

    def _take(self, lacks: tuple[str, ...]) -> None:
        """Go by what the server was found to lack; write anew what it dropped and would keep now."""
        if lacks != self._lacks or kinds_of(self.status.dropped) - kinds_of(lacks):
            self._accepted.clear()
            self._dropped.clear()
        self._lacks = lacks
        vital = vital_fields(lacks)
        if vital and not self.status.withheld:
            _report_withheld(vital)
        self.status = replace(self.status, withheld=bool(vital))
        self._report_dropped()

    def _pool(self) -> Pool:
        wanted = self._wanted
        if wanted is None or self.status.withheld:
            return make_pool(self._driver, self._node, ())
        form = self._form(wanted)
        if self._made is None or self._made[0] is not wanted or self._made[1] != form:
            self._made = wanted, form, make_pool(self._driver, self._node, wanted.devices, form)
        return self._made[2]

    def _full_form(self, wanted: _Wanted) -> Form:
        """Return how devices are written for a server of that version that has all gates on."""
        counted = NodeAllocatable.UNTOLD
        if wanted.counted and self._version is not None:
            counted = node_allocatable_form(*self._version)
        return Form(closed=wanted.closed, counted=counted)

    def _form(self, wanted: _Wanted) -> Form:
        """Return how devices are written: without what the server would drop."""
        form = self._full_form(wanted)
        if any(".strings" in path for path in self._lacks):
            form = replace(form, lists=False)
        if any(".nodeAllocatable" in path for path in self._lacks):
            form = replace(form, counted=NodeAllocatable.UNTOLD)
        return form

    async def _learn_version(self) -> None:
        """Ask the server for its version where that matters; another one than before may keep what that did not."""
        if not (self._version_is_due and self._asks_for_version()):
            return
        try:
            told = msgspec.json.decode(await self._api.get("/version"), type=_Version)
        except ApiError as error:
            if error.is_transient:
                raise
            told = _Version()  # not for us to know: nothing that depends on it is written
            kv(_log, logging.WARNING, "the API server does not tell its version", err=error)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise LinkError(f"API server: malformed version: {str(error)[:200]}") from error
        numbers = [_VERSION_NUMBER.match(part) for part in (told.major, told.minor)]
        major, minor = (0 if number is None else int(number[0]) for number in numbers)
        self._version_is_due = False
        if (major, minor) == self._version:
            return
        if self._version is not None or self.status.is_lacking:  # perhaps not the one that was found lacking
            self._look_is_due = True
            self._asked.set()
            self._due.set()
        self._version = (major, minor)
        counted = self._wanted is not None and self._wanted.counted
        if counted and major and node_allocatable_form(major, minor) is NodeAllocatable.UNTOLD:
            kv(
                _log,
                logging.WARNING,
                "claims are not counted as CPU requests, the API server is too old",
                version=f"{major}.{minor}",
                hint="dra.node_allocatable needs Kubernetes 1.36",
            )

    def _plan(self) -> tuple[Write, ...]:
        if self._wanted is None or not self._stored.is_known:
            return ()
        return plan_writes(self._pool(), self._stored.slices, self._accepted)

    async def _pause_before_repair(self) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._repaired_at > _CALM_S:
            self._repairs.reset()
        self._repaired_at = now
        kv(_log, logging.INFO, "slices were changed by others, written again", pool=self._node)
        try:
            async with asyncio.timeout(self._repairs.next_s()):
                await self._asked.wait()
        except TimeoutError:
            pass

    async def _node_uid(self) -> str:
        try:
            answer = await self._api.get(api_path("api", "v1", "nodes", self._node))
            return msgspec.json.decode(answer, type=_Node).metadata.uid
        except ApiError as error:
            if error.status != 404:
                raise
            raise LinkError(
                f"node {self._node}: the API server knows no Node of that name, devices are not published",
                hint="[node] name has to be the name the kubelet registered",
            ) from error
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise LinkError(f"node {self._node}: malformed answer: {str(error)[:200]}") from error

    async def _write(self, pool: Pool, write: Write, node_uid: str) -> bool:
        """Do one write and remember what came of it; return whether the plan it belongs to still holds."""
        reach("slice-write")
        if isinstance(write, Delete):
            await self._delete(write.slice)
            return True
        body = msgspec.json.encode(slice_object(pool, write, node_uid))
        try:
            if isinstance(write, Create):
                answer: bytes | None = await self._api.send("POST", SLICES, body)
            else:
                answer = await self._send_tolerant("PUT", write.slice, body)
        except ApiError as error:
            if error.status != INVALID or not (lists := list_attributes(write.spec)):
                raise
            # Without the gate the server drops a list's values and then refuses the attribute that has none.
            self._lacks = (*self._lacks, *lists)
            self._report_dropped()
            return False
        if answer is None:
            assert isinstance(write, Replace)
            self._gone(write.slice)
            return False
        reach("slice-written")
        stored = decode_slice(answer)
        if not self._stored.written(stored):
            self._due.set()
            return False
        sent = canonical(write.spec)
        self._accepted[stored.name] = (sent, stored.spec)
        kv(_log, logging.INFO, "slice written", pool=stored.name, version=stored.generation)
        return self._keeps(sent, stored)

    async def _delete(self, one: Slice) -> None:
        """Delete a slice, provided it is the one that was seen."""
        await self._send_tolerant("DELETE", one, msgspec.json.encode(delete_options(Delete(slice=one))))
        self._gone(one)

    async def _send_tolerant(self, method: str, one: Slice, body: bytes) -> bytes | None:
        """Return the answer; None if the slice is not there any more."""
        try:
            return await self._api.send(method, f"{SLICES}{api_path(one.name)}", body)
        except ApiError as error:
            if error.status != 404:
                raise
            return None

    def _keeps(self, sent: JsonObject, stored: Slice) -> bool:
        """Return whether the server kept what matters; report what it did not keep."""
        dropped = dropped_fields(sent, stored.spec)
        vital = vital_fields(dropped)
        if vital:
            _report_withheld(vital)
        if vital or not self.status.withheld:  # the empty slice that follows loses nothing, but the reason stays
            self._dropped[stored.name] = dropped
            self._report_dropped()
            self.status = replace(self.status, withheld=bool(vital))
        return not vital

    def _report_dropped(self) -> None:
        """Take note of what the server does not keep, and log what is new of it."""
        dropped = tuple(sorted({*self._lacks, *(path for found in self._dropped.values() for path in found)}))
        if dropped and dropped != self._told:
            self._told = dropped
            kv(
                _log,
                logging.ERROR,
                "the API server dropped fields",
                count=len(dropped),
                err=", ".join(dropped[:8]),
                hint=_hint(dropped),
            )
        self.status = replace(self.status, dropped=dropped)

    def _gone(self, one: Slice) -> bool:
        """Take it that a slice is not there any more; return whether that is news."""
        is_news = self._stored.deleted(one)
        if is_news:
            self._accepted.pop(one.name, None)
            self._dropped.pop(one.name, None)
        return is_news

    def _in_step(self) -> None:
        if self._wanted is None or not self._stored.is_known:
            return
        counted = self._form(self._wanted).counted is not NodeAllocatable.UNTOLD
        kept = (
            counted and not self.status.withheld and not any(".nodeAllocatable" in one for one in self.status.dropped)
        )
        self.status = replace(self.status, in_step=True, counted=kept, error="")
        self.settled()

    def _failed(self, error: NodeCpuError) -> None:
        if self.status.error != error.message:
            kv(_log, logging.WARNING, "slices not written, tried again for ever", pool=self._node, err=error)
        self.status = replace(self.status, in_step=False, error=error.message)


def _report_withheld(vital: tuple[str, ...]) -> None:
    words = "devices are withheld, the server dropped what they need"
    kv(_log, logging.ERROR, words, err=vital[0], hint=_hint(vital))


def _hint(dropped: tuple[str, ...]) -> str:
    gates = " and ".join(gates_of(dropped))
    return f"turn {gates} on in API server and scheduler" if gates else "see what changes slices on their way"


def _decoded(value: msgspec.Raw) -> Slice | None:
    try:
        return decode_slice(value)
    except BadRequest as error:
        kv(_log, logging.WARNING, "slice cannot be read, passed over", err=error)
        return None
