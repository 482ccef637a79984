"""``nodecpu manifests``: what the cluster needs once, for ``kubectl apply -f -``."""

from __future__ import annotations

import argparse
import sys

import msgspec

from nodecpu.cli.output import put_json
from nodecpu.kube.manifests import Choices, manifests


def run(args: argparse.Namespace) -> int:
    """Print the objects."""
    found = manifests(
        Choices(
            driver=args.driver,
            namespace=args.namespace,
            numa_nodes=args.numa_nodes,
            topology=args.topology or args.topology_crd,
            topology_crd=args.topology_crd,
        )
    )
    if args.json:
        put_json({"apiVersion": "v1", "kind": "List", "items": list(found)})
    else:
        sys.stdout.write("---\n".join(msgspec.yaml.encode(one).decode() for one in found))
    return 0
