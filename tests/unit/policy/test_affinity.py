"""Affinity by expression: what annotations may say, and whom it draws to whom (S, A)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from nodecpu.ids import PodUID
from nodecpu.policy.affinity import Affinity, Expression, Operator, Subject, affinities_of, weights
from nodecpu.policy.facts import QoS
from nodecpu.policy.grants import ContainerGrant
from tests.unit.policy.given import create, pod_spec
from tests.unit.policy.machines import books


def subjects() -> tuple[list[Subject], dict[str, ContainerGrant]]:
    """Return three containers of two pods: web/app, web/log and db/app."""
    node = books()
    made = {
        "app": create(node, "web", mcpu=100, qos=QoS.BURSTABLE),
        "log": create(node, "web", name="log"),
        "db": create(node, "db", mcpu=1000, namespace="depot"),
    }
    specs = {"web": pod_spec("web"), "db": replace(pod_spec("db", namespace="depot"), labels={"tier": "back"})}
    return [Subject(grant=one, pod=specs[one.pod]) for one in made.values()], made


def drawn(container: str, tree: object, sign: int = 1, pod: str = "app") -> dict[str, int]:
    """Return to which of the containers a container of pod web is drawn by an annotation."""
    known, made = subjects()
    found = weights(affinities_of(container, tree, sign), made[pod].pod_uid, known)
    return {name: found[one.id] for name, one in made.items() if one.id in found}


def full(match: Mapping[str, object], **further: object) -> object:
    return {"app": [{"match": match, **further}]}


def test_short_form_names_containers_of_the_own_pod_in_both_directions() -> None:
    """A."""
    assert drawn("app", {"app": ["log"]}) == {"log": 1}
    assert drawn("log", {"app": ["log"]}) == {"app": 1}
    assert drawn("log", {"app": ["log"]}, sign=-1) == {"app": -1}
    assert drawn("other", {"app": ["log"]}) == {}


def test_scope_is_the_own_pod_unless_it_is_said() -> None:
    """A."""
    by_name = {"key": "name", "operator": "Equals", "values": ["app"]}
    assert drawn("app", full(by_name, weight=5)) == {"app": 5}
    everywhere = {"operator": "AlwaysTrue"}
    assert drawn("app", full(by_name, scope=everywhere)) == {"app": 1, "db": 1}
    depot = {"key": "namespace", "operator": "In", "values": ["depot", "yard"]}
    assert drawn("app", full(by_name, scope=depot), sign=-1) == {"db": -1}


@pytest.mark.parametrize(
    ("key", "operator", "values", "expected"),
    [
        ("pod/name", "Equals", ["db"], {"db"}),
        ("pod/name", "NotEqual", ["db"], {"app", "log"}),
        ("name", "In", ["log", "x"], {"log"}),
        ("name", "NotIn", ["log", "x"], {"app", "db"}),
        ("pod/labels/tier", "Exists", [], {"db"}),
        ("pod/labels/tier", "NotExists", [], {"app", "log"}),
        ("pod/labels/tier", "Equals", ["back"], {"db"}),
        ("labels/io.kubernetes.container.name", "Equals", ["log"], {"log"}),
        ("pod/name", "Matches", ["w*"], {"app", "log"}),
        ("pod/name", "MatchesNot", ["w*"], {"db"}),
        ("pod/name", "MatchesAny", ["x*", "d?"], {"db"}),
        ("pod/name", "MatchesNone", ["x*", "d?"], {"app", "log"}),
        ("qosclass", "Equals", ["BestEffort"], {"log"}),
        ("pod/qosclass", "Equals", ["Guaranteed"], {"db"}),
        (":namespace:pod/name:name", "Equals", ["depot:db:app"], {"db"}),
        (":::pod/name:pod/labels/tier", "Equals", ["web:"], {"app", "log"}),
        (":pod/labels/tier:pod/labels/x", "Exists", [], {"db"}),
        ("tags/x", "Exists", [], set()),
    ],
)
def test_expressions(key: str, operator: str, values: list[str], expected: set[str]) -> None:
    """A."""
    match: dict[str, object] = {"key": key, "operator": operator, "values": values}
    assert set(drawn("app", full(match, scope={"operator": "AlwaysTrue"}))) == expected


def many(count: int) -> object:
    return {"app": [{"match": {"key": "name", "operator": "Exists"}}] * count}


def globs(*values: str) -> object:
    return full({"key": "name", "operator": "MatchesAny", "values": list(values)}, scope={"operator": "AlwaysTrue"})


@pytest.mark.parametrize(
    "tree",
    [
        many(33),
        globs(*["a"] * 64),
        globs(*["a*"] * 32),
        globs("*" * 63),
        globs("a" * 351),
        full({"key": ":" + ":".join(["q"] * 65), "operator": "Exists"}),
    ],
    ids=["affinities", "values", "asterisks in many", "asterisks in one", "long value", "joint keys"],
)
def test_more_than_is_sensible_is_not_read(tree: object) -> None:
    """A: each is held against every container of the node, and who writes annotations holds nobody up."""
    with pytest.raises(ValueError, match="at most 32 with 64 are read"):
        affinities_of("app", tree, 1)
    assert affinities_of("other", tree, 1) == (), "what is another container's is no fault of this one"


def test_as_much_as_is_sensible_is_read() -> None:
    """A."""
    assert len(affinities_of("app", many(32), 1)) == 32
    assert affinities_of("app", globs(*["a"] * 63), 1)
    assert affinities_of("app", globs(*["a*"] * 31), 1)
    assert affinities_of("app", globs("a" * 350), 1)


def test_a_static_pod_has_the_uid_that_the_api_server_knows() -> None:
    """A, N1: the runtime calls it by a hash; before the API server told of it there is that alone."""
    known, made = subjects()
    app = next(one for one in known if one.grant == made["app"])
    assert app.pod is not None
    told = replace(app, pod=replace(app.pod, uid=PodUID("mirror")))
    untold = replace(app, pod=None)
    for subject, uid in ((told, "mirror"), (untold, "pod-web")):
        for asked, holds in ((uid, True), ("other", False)):
            found = Expression(key="pod/uid", operator=Operator.EQUALS, values=(asked,)).among([subject])
            assert list(found) == [subject] * holds


def test_weights_add_up_are_bounded_and_turned_by_anti_affinity() -> None:
    """A."""
    match = {"key": "name", "operator": "Equals", "values": ["log"]}
    two = {"app": [{"match": match, "weight": 7}, {"match": match, "weight": -3}]}
    assert drawn("app", two) == {"log": 4}
    assert drawn("app", two, sign=-1) == {"log": -4}
    assert drawn("app", full(match, weight=5000)) == {"log": 1000}
    assert drawn("app", full(match, weight=-5000)) == {"log": -1000}
    assert drawn("app", full(match, weight=0)) == {"log": 1}  # as if none were written
    assert drawn("app", full(match, scope={"operator": "AlwaysTrue"}, weight=2)) == {"log": 2}
    assert drawn("app", {"app": [{"match": match}, {"match": match, "weight": -1}]}) == {}


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        (None, "not a table of containers"),
        ({1: []}, "not a table of containers"),
        ({"app": [], 1: []}, "not a table of containers"),
        ({"app": ["log"], "log": [{"match": {"operator": "AlwaysTrue"}}]}, "app: match is wanted"),
        ({"app": {"match": 1}}, "app: not a list"),
        ({"app": [{"weight": 1}]}, "app: match is wanted"),
        ({"app": [{"match": {}, "near": 1}]}, "scope and weight are allowed"),
        ({"app": [{"match": "log"}]}, "app: match: key, operator and values are allowed"),
        ({"app": [{"match": {"key": "name", "operator": "Like", "values": ["x"]}}]}, "there is no operator 'Like'"),
        ({"app": [{"match": {"key": "name", "operator": "Equals", "values": []}}]}, "Equals takes one value"),
        ({"app": [{"match": {"key": "name", "operator": "Exists", "values": ["x"]}}]}, "Exists takes no values"),
        ({"app": [{"match": {"operator": "Exists"}}]}, "a key is wanted"),
        ({"app": [{"match": {"key": 1, "operator": "Exists"}}]}, "key is a text"),
        ({"app": [{"match": {"key": "n", "operator": "Exists"}, "weight": "5"}]}, "weight is no whole number"),
        ({"other": [{"match": {"operator": "AlwaysTrue"}, "scope": []}]}, "other: scope: key, operator"),
    ],
)
def test_what_is_not_understood_is_said_in_words(tree: object, words: str) -> None:
    """A: in whichever container's part it is."""
    with pytest.raises(ValueError, match=words):
        affinities_of("app", tree, 1)


def test_expressions_are_values() -> None:
    one = Affinity(match=Expression(key="name", operator=Operator.IN, values=("a",)), weight=1)
    assert affinities_of("b", {"b": ["a"]}, 1) == (one,)
