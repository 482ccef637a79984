"""What a container asks for: by its pod, its annotations, the claims it shows and what it uses (shell; G, L, A, S).

What has no effect is counted, logged and reported on the pod: variables of claims that the container is not entitled
to, annotations that are malformed or not allowed.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from nodecpu.annotated import annotated, reported
from nodecpu.attraction import Nearness, attraction
from nodecpu.books import Books
from nodecpu.cpuset import union
from nodecpu.log import kv
from nodecpu.metrics import Counters
from nodecpu.pods import Pods
from nodecpu.policy.annotations import Annotated, Preferences
from nodecpu.policy.facts import Container, Sandbox
from nodecpu.policy.links import Links, links_of
from nodecpu.policy.pull import Pull
from nodecpu.policy.requests import Request, request_of
from nodecpu.policy.rules import Rules
from nodecpu.reports import NoReports, Reports

_LOG = logging.getLogger(__name__)


class Asking:
    """Reads requests; ``reports`` is told of what has no effect, ``locality`` knows where devices and mounts are."""

    def __init__(self, books: Books, pods: Pods, counters: Counters) -> None:
        self.reports: Reports = NoReports()
        self.locality: Nearness | None = None
        self._books = books
        self._pods = pods
        self._counters = counters

    def of(self, rules: Rules, sandbox: Sandbox, container: Container) -> tuple[Links, Request]:
        """Return the claims that a container holds and what it asks for; raises NodeCpuError if it cannot be judged."""
        spec, subject = self._pods.of(sandbox), self._pods.subject(sandbox)
        links = links_of(self._books.ledger, rules, sandbox, container, spec)
        if links.ignored:
            self._forged(sandbox, container, links)
        claimed = union(link.cpus for link in links.held)
        reserved = bool(self._books.ledger.tree.usable.reserved)
        found = annotated(rules, sandbox, container, spec)
        preferences = reported(found, self._counters, self.reports, subject, container)
        request = request_of(rules, sandbox, container, spec, claimed, reserved=reserved, preferences=preferences)
        pull = self._pull(rules, sandbox, container, preferences)
        return links, replace(request, pull=pull) if pull else request

    def _forged(self, sandbox: Sandbox, container: Container, links: Links) -> None:
        self._counters.forged_claims += 1
        kv(
            _LOG,
            logging.WARNING,
            "claim variables ignored: the container is not entitled to them",
            pod=f"{sandbox.namespace}/{sandbox.name}",
            container=container.name,
            container_id=container.id,
            state=",".join(links.ignored)[:200],
        )
        self.reports.report(
            self._pods.subject(sandbox),
            "ClaimNotEntitled",
            f"container {container.name} shows claims that it is not entitled to, they give it nothing"
            " (reference the claim in its resources.claims)",
        )

    def _pull(self, rules: Rules, sandbox: Sandbox, container: Container, preferences: Preferences) -> Pull:
        """Return where a container is drawn to: to others, and to what it uses (S)."""
        found = attraction(
            rules, self._books.ledger, self._pods.of_container, sandbox, container, preferences, self.locality
        )
        if found.problems:
            problems = Annotated(problems=found.problems)
            reported(problems, self._counters, self.reports, self._pods.subject(sandbox), container)
        return found.pull
