"""Planned restarts wait for terminating containers (R6): what is waited for, how long, and who may not wait."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import pytest

from nodecpu.cli import main
from nodecpu.ending import await_ends, being_stopped, hold_off, listed, terminating
from nodecpu.errors import LinkError
from nodecpu.ids import ContainerID, PodUID, SandboxID
from nodecpu.kube.podspec import decode_pod
from nodecpu.policy.facts import ContainerState, PodSpec, QoS
from nodecpu.policy.grants import ContainerGrant, Group


def container(name: str, *, pod: str = "web-0", state: ContainerState = ContainerState.RUNNING) -> ContainerGrant:
    return ContainerGrant(
        id=ContainerID(f"id-{pod}-{name}"),
        sandbox_id=SandboxID(f"sandbox-{pod}"),
        pod_uid=PodUID(f"uid-{pod}"),
        namespace="shop",
        pod=pod,
        name=name,
        group=Group.SHARED,
        pool="root",
        qos=QoS.BURSTABLE,
        state=state,
        path=f"/kubepods/{pod}/{name}",
    )


def pod(name: str, *, ends: bool) -> PodSpec:
    uid = PodUID(f"uid-{name}")
    return PodSpec(
        uid=uid,
        runtime_uid=uid,
        namespace="shop",
        name=name,
        qos=QoS.BURSTABLE,
        containers=MappingProxyType({}),
        terminating=ends,
    )


def known(*pods: PodSpec) -> Mapping[PodUID, PodSpec]:
    return {one.uid: one for one in pods}


def test_containers_of_pods_that_are_to_end_terminate_until_they_have_stopped() -> None:
    """R6."""
    pods = known(pod("web-0", ends=True), pod("db-0", ends=False))
    containers = [
        container("side"),
        container("app"),
        container("init", state=ContainerState.STOPPED),
        container("app", pod="db-0"),
        container("app", pod="stranger"),
    ]
    assert terminating(containers, lambda one: pods.get(one.pod_uid)) == ("shop/web-0/app", "shop/web-0/side")


@pytest.mark.parametrize("when", ["2026-11-30T12:00:00Z", None])
def test_pod_terminates_from_its_deletion_on(when: str | None) -> None:
    """R6. Source: core/v1 ObjectMeta, deletionTimestamp."""
    ends = "" if when is None else f', "deletionTimestamp": "{when}"'
    data = f'{{"metadata": {{"uid": "u", "namespace": "shop", "name": "web"{ends}}}, "spec": {{"containers": []}}}}'
    assert decode_pod(data.encode()).terminating is (when is not None)


class Daemon:
    """Answers in turn, the last answer for ever; time passes by sleeping alone."""

    def __init__(self, answers: Sequence[tuple[str, ...] | LinkError]) -> None:
        self.answers = list(answers)
        self.now_s = 0.0
        self.said: list[str] = []

    def ask(self) -> tuple[str, ...]:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, LinkError):
            raise answer
        return answer

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def wait(self, wait_s: float = 10.0) -> None:
        await_ends(self.ask, wait_s=wait_s, clock=lambda: self.now_s, sleep=self.sleep, told=self.said.append)


def test_nothing_is_waited_for_where_nothing_terminates() -> None:
    daemon = Daemon([()])
    daemon.wait()
    assert (daemon.now_s, daemon.said) == (0.0, [])


def test_wait_ends_with_the_last_container_and_tells_each_change_once() -> None:
    """R6."""
    daemon = Daemon([("a", "b"), ("a", "b"), ("b",), ()])
    daemon.wait()
    assert daemon.said == ["waiting for the end of a, b", "waiting for the end of b"]
    assert daemon.now_s == 1.5


def test_wait_is_bounded_and_its_end_says_what_is_left_and_what_to_do() -> None:
    """R6: nothing is restarted then."""
    daemon = Daemon([("shop/web-0/app",)])
    with pytest.raises(LinkError, match="not restarted: shop/web-0/app did not end within 10 s") as failed:
        daemon.wait()
    assert "--now" in failed.value.hint
    assert daemon.now_s == 10.0


def test_daemon_that_does_not_answer_is_not_waited_for() -> None:
    daemon = Daemon([LinkError("the daemon is not running")])
    daemon.wait()
    assert daemon.said == ["what terminates is not known: the daemon is not running"]


def test_many_names_are_cut_short() -> None:
    assert listed(tuple("abcdefg")) == "a, b, c, d, e and 2 more"


def test_verb_waits_for_nothing_where_it_is_told_so(tmp_path: Path) -> None:
    assert main(["restart", "--now", "--only-wait", "--socket", f"{tmp_path}/none"]) == 0


@pytest.fixture
def restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a file that is there once systemctl has been called."""
    program, called = tmp_path / "systemctl", tmp_path / "called"
    program.write_text(f"#!/bin/sh\ntouch {called}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return called


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        pytest.param("[policy]\nreserved = 'many'\n", 78, "not restarted: configuration", id="wrong"),
        pytest.param("[policy]\navailable = '60000'\n", 1, "not restarted: no CPU is left to use", id="no CPU"),
    ],
)
def test_verb_leaves_a_daemon_alone_that_would_not_start_again(
    text: str, code: int, words: str, restarted: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Even at once, and whether or not anything terminates."""
    config = restarted.with_name("nodecpu.toml")
    config.write_text(text)
    assert main(["restart", "--now", "--config", str(config)]) == code
    assert words in capsys.readouterr().err
    assert not restarted.exists()
    config.write_text("")
    assert main(["restart", "--dry-run", "--config", str(config)]) == 0
    assert not restarted.exists()
    assert main(["restart", "--now", "--config", str(config)]) == 0
    assert restarted.exists()


def test_only_what_terminates_and_has_processes_yet_is_being_stopped() -> None:
    """R6: a pod whose object stays, for a finalizer say, holds off nobody once its processes have ended."""
    pods = known(pod("web-0", ends=True), pod("db-0", ends=False))
    containers = [container("app"), container("side"), container("app", pod="db-0"), container("app", pod="stranger")]
    looked: list[str] = []

    def is_populated(path: str) -> bool:
        looked.append(path)
        return path.endswith("app")

    assert being_stopped(containers, lambda one: pods.get(one.pod_uid), is_populated) == ("shop/web-0/app",)
    assert len(looked) == 2, "cgroups of pods that do not terminate are not looked at"


class Held:
    """A daemon that has just started; time passes by pausing alone."""

    def __init__(self, answers: Sequence[tuple[str, ...]], *, stop_at_s: float = 1e9) -> None:
        self.answers = list(answers)
        self.stop_at_s = stop_at_s
        self.now_s = 0.0
        self.said: list[str] = []

    def ask(self) -> tuple[str, ...]:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    async def pause(self, seconds: float) -> bool:
        self.now_s += seconds
        return self.now_s >= self.stop_at_s

    def wait(self, limit_s: float = 10.0) -> None:
        asyncio.run(
            hold_off(self.ask, limit_s=limit_s, clock=lambda: self.now_s, pause=self.pause, told=self.said.append)
        )


def test_nothing_is_held_off_where_nothing_is_being_stopped() -> None:
    """R1: a start is as quick as ever."""
    daemon = Held([()])
    daemon.wait()
    assert (daemon.now_s, daemon.said) == (0.0, [])


def test_registration_waits_for_the_last_stop_and_each_change_is_told_once() -> None:
    """R6."""
    daemon = Held([("a", "b"), ("a", "b"), ("b",), ()])
    daemon.wait()
    assert [words.split(", so")[0] for words in daemon.said] == [
        "waits for the end of a, b",
        "waits for the end of b",
    ]
    assert daemon.now_s == pytest.approx(0.3)


@pytest.mark.parametrize("limit_s", [0.0, 10.0])
def test_registration_is_held_off_no_longer_than_configured(limit_s: float) -> None:
    daemon = Held([("a",)])
    daemon.wait(limit_s)
    assert daemon.now_s == pytest.approx(limit_s, abs=0.11)


def test_end_of_the_daemon_ends_the_holding_off() -> None:
    """R5."""
    daemon = Held([("a",)], stop_at_s=1.0)
    daemon.wait()
    assert daemon.now_s == pytest.approx(1.0, abs=0.11)
