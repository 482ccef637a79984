"""What a message on the lab's sockets says, in one line for people (pure)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from nodecpu.lab.trace import Sent
from nodecpu.proto import dra_pb2, nri_pb2

_UID: Final = re.compile(r"([0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_ACTORS: Final = {
    "plugin": "nodecpu → runtime",
    "runtime": "runtime → nodecpu",
    "kubelet": "kubelet → nodecpu",
    "driver": "nodecpu → kubelet",
    "node": "nodecpu → API server",
}


def told(sent: Sent, names: Mapping[str, str]) -> str:
    """Return who told whom what; ``names`` gives container ids their labels. UIDs are cut to eight characters."""
    who = _ACTORS.get(sent.sender, sent.sender)
    if sent.link == "api" and sent.sender == "kubelet":
        who = "kubelet → API server"
    line = f"{sent.link:<12} {who:<20} {sent.call} {_content(sent, names)}".rstrip()
    return _UID.sub(r"\1…", line)


def _content(sent: Sent, names: Mapping[str, str]) -> str:
    match sent.message:
        case nri_pb2.CreateContainerResponse() as reply:
            own = _resources(reply.adjust.linux.resources)
            return "; ".join(filter(None, (f"= {own}" if own else "= nothing to say", _updates(reply.update, names))))
        case (
            nri_pb2.SynchronizeResponse()
            | nri_pb2.StopContainerResponse()
            | nri_pb2.UpdateContainerResponse()
            | nri_pb2.UpdateContainersRequest()
        ) as reply:
            return f"= {_updates(reply.update, names) or 'nothing to change'}"
        case nri_pb2.ConfigureResponse() as configured:
            return f"= events 0x{configured.events:x}"
        case dra_pb2.NodePrepareResourcesResponse() as prepared:
            return "= " + "; ".join(_prepared(result) for result in prepared.claims.values())
        case dra_pb2.NodeUnprepareResourcesResponse() as unprepared:
            return "= " + "; ".join(result.error or "done" for result in unprepared.claims.values())
        case _:
            return sent.text


def is_worth_telling(sent: Sent) -> bool:
    """Return whether a line about a message tells a reader anything: empty answers do not."""
    if sent.message is None:
        return sent.link != "api" or not sent.call.startswith(("watch", "list"))
    return bool(sent.message.ListFields()) or sent.sender in ("kubelet", "runtime")


def _prepared(result: dra_pb2.NodePrepareResourceResponse) -> str:
    if result.error:
        return f"error: {result.error}"
    return ", ".join(f"{one.device_name}: {' '.join(one.cdi_device_ids)}" for one in result.devices) or "no devices"


def _updates(updates: Iterable[nri_pb2.ContainerUpdate], names: Mapping[str, str]) -> str:
    return ", ".join(
        f"{names.get(update.container_id, update.container_id[:8])} to {_resources(update.linux.resources)}"
        for update in updates
    )


def _resources(resources: nri_pb2.LinuxResources) -> str:
    cpu = resources.cpu
    parts = [f"cpus {cpu.cpus}" if cpu.cpus else "", f"mems {cpu.mems}" if cpu.mems else ""]
    if cpu.HasField("shares"):
        parts.append(f"shares {cpu.shares.value}")
    if cpu.HasField("quota"):
        parts.append(f"quota {cpu.quota.value}")
    return " ".join(filter(None, parts))
