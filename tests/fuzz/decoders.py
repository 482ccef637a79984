"""Hostile input for every decoder beside NRI's: gRPC messages, API objects, configuration, sysfs, stored rows, CDI.

Deterministic: input number n of a target and seed is always the same. ``python -m tests.fuzz.decoders [COUNT [SEED]]``
runs COUNT inputs of each target (100,000). Good inputs are spoilt: bytes, and parts of JSON by other JSON. Every
outcome must be a value that keeps its promises, or our typed error; and none may take longer than ``HANG_S``.
"""

from __future__ import annotations

import copy
import functools
import json
import logging
import random
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

from google.protobuf.message import DecodeError

from nodecpu import config, config_forms, config_toml, cpuset, quantity
from nodecpu.config import parse, render_toml
from nodecpu.config_docs import sample_toml
from nodecpu.cpuset import MAX_ID, CpuSet, NodeSet
from nodecpu.dra import claims, opaque, slices, told
from nodecpu.dra.cdi import spec_text
from nodecpu.dra.claims import decode_claim, parse_claim_uid
from nodecpu.dra.slices import canonical, decode_slice
from nodecpu.dra.told import claims_in_specs
from nodecpu.errors import NodeCpuError
from nodecpu.ids import ClaimUID
from nodecpu.kube import podspec
from nodecpu.kube.podspec import decode_pod
from nodecpu.lab.machine import parse_machine, write_machine
from nodecpu.policy.facts import PodSpec
from nodecpu.policy.grants import ClaimGrant, ContainerGrant
from nodecpu.proto import dra_pb2, registration_pb2
from nodecpu.quantity import parse_quantity
from nodecpu.store import rows
from nodecpu.store.rows import Row, from_row, to_row
from nodecpu.topology.files import KernelFiles
from nodecpu.topology.sysfs import topology_of
from tests.fuzz import files
from tests.fuzz.branches import Branches
from tests.fuzz.nri import mutated
from tests.property.test_decoders import CLAIM, POD, SLICE, UID
from tests.unit.store.test_database import CLAIM as CLAIM_ROW
from tests.unit.store.test_database import CONTAINER as CONTAINER_ROW
from tests.unit.store.test_database import POD as POD_ROW
from tests.unit.topology.invariants import check_topology

HANG_S: Final = 5.0

SLOW: Final = ("configuration", "sysfs", *files.SLOW)
"""Decoders that take milliseconds: a fifth of the inputs is run."""

_ODD: Final[tuple[object, ...]] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 10**400, 0.5, 1e308, -0.0),
    *(
        "",
        " ",
        "0",
        "-1",
        "4",
        "1e3",
        "1E999999999",
        "9" * 5000,
        "0-3",
        "0-99999999",
        "3-1",
        "0,",
        "\x00",
        "\ud800",
        "é",
    ),
    *("../../etc/passwd", "a/b/c", "dra.cpu", UID, "m" * 70_000),
    *([], {}, [[]], [None], {"": None}, [{}] * 50),
)


DECODING: Final = (
    claims,
    opaque,
    slices,
    told,
    podspec,
    quantity,
    cpuset,
    rows,
    config,
    config_toml,
    config_forms,
)
"""What the inputs go through; sysfs is left out here, since its reader is more than decoding."""

TRACED: Final = 1000
"""Inputs of each target whose branches are counted, which is slow."""


class Hang(AssertionError):
    """An input took too long."""


@dataclass(frozen=True)
class Target:
    """A decoder: good inputs, what takes one, and what may be raised beside our own errors."""

    good: Sequence[bytes]
    take: Callable[[bytes], None]
    raises: tuple[type[Exception], ...] = ()
    is_json: bool = False


