"""Every recipe of the claim cookbook is allocated, prepared and run as the document has it (D1, D2, L1)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec
import pytest

from nodecpu.kube.manifests import Choices, device_classes
from nodecpu.lab.apiserver import now
from nodecpu.lab.jsontree import Json, JsonObject, node, nodes, text
from nodecpu.lab.matching import allocate_spec, selects
from nodecpu.lab.objects import CLAIMS, CLASSES, SLICES, Key
from nodecpu.lab.peerdriver import PeerDriver
from nodecpu.lab.scheduler import pool_of
from nodecpu.lab.stage import NODE_NAME, Stage, StageSettings, opened
from tests.support import ROOT

pytestmark = pytest.mark.lab

PEERS = {"gpu.example.com": ("gpu.example.com", {"resource.kubernetes.io/numaNode": {"int": 2}})}
PEERS["dra.net"] = ("dranet", {"dra.net/numaNode": {"int": 1}})
"""Other drivers with a device each: their class, and the attributes of the device."""

RUNS_ON = {
    "one-node": {"main": "0-1"},
    "two-nodes": {"main": "0-1,4-5", "left": "0-1", "right": "4-5"},
    "next-to-gpu": {"main": "8-11"},
    "next-to-nic": {"main": "4-5"},
    "full-cores": {"main": "0-3"},
    "shared": {"reader": "0-1", "writer": "0-1"},
    "exclusive-plus-shared": {"main": "0-3"},
    "single-cpus": {"main": "0-3"},
}
"""Where the containers of each recipe's pod run on an empty n4c16 with CPU 15 reserved."""

OF_SINGLE_CPUS = ("single-cpus",)
"""Recipes for nodes whose devices are single CPUs; they are the last ones, the others are for groups of CPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The objects of one block."""

    name: str
    objects: tuple[JsonObject, ...]

    def of_kind(self, kind: str) -> list[JsonObject]:
        return [one for one in self.objects if one["kind"] == kind]


def recipes() -> Iterator[Recipe]:
    page = (ROOT / "docs" / "how-to" / "claims.md").read_text()
    for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL):
        objects = tuple(msgspec.yaml.decode(part) for part in block.split("---\n"))
        (pod,) = [one for one in objects if one["kind"] == "Pod"]
        yield Recipe(name=pod["metadata"]["name"], objects=objects)


def test_every_recipe_is_tried() -> None:
    assert [recipe.name for recipe in recipes()] == list(RUNS_ON)


def claim_names(recipe: Recipe, pod: JsonObject) -> dict[str, tuple[str, JsonObject]]:
    """Return the pod's claims by its names for them: the claim's name, and its spec."""
    specs = {
        text(one, "metadata", "name"): node(one, "spec", "spec") for one in recipe.of_kind("ResourceClaimTemplate")
    }
    specs |= {text(one, "metadata", "name"): node(one, "spec") for one in recipe.of_kind("ResourceClaim")}
    found = {}
    for use in nodes(pod, "spec", "resourceClaims"):
        template, name = text(use, "resourceClaimTemplateName"), text(use, "resourceClaimName")
        found[text(use, "name")] = (name or f"{recipe.name}-{text(use, 'name')}", specs[template or name])
    return found


def plain(value: object) -> JsonObject:
    found: JsonObject = msgspec.json.decode(msgspec.json.encode(value))
    return found


def populate(stage: Stage) -> None:
    """Make the classes, and the slices of other drivers."""
    for one in (plain(made) for made in device_classes(Choices(numa_nodes=4))):
        if text(one, "metadata", "name") != "dra.cpu":  # the stage has it
            stage.cluster.create(CLASSES, "", one)
    for driver, (class_name, attributes) in PEERS.items():
        selector: JsonObject = {"cel": {"expression": f'device.driver == "{driver}"'}}
        metadata: JsonObject = {"name": class_name}
        stage.cluster.create(CLASSES, "", {"metadata": metadata, "spec": {"selectors": [selector]}})
        device: JsonObject = {"name": "dev0", "attributes": dict(attributes)}
        pool: JsonObject = {"name": NODE_NAME, "generation": 1, "resourceSliceCount": 1}
        spec: JsonObject = {"driver": driver, "nodeName": NODE_NAME, "pool": pool, "devices": [device]}
        stage.cluster.create(SLICES, "", {"metadata": {"name": f"peer-{driver}"}, "spec": spec})


