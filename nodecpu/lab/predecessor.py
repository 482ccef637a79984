"""Makes a node look as if another driver, dra-driver-cpu, had prepared its claims (blocking, small files).

What that driver leaves behind: one CDI file for all claims, whose devices set the claim's variable; the kubelet's
checkpoint with its CDI ids; containers with that variable. Source: dra-driver-cpu pkg/driver/cdi.go.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from nodecpu.lab.cdi import read_specs
from nodecpu.lab.containers import ContainerRecord
from nodecpu.lab.jsontree import JsonObject
from nodecpu.lab.kubelet import ClaimInfo

_KIND: Final = "dra.k8s.io/cpu"


def hand_over(directory: Path, driver: str, claims: Iterable[ClaimInfo], containers: Iterable[ContainerRecord]) -> None:
    """Turn what our daemon prepared into what dra-driver-cpu would have; our own CDI files go."""
    known = read_specs(directory).devices
    variables: dict[str, str] = {}
    for claim in claims:
        env = [one for cdi_id in claim.cdi_ids(None) for one in known[cdi_id].env]
        variables[claim.uid] = next(one for one in env if one.startswith(f"DRA_CPUSET_{claim.uid}="))
        for device in claim.devices:
            device.cdi_device_ids[:] = [f"{_KIND}=claim-{claim.uid}"]
    for record in containers:
        mine = [uid for uid in variables if any(uid in cdi_id for cdi_id in record.config.cdi)]
        record.env[:] = [one for one in record.env if not one.startswith("DRA_CPUSET_")]
        record.env += (variables[uid] for uid in mine)
        record.config = replace(record.config, cdi=tuple(f"{_KIND}=claim-{uid}" for uid in mine))
    for file in directory.glob(f"{driver}-cpu_*.json"):
        file.unlink()
    devices: list[JsonObject] = [
        {"name": f"claim-{uid}", "containerEdits": {"env": [variable]}} for uid, variable in sorted(variables.items())
    ]
    spec = {"cdiVersion": "0.8.0", "kind": _KIND, "devices": devices}
    (directory / f"{driver}.json").write_text(json.dumps(spec))
