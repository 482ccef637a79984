"""What is asked of the cluster: least rights, classes by attributes that devices have, slices tied to their node."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nodecpu.cli import main
from nodecpu.dra.devices import Dividing, devices_of
from nodecpu.dra.opaque import Entry, Opaque, asked_for
from nodecpu.kube.manifests import SLICE_VERSIONS, Choices, device_classes, manifests, rules, token_rules
from nodecpu.kube.renewal import read_token
from nodecpu.lab.apiserver import DRIVERS_RIGHTS
from nodecpu.lab.machine import parse_machine, write_machine
from nodecpu.policy.usable import usable_cpus
from nodecpu.preflight.cluster import rights_of
from nodecpu.topology.sysfs import read_topology
from tests.support import ROOT
from tests.unit.kube.test_certificate import node_token

PLAIN = Choices()


def plain(found: object) -> Any:
    return json.loads(json.dumps(found))


def of_kind(kind: str, choices: Choices = PLAIN) -> dict[str, Any]:
    (found,) = [one for one in manifests(choices) if one["kind"] == kind]
    written: dict[str, Any] = plain(found)
    return written


def classes(choices: Choices = PLAIN) -> Mapping[str, Any]:
    return {one["metadata"]["name"]: one["spec"] for one in plain(list(device_classes(choices)))}


def test_rights_are_those_that_the_lab_grants() -> None:
    """Every scenario is played with these rights: they suffice, and each of them is needed or would not be here."""
    asked = plain([*rules(Choices(topology=True)), *token_rules()])
    pairs = {(verb, plural) for rule in asked for plural in rule["resources"] for verb in rule["verbs"]}
    assert pairs == DRIVERS_RIGHTS
    assert all("*" not in rule["verbs"] + rule["resources"] + rule["apiGroups"] for rule in asked)


def test_rights_that_are_checked_before_the_start_are_those_that_are_asked_for() -> None:
    """Token and topology included, where there are such."""
    token = read_token(node_token("n1"))
    assert token is not None
    for choices, rights in (
        (PLAIN, rights_of(None, topology=False)),
        (replace(PLAIN, topology=True), rights_of(token, topology=True)),
    ):
        checked = {(right.group, right.what, tuple(right.verbs)) for right in rights}
        granted = [*rules(choices), *(token_rules() if choices.topology else ())]
        assert checked == {(r["apiGroups"][0], r["resources"][0], tuple(r["verbs"])) for r in plain(granted)}


def test_rights_on_what_is_optional_are_asked_for_on_request_only() -> None:
    assert "noderesourcetopologies" not in json.dumps(plain(list(rules(Choices()))))


def test_account_of_role_and_policy_is_one() -> None:
    choices = Choices(namespace="cpu-system")
    binding = of_kind("ClusterRoleBinding", choices)
    (subject,) = binding["subjects"]
    account = of_kind("ServiceAccount", choices)["metadata"]
    assert (subject["namespace"], subject["name"]) == (account["namespace"], account["name"])
    (condition,) = of_kind("ValidatingAdmissionPolicy", choices)["spec"]["matchConditions"]
    assert f"system:serviceaccount:{account['namespace']}:{account['name']}" in condition["expression"]
    assert binding["roleRef"]["name"] == of_kind("ClusterRole", choices)["metadata"]["name"]


def test_tokens_can_be_asked_for_of_this_account_only_and_for_the_own_node() -> None:
    """Else whoever has one node's token could have any node's."""
    (rule,) = plain(list(token_rules()))
    assert rule["resourceNames"] == [of_kind("ServiceAccount")["metadata"]["name"]]
    policy = of_kind("ValidatingAdmissionPolicy")["spec"]
    matched = [r for r in policy["matchConstraints"]["resourceRules"] if "serviceaccounts/token" in r["resources"]]
    assert [r["operations"] for r in matched] == [["CREATE"]]
    (written,) = [v["expression"] for v in policy["variables"] if v["name"] == "writtenNode"]
    assert "boundObjectRef" in written
    assert of_kind("Role")["metadata"]["namespace"] == of_kind("ServiceAccount")["metadata"]["namespace"]


def test_policy_covers_every_version_and_way_of_writing_slices_and_fails_closed() -> None:
    policy = of_kind("ValidatingAdmissionPolicy")["spec"]
    assert policy["failurePolicy"] == "Fail"
    slices = next(r for r in policy["matchConstraints"]["resourceRules"] if r["resources"] == ["resourceslices"])
    assert slices["apiVersions"] == list(SLICE_VERSIONS)
    assert slices["operations"] == ["CREATE", "UPDATE", "DELETE"]
    binding = of_kind("ValidatingAdmissionPolicyBinding")["spec"]
    assert binding["validationActions"] == ["Deny"]
    assert binding["policyName"] == of_kind("ValidatingAdmissionPolicy")["metadata"]["name"]


def test_variables_of_the_policy_are_defined_before_they_are_used() -> None:
    policy = of_kind("ValidatingAdmissionPolicy")["spec"]
    known: set[str] = set()
    for variable in policy["variables"]:
        assert set(re.findall(r"variables\.(\w+)", variable["expression"])) <= known
        known.add(variable["name"])
    text = json.dumps(policy["validations"])
    assert set(re.findall(r"variables\.(\w+)", text)) <= known


def test_classes_ask_for_attributes_that_devices_have(tmp_path: Path) -> None:
    """D2: and for those only if they are there, since a missing one is an error in CEL."""
    write_machine(parse_machine("2 sockets, 2 nodes, 2 cores, 2 threads, isolated 2-3"), tmp_path)
    topology = read_topology(tmp_path)
    usable = usable_cpus(
        online=topology.online,
        isolated=topology.isolated,
        available=None,
        kubepods=None,
        reserved=topology.online - topology.online,
    )
    devices = devices_of(topology, usable, dividing=Dividing(split=True), driver="dra.cpu")
    published = {name for device in devices for name in device.attributes}
    for name, spec in classes(Choices(numa_nodes=2)).items():
        expression = spec["selectors"][0]["cel"]["expression"]
        used = set(re.findall(r'device\.attributes\["([^"]+)"\]\.(\w+)', expression))
        assert {f"{domain}/{attribute}" for domain, attribute in used} <= published, name
        for domain, attribute in used:
            assert f'has(device.attributes["{domain}"].{attribute})' in expression, name


def test_full_cores_class_is_understood_by_our_own_decoder() -> None:
    """C10."""
    (config,) = classes()["dra.cpu-full-cores"]["config"]
    opaque = config["opaque"]
    entry = Entry(
        source="FromClass",
        opaque=Opaque(driver=opaque["driver"], parameters=msgspec.Raw(msgspec.json.encode(opaque["parameters"]))),
    )
    (asked,) = asked_for([entry], "dra.cpu", ["cpus"], "claim shop/web")
    assert asked.wishes is not None
    assert asked.wishes.full_cores
    assert asked.wishes.strict


def test_names_follow_the_driver() -> None:
    found = classes(Choices(driver="cpu.example.com", numa_nodes=1))
    assert "cpu.example.com" in found
    assert "cpu.example.com-numa-0" in found
    assert "dra.cpu" not in json.dumps(found)


def test_verb_prints_yaml_that_reads_back(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["manifests", "--topology-crd", "--numa-nodes", "1"]) == 0
    documents = [msgspec.yaml.decode(part.encode()) for part in capsys.readouterr().out.split("---\n")]
    assert documents == plain(list(manifests(Choices(topology=True, topology_crd=True, numa_nodes=1))))
    assert main(["manifests", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["kind"] == "List"
    assert listed["items"] == plain(list(manifests(Choices())))


def test_access_page_tells_the_rights_that_are_asked_for() -> None:
    page = (ROOT / "docs" / "how-to" / "access.md").read_text()
    for rule in plain([*rules(Choices(topology=True)), *token_rules()]):
        assert f"| {rule['resources'][0]} | {', '.join(rule['verbs'])} |" in page