def allocate(stage: Stage, name: str, spec: JsonObject, template: str) -> None:
    store = stage.cluster.store
    metadata: JsonObject = {"name": name}
    if template:
        metadata["annotations"] = {"resource.kubernetes.io/pod-claim-name": template}
    made = stage.cluster.create(CLAIMS, "default", {"metadata": metadata, "spec": spec})
    slices = store.find(SLICES)
    pools = [pool_of(slices, driver, NODE_NAME) for driver in ("dra.cpu", *PEERS)]
    others = [one for one in store.find(CLAIMS) if one["metadata"] != made["metadata"]]
    allocation = allocate_spec(pools, others, spec, lambda name: class_of(stage, name), now=now())
    key = Key(kind=CLAIMS, namespace="default", name=name)
    stage.cluster.update(key, made | {"status": {"allocation": allocation}}, status=True)


def class_of(stage: Stage, name: str) -> JsonObject:
    return stage.cluster.store.get(Key(kind=CLASSES, namespace="", name=name))


async def cook(stage: Stage, recipe: Recipe) -> Mapping[str, str]:
    """Run a recipe's pod; return where its containers run, and leave nothing behind."""
    (pod,) = recipe.of_kind("Pod")
    claims = claim_names(recipe, pod)
    templates = {
        text(one, "name") for one in nodes(pod, "spec", "resourceClaims") if "resourceClaimTemplateName" in one
    }
    for called, (name, spec) in claims.items():
        allocate(stage, name, spec, called if called in templates else "")
    generated = {called: name for called, (name, _) in claims.items()}
    annotations = node(pod, "metadata", "annotations")
    made = stage.cluster.create_pod("default", recipe.name, node(pod, "spec"), annotations, generated=generated)
    run = await stage.kubelet.start_pod(made, tries=5)
    found: dict[str, str] = {}
    for name, record in run.containers.items():
        effective = stage.cgroups.effective(record.directory)
        assert effective is not None
        found[name] = str(effective.cpus)
    await stage.kubelet.stop_pod("default", recipe.name, tries=3)
    for name, _ in claims.values():
        stage.cluster.delete_claim("default", name)
    return found


async def cooked(stage: Stage) -> dict[str, Mapping[str, str]]:
    found: dict[str, Mapping[str, str]] = {}
    for recipe in recipes():
        if recipe.name in OF_SINGLE_CPUS:
            stage.configure({"dra": {"grouping": "individual"}})
            await stage.reload_daemon(wait=True)
            await stage.until(lambda: "cpudev000" in stage.cluster.capacities(), "single CPUs", timeout_s=30)
        found[recipe.name] = await cook(stage, recipe)
    return found


def test_recipes_come_out_as_the_cookbook_says() -> None:
    async def play() -> dict[str, Mapping[str, str]]:
        settings = StageSettings(machine="n4c16", daemon={"policy": {"reserved": "15"}})
        async with opened(settings) as stage:
            peers = [PeerDriver(stage.root / "kubelet", driver) for driver in PEERS]
            try:
                for peer in peers:
                    await peer.start()
                await stage.start_daemon(wait=True)
                for driver in PEERS:
                    await stage.until_registered(driver)
                populate(stage)
                return await cooked(stage)
            finally:
                for peer in peers:
                    await peer.stop()

    assert asyncio.run(play()) == RUNS_ON


DEVICE: Json = {
    "attributes": {
        "dra.cpu/isolated": {"bool": True},
        "dra.cpu/coreType": {"string": "p-core"},
        "resource.kubernetes.io/numaNode": {"int": 1},
    }
}


@pytest.mark.parametrize(
    ("name", "passes"),
    [
        ("dra.cpu", True),
        ("dra.cpu-one-numa", True),
        ("dra.cpu-numa-1", True),
        ("dra.cpu-numa-0", False),
        ("dra.cpu-isolated", True),
        ("dra.cpu-performance", True),
        ("dra.cpu-full-cores", True),
    ],
)
def test_classes_select_as_their_names_say(name: str, *, passes: bool) -> None:
    """The selectors are evaluated, not read."""
    classes = {text(one, "metadata", "name"): one for one in map(plain, device_classes(Choices(numa_nodes=2)))}
    assert isinstance(DEVICE, dict)
    expressions = [text(one, "cel", "expression") for one in nodes(classes[name], "spec", "selectors")]
    assert all(selects(one, "dra.cpu", DEVICE) for one in expressions) is passes
    assert not all(selects(one, "other", DEVICE) for one in expressions)