def spoilt(value: object, rng: random.Random) -> object:
    """Return JSON with one to three parts exchanged, taken away or doubled."""
    root = [json.loads(json.dumps(value))]
    for _ in range(rng.choice((1, 1, 2, 3))):
        place: list[object] | dict[str, object] = root
        while True:
            keys: list[object] = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = rng.choice(keys)
            inner = place[key]  # type: ignore[index,call-overload]  # either has the key
            if isinstance(inner, dict | list) and inner and rng.random() < 0.8:
                place = inner
                continue
            match rng.randrange(5):
                case 0 if place is not root:
                    del place[key]  # type: ignore[arg-type]  # see above
                case 1 if isinstance(place, list) and place is not root:
                    place.append(copy.deepcopy(inner))
                case 2 if isinstance(place, dict):
                    place[str(rng.choice(_ODD))[:70_000]] = copy.deepcopy(inner)
                case _:
                    place[key] = copy.deepcopy(rng.choice(_ODD))  # type: ignore[index,call-overload]  # see above
            break
    return root[0] if root else None


def _spoil(target: Target, rng: random.Random) -> bytes:
    data = rng.choice(target.good)
    if target.is_json and rng.random() < 0.7:
        return json.dumps(spoilt(json.loads(data), rng)).encode()
    return mutated(data, rng)


# The decoders, each with what its values promise


def _claim(data: bytes) -> None:
    claim = decode_claim(data, driver="dra.cpu", uid=UID, namespace="shop", name="web")
    assert claim.uid == UID
    for one in claim.results:
        assert one.admin_access or 1 <= one.cpus <= MAX_ID
        assert not set("=\n") & set(one.request + one.device)


def _pod(data: bytes) -> None:
    pod = decode_pod(data)
    assert all(name == one.name for name, one in pod.containers.items())


def _slice(data: bytes) -> None:
    found = decode_slice(data)
    assert canonical(found.spec) == found.spec


def _prepare(data: bytes) -> None:
    for kind in (dra_pb2.NodePrepareResourcesRequest, dra_pb2.NodeUnprepareResourcesRequest):
        for claim in kind.FromString(data).claims:
            with suppress(NodeCpuError):
                uid = parse_claim_uid(claim.uid)
                assert not set("/=\n\0") & set(uid)
                assert uid not in (".", "..")


def _registration(data: bytes) -> None:
    registration_pb2.InfoRequest.FromString(data)
    status = registration_pb2.RegistrationStatus.FromString(data)
    assert isinstance(status.error, str)


def _toml(data: bytes) -> None:
    config = parse(data.decode("utf-8", "surrogateescape"), "fuzzed.toml")
    assert parse(render_toml(config), "again.toml") == config


def _row(kind: type[Row], data: bytes) -> None:
    grant = from_row(kind, "x", data)
    assert from_row(kind, "x", to_row(grant)) == grant


@dataclass(frozen=True)
class Specs:
    """A CDI directory with one spec."""

    directory: Path

    def take(self, data: bytes) -> None:
        (self.directory / "spec.json").write_bytes(data)
        for found in claims_in_specs(self.directory, driver="dra.cpu"):
            assert found.cpus
            assert all(part <= found.cpus for part in found.requests.values())


def _list(data: bytes) -> None:
    text = data.decode("latin-1")
    cpus = CpuSet.parse(text)
    assert CpuSet.parse(str(cpus)) == cpus
    with suppress(ValueError):
        NodeSet.parse(text)


def _quantity(data: bytes) -> None:
    parse_quantity(data.decode("latin-1"))


class MemoryFiles(KernelFiles):
    """A sysfs tree in memory: files by path; a directory is what leads to a file."""

    def __init__(self, files: dict[str, bytes]) -> None:
        super().__init__(Path("/nowhere"))
        self._files = files

    def _bytes(self, path: str) -> bytes:
        if path not in self._files:
            raise FileNotFoundError(2, "not there", path)
        return self._files[path].strip(b" \t\r\n\0")

    def names(self, path: str) -> list[str]:
        start = f"{path}/"
        return sorted({name[len(start) :].partition("/")[0] for name in self._files if name.startswith(start)})

    def link_name(self, path: str) -> str | None:
        del path
        return None


