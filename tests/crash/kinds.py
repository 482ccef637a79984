"""The kinds of pods on a node that is killed again and again."""

from __future__ import annotations

import random
from dataclasses import dataclass

NAMESPACE = "shop"


@dataclass(frozen=True)
class Kind:
    """What a pod asks for: requests and limits of its one container, and CPUs by a claim on a NUMA node."""

    cpu: str = ""
    limit: str = ""
    claim: int = 0
    numa: int | None = None
    namespace: str = NAMESPACE


def random_kind(rng: random.Random) -> Kind:
    """Return one of the kinds of pods a node sees."""
    match rng.randrange(8):
        case 0 | 1:
            return Kind()
        case 2:
            return Kind(cpu="300m")
        case 3:
            return Kind(cpu="2", limit="2")
        case 4:
            return Kind(cpu="100m", namespace="kube-system")
        case _:
            return Kind(claim=rng.randrange(1, 4), numa=rng.choice((None, 0, 1, 2, 3)))
