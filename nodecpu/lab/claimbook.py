"""What the lab knows of claims from outside the daemon: the API object, the CDI spec, the containers that hold them."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from nodecpu.cpuset import CpuSet
from nodecpu.lab.cdi import read_specs
from nodecpu.lab.cgroups import Cgroups
from nodecpu.lab.cluster import Cluster
from nodecpu.lab.containers import ContainerRecord
from nodecpu.lab.jsontree import JsonObject, leaf, nodes, text
from nodecpu.lab.objects import CLAIMS, ApiError, Key
from nodecpu.lab.scenario import ClaimPlan

_CLAIM_DEVICE = re.compile(r".*/cpu=claim-(?P<uid>[0-9a-f-]{36})(-[0-9]+)?")


class ClaimBook:
    """Looks claims up by the scenario's names."""

    def __init__(self, cluster: Cluster, cdi: Path) -> None:
        self._cluster = cluster
        self._cdi = cdi
        self._objects: dict[str, JsonObject] = {}

    def object(self, plan: ClaimPlan) -> JsonObject:
        """Return the claim's object, the last one known if it was deleted."""
        try:
            found = self._cluster.store.get(Key(kind=CLAIMS, namespace=plan.namespace, name=plan.name))
        except ApiError:
            if plan.name not in self._objects:
                raise
            return self._objects[plan.name]
        self._objects[plan.name] = found
        return found

    def unknown(self, name: str) -> JsonObject:
        """Return a claim that nobody has ever heard of, allocated from the driver."""
        allocation: JsonObject = {"devices": {"results": [{"driver": self._cluster.driver}]}}
        metadata: JsonObject = {"namespace": "default", "name": name, "uid": str(uuid.uuid4())}
        return {"metadata": metadata, "status": {"allocation": allocation}}

    def uid(self, plan: ClaimPlan) -> str:
        """Return the claim's UID."""
        return text(self.object(plan), "metadata", "uid")

    def files(self, plan: ClaimPlan) -> tuple[Path, ...]:
        """Return the claim's CDI spec files."""
        return tuple(sorted(self._cdi.glob(f"*{self.uid(plan)}*.json"))) if self._cdi.is_dir() else ()

    def cpus(self, plan: ClaimPlan) -> CpuSet | None:
        """Return the CPUs that the claim's CDI devices give, None if they give none."""
        uid = self.uid(plan)
        for edits in read_specs(self._cdi).devices.values():
            for variable in edits.env:
                name, _, value = variable.partition("=")
                if name == f"DRA_CPUSET_{uid}":
                    return CpuSet.parse(value)
        return None

    def metadata(self, record: ContainerRecord) -> dict[str, CpuSet]:
        """Return the CPUs that each device metadata file of a container tells, by the file's path in there."""
        known = read_specs(self._cdi).devices
        mounts = [mount for cdi_id in record.config.cdi for mount in known[cdi_id].mounts]
        return {inside: _cpus_told(_metadata(Path(host).read_text())) for host, inside in mounts}

    def resolve(self, plans: Mapping[str, ClaimPlan], key: str) -> str:
        """Return what ``uid:NAME`` or ``cpus:NAME`` stands for in a pod's environment."""
        what, _, name = key.partition(":")
        return self.uid(plans[name]) if what == "uid" else str(self.cpus(plans[name]) or "")

    def intrusion(self, running: Sequence[ContainerRecord], cgroups: Cgroups) -> str:
        """Return who runs on CPUs of a claim that others hold, "" if nobody does (G9)."""
        held: dict[str, CpuSet] = {}
        for record in running:
            for uid, cpus in holdings(record).items():
                held[uid] = held.get(uid, CpuSet()) | cpus
        for record in running:
            effective = cgroups.effective(record.directory)
            own = holdings(record)
            for uid, cpus in held.items():
                if effective is not None and uid not in own and effective.cpus & cpus:
                    return f"{record.label} runs on {effective.cpus & cpus} of claim {uid}"
        return ""


def _metadata(text: str) -> JsonObject:
    """Return what a reader of Kubernetes 1.36 takes of a metadata file: the first object that it knows (KEP-5304)."""
    told: list[JsonObject] = [json.loads(line) for line in text.splitlines()]
    return next(one for one in told if one.get("apiVersion") == "metadata.resource.k8s.io/v1alpha1")


def _cpus_told(metadata: JsonObject) -> CpuSet:
    devices = [device for request in nodes(metadata, "requests") for device in nodes(request, "devices")]
    lists = [leaf(device, "attributes", "dra.cpu/cpuIDs", "ints") for device in devices]
    return CpuSet(cpu for one in lists if isinstance(one, list) for cpu in one if isinstance(cpu, int))


def holdings(record: ContainerRecord) -> dict[str, CpuSet]:
    """Return the claims that a container holds by CDI, with their CPUs: forged variables do not count."""
    found: dict[str, CpuSet] = {}
    for device in record.config.cdi:
        matched = _CLAIM_DEVICE.fullmatch(device)
        for variable in record.env:
            name, _, value = variable.partition("=")
            if matched is not None and name == f"DRA_CPUSET_{matched['uid']}":
                found[matched["uid"]] = CpuSet.parse(value)
    return found