class Sysfs:
    """Machines whose files are spoilt: the input is JSON, path by path."""

    def __init__(self, machines: Sequence[dict[str, bytes]]) -> None:
        self._machines = machines

    def run(self, rng: random.Random) -> None:
        files = dict(rng.choice(self._machines))
        for path in rng.sample(sorted(files), min(len(files), rng.choice((1, 2, 5, 40)))):
            match rng.randrange(4):
                case 0:
                    del files[path]
                case 1:
                    files[path] = str(rng.choice(_ODD)).encode("utf-8", "replace")
                case 2:
                    files[path] = files[rng.choice(sorted(files))]
                case _:
                    files[path] = mutated(files[path], rng)
        check_topology(topology_of(MemoryFiles(files)))


def machines() -> list[dict[str, bytes]]:
    """Return the files, by path, of some generated machines."""
    found = []
    for text in (
        "2 sockets, 2 nodes, 2 cores, 2 threads",
        "1 socket, 2 nodes, 4 cores, efficient 2, memory-only 1 hbm",
    ):
        with tempfile.TemporaryDirectory() as name:
            root = Path(name)
            write_machine(parse_machine(text), root)
            files = [path for path in sorted(root.rglob("*")) if path.is_file()]
            found.append({str(path.relative_to(root)): path.read_bytes() for path in files})
    return found


def _uncommented(sample: str) -> str:
    return "\n".join(line.removeprefix("# ") if "=" in line else line for line in sample.splitlines())


def _configured() -> object:
    """Return a claim with several results of ours and others, and configuration by class and claim."""

    def by(source: str, request: str, **config: object) -> object:
        opaque = {"driver": "dra.cpu", "parameters": {"apiVersion": "v1alpha1", "cpuConfig": config}}
        return {"source": source, "requests": [request] if request else [], "opaque": opaque}

    def result(request: str, device: str, cpus: str, **more: object) -> object:
        of_us = {"driver": "dra.cpu", "request": request, "pool": "node1", "device": device}
        return of_us | {"consumedCapacity": {"dra.cpu/cpu": cpus}} | more

    claim = copy.deepcopy(CLAIM)
    assert isinstance(claim, dict)
    claim["status"]["allocation"]["devices"] = {
        "results": [
            result("cpus", "cpudevmachine", "2"),
            result("more/first", "cpudevnuma001", "1"),
            result("see", "cpudevnuma001", "0", adminAccess=True),
            {"driver": "gpu.example.com", "request": "gpu", "pool": "node1", "device": "gpu0"},
        ],
        "config": [
            by("FromClass", "", fullCores=True, strict=False),
            by("FromClaim", "cpus", cpuset="2-3"),
            by("FromClaim", "more", spread="cores", sameL3=True, strict=True),
            {"source": "FromClass", "opaque": {"driver": "gpu.example.com", "parameters": {"x": 1}}},
        ],
    }
    return claim


def _dumped(*values: object) -> tuple[bytes, ...]:
    return tuple(json.dumps(value).encode() for value in values)


def targets(scratch: Path) -> dict[str, Target]:
    """Return all decoders by name, but sysfs, which is no bytes; ``scratch`` is an empty directory."""
    claims = [dra_pb2.Claim(namespace="shop", uid=UID, name="web"), dra_pb2.Claim(uid="../x", name="é" * 300)]
    calls = dra_pb2.NodePrepareResourcesRequest(claims=claims * 3).SerializeToString()
    status = registration_pb2.RegistrationStatus(plugin_registered=True, error="no").SerializeToString()
    spec = spec_text("dra.cpu", CLAIM_ROW)
    uid_spec = spec.replace(CLAIM_ROW.uid.encode(), ClaimUID(UID).encode())
    (scratch / "files").mkdir()
    lists = (b"0-3,8", b"0", b"0-4095:2/4", b"1,3,5-7\n", b"0-1,0-1")
    return {
        "claim": Target(_dumped(CLAIM, _configured()), _claim, is_json=True),
        "pod": Target(_dumped(POD), _pod, is_json=True),
        "slice": Target(_dumped(SLICE), _slice, is_json=True),
        "prepare": Target((calls,), _prepare, (DecodeError,)),
        "registration": Target((status,), _registration, (DecodeError,)),
        "configuration": Target((sample_toml().encode(), _uncommented(sample_toml()).encode()), _toml),
        "claim row": Target((to_row(CLAIM_ROW),), functools.partial(_row, ClaimGrant), is_json=True),
        "container row": Target((to_row(CONTAINER_ROW),), functools.partial(_row, ContainerGrant), is_json=True),
        "CDI spec": Target((spec, uid_spec), Specs(scratch).take, is_json=True),
        "list": Target(lists, _list, (ValueError,)),
        "quantity": Target((b"4", b"1500m", b"1e3", b"0.5", b"12E", b"9Ki"), _quantity, (ValueError,)),
        "pod row": Target((to_row(POD_ROW),), functools.partial(_row, PodSpec), is_json=True),
        **{
            name: Target(good, take, (DecodeError,) if name == "pod resources" else (), is_json=is_json)
            for name, (good, take, is_json) in files.more_targets(scratch / "files").items()
        },
    }


