"""What a container's annotations ask for, with the report of those that have no effect (shell around the policy; A)."""

from __future__ import annotations

import logging

from nodecpu.log import kv
from nodecpu.metrics import Counters
from nodecpu.policy.annotations import Annotated, Preferences, preferences_of
from nodecpu.policy.facts import Container, PodSpec, Sandbox
from nodecpu.policy.requests import Request
from nodecpu.policy.rules import Rules
from nodecpu.policy.scheduling import SchedulingClass
from nodecpu.reports import Reports, Subject

_LOG = logging.getLogger(__name__)

_MOST_TOLD = 10
"""A pod has room for thousands of annotations, and each is looked at for each container that is created."""


def annotated(rules: Rules, sandbox: Sandbox, container: Container, spec: PodSpec | None) -> Annotated:
    """Return what is asked for and what of it has no effect.

    The pod's spec says it; the sandbox, whose annotations cannot change any more, where the spec is not known (N1).
    """
    annotations = sandbox.annotations if spec is None else spec.annotations
    names = () if spec is None else spec.containers
    return preferences_of(rules, sandbox.namespace, container.name, annotations, containers=names)


def reported(
    found: Annotated, counters: Counters, reports: Reports, subject: Subject, container: Container
) -> Preferences:
    """Return what is asked for; what cannot be understood or is not allowed is counted, logged and told.

    An annotation may be forgotten by its author or meant to flood the log: the first few say what is wrong.
    """
    for number, problem in enumerate(found.problems, start=1):
        counters.annotations[problem.fault.value] += 1
        if number > _MOST_TOLD:
            continue
        kv(
            _LOG,
            logging.WARNING,
            "annotation without effect",
            pod=f"{subject.namespace}/{subject.name}",
            container=container.name,
            container_id=container.id,
            state=problem.text,
        )
        reports.report(subject, "AnnotationIgnored", problem.text)
    return found.preferences


def scheduling_of(
    rules: Rules, sandbox: Sandbox, container: Container, request: Request, *, runtime_can: bool
) -> SchedulingClass | None:
    """Return the scheduling class for a new container, if the runtime can set it; if it cannot, that is logged."""
    wanted = rules.scheduling_of(sandbox.namespace, request.qos, request.preferences.scheduling_class)
    if wanted is None or runtime_can:
        return wanted
    kv(
        _LOG,
        logging.WARNING,
        "scheduling class not set: the runtime's NRI is older than 0.11",
        pod=f"{sandbox.namespace}/{sandbox.name}",
        container=container.name,
        container_id=container.id,
        state=wanted.name,
    )
    return None
