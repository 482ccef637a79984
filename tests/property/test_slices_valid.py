"""No slice is ever refused by the API server, whatever the machine and what is taken of it (D1, D2, D4)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from nodecpu.cpuset import CpuSet
from nodecpu.dra.devices import Dividing, devices_of, offered_devices
from nodecpu.dra.slices import Create, Form, NodeAllocatable, make_pool, plan_writes
from nodecpu.lab.slicerules import Features, kept, slice_faults
from nodecpu.policy.usable import usable_cpus
from nodecpu.topology.model import PcieRoot
from tests.unit.policy.machines import Shape, build_topology

GATES: Mapping[str, bool] = {"DRAListTypeAttributes": True, "DRANodeAllocatableResources": True}
MINORS = {NodeAllocatable.UNTOLD: 36, NodeAllocatable.MAPPINGS: 36, NodeAllocatable.RESOURCES: 37}

shapes = st.builds(
    Shape,
    sockets=st.integers(1, 2),
    nodes=st.integers(1, 3),
    cores=st.integers(1, 12),
    threads=st.integers(1, 4),
    l3_cores=st.sampled_from([0, 1, 3]),
    single_cores=st.lists(st.integers(0, 8), max_size=3).map(tuple),
)
forms = st.builds(Form, closed=st.booleans(), lists=st.booleans(), counted=st.sampled_from(NodeAllocatable))
dividings = st.builds(
    Dividing,
    grouping=st.sampled_from(["numa", "socket", "die", "l3", "machine", "individual"]),
    full_cores=st.booleans(),
    split=st.booleans(),
    pcie_roots=st.booleans(),
)
cpus = st.sets(st.integers(0, 71)).map(CpuSet)


@settings(max_examples=60, deadline=None)
@given(
    shape=shapes,
    form=forms,
    dividing=dividings,
    reserved=cpus,
    isolated=cpus,
    held=cpus,
    min_shared=st.integers(0, 5),
    roots=st.integers(0, 60),
)
def test_no_slice_is_refused(
    shape: Shape,
    form: Form,
    dividing: Dividing,
    reserved: CpuSet,
    isolated: CpuSet,
    held: CpuSet,
    min_shared: int,
    roots: int,
) -> None:
    """One-CPU devices, full cores with odd numbers, a device below the minimum, more roots than a device may tell."""
    topology = build_topology(shape)
    near = tuple(PcieRoot(name=f"pci0000:{n:02x}", cpus=topology.numa[0].cpus) for n in range(roots))
    topology = replace(topology, isolated=isolated & topology.online, pcie_roots=near)
    usable = usable_cpus(
        online=topology.online,
        isolated=topology.isolated,
        available=None,
        kubepods=None,
        reserved=reserved & topology.online,
    )
    devices = devices_of(topology, usable, dividing=dividing, driver="dra.cpu")
    claimed = {devices[0].name: devices[0].cpus - held} if devices and len(held) % 2 else {}
    offered = offered_devices(
        devices,
        usable=usable,
        held=held,
        claimed=claimed,
        min_shared=min_shared,
        cores=[core.cpus for core in topology.cores],
    )
    pool = make_pool("dra.cpu", "node1", offered, form)
    writes = plan_writes(pool, (), {})
    assert len(writes) == len(pool.pages)
    for write in writes:
        assert isinstance(write, Create)
        body = json.loads(json.dumps({"spec": write.spec}))
        stored = kept(body, Features(minor=MINORS[form.counted], gates=GATES))
        assert stored == body
        assert slice_faults(stored) == []