def run(name: str, target: Target, count: int, seed: int) -> Counter[str]:
    """Run ``count`` inputs; return how often each outcome occurred. A failure names its seed and number."""
    outcomes: Counter[str] = Counter()
    with _Watch():
        for number in range(count):
            rng = random.Random(f"{seed}/{name}/{number}")
            data = _spoil(target, rng)
            take = functools.partial(target.take, data)
            outcomes[_outcome(take, target.raises, f"{name} {seed}/{number}", data)] += 1
    return outcomes


def run_sysfs(machines: Sequence[dict[str, bytes]], count: int, seed: int) -> Counter[str]:
    """Run ``count`` spoilt machines; return how often each outcome occurred."""
    outcomes: Counter[str] = Counter()
    sysfs = Sysfs(machines)
    with _Watch():
        for number in range(count):
            rng = random.Random(f"{seed}/sysfs/{number}")
            outcomes[_outcome(functools.partial(sysfs.run, rng), (), f"sysfs {seed}/{number}", b"")] += 1
    return outcomes


def _outcome(take: Callable[[], None], raises: tuple[type[Exception], ...], where: str, data: bytes) -> str:
    signal.setitimer(signal.ITIMER_REAL, HANG_S)
    try:
        take()
    except NodeCpuError as error:
        return type(error).__name__
    except Exception as error:
        if isinstance(error, raises):
            return type(error).__name__
        raise AssertionError(f"{where}: {data[:300]!r}") from error
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return "value"


class _Watch:
    """Turns an input that takes too long into a failure; keeps log lines away, which would take most of the time."""

    def __enter__(self) -> None:
        self._before = signal.signal(signal.SIGALRM, self._hang)
        logging.disable(logging.CRITICAL)

    def __exit__(self, *_: object) -> None:
        logging.disable(logging.NOTSET)
        signal.signal(signal.SIGALRM, self._before)

    @staticmethod
    def _hang(_number: int, _frame: FrameType | None) -> None:
        raise Hang(f"an input took longer than {HANG_S:g} s")


def main(arguments: list[str]) -> int:
    count = int(arguments[0]) if arguments else 100_000
    seed = int(arguments[1]) if len(arguments) > 1 else 1
    total = 0
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as scratch:
        runs = {name: functools.partial(run, name, one) for name, one in targets(Path(scratch)).items()}
        runs["sysfs"] = functools.partial(run_sysfs, machines())
        for name, one in runs.items():
            began = time.monotonic()
            inputs = count // 5 if name in SLOW else count
            outcomes = one(inputs, seed)
            total += inputs
            print(f"{name}: {inputs} inputs in {time.monotonic() - began:.0f} s: {dict(outcomes.most_common())}")  # noqa: T201 - output
        with Branches(DECODING) as branches:
            for name, one in runs.items():
                one(min(count, TRACED // 5 if name in SLOW else TRACED), seed)
    print("\n".join([f"branches taken by the first {min(count, TRACED)} of each:", *branches.lines()]))  # noqa: T201 - output
    mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{total} inputs of seed {seed}, 0 failures, at most {mib:.0f} MiB resident")  # noqa: T201 - output
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
