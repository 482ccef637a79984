"""The command line: one module per verb, loaded when its verb is used.

Data goes to standard output, words to standard error. Exit codes: 0 done, 1 failed, 2 wrong usage, 78 configuration.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from nodecpu import __version__
from nodecpu.cli.arguments import dns_name, namespace, numa_nodes, seconds
from nodecpu.errors import ConfigError, HostError, NodeCpuError
from nodecpu.lab.arguments import add_arguments

WAIT_S: Final = 120.0
"""How long a planned restart waits for terminating containers: four times the usual grace."""

DEFAULT_CONFIG: Final = Path("/etc/nodecpu/nodecpu.toml")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code; ``argv`` without the program's name, the process's own by default."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments:
        _parser().print_help(sys.stderr)
        return 2
    try:
        args = _parser().parse_args(arguments[:1] if arguments[:1] == ["lab"] else arguments)
        args.rest = arguments[1:]
        code: int = importlib.import_module(f"nodecpu.cli.{args.verb}").run(args)
        sys.stdout.flush()
    except SystemExit as stop:  # argparse has said why
        return stop.code if isinstance(stop.code, int) else 1
    except NodeCpuError as error:
        _complain(error)
        return error.exit_code
    except PermissionError as error:  # whatever is read of a node may be closed to others than root
        if os.geteuid() == 0:
            raise
        _complain(HostError(f"no permission for {error.filename or 'this'}", hint="run this as root"))
        return 1
    except BrokenPipeError:
        _drop_output()
        return 1
    except KeyboardInterrupt:
        return 130
    return code


def _complain(error: NodeCpuError) -> None:
    lines = [f"nodecpu: {error.message}"]
    if isinstance(error, ConfigError):
        lines += error.problems
    if error.hint:
        lines.append(f"hint: {error.hint}")
    sys.stderr.write("\n".join(lines) + "\n")


def _drop_output() -> None:
    """Let the interpreter's last flush go nowhere: whoever read us has left."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nodecpu",
        description="Owns the CPUs of this Kubernetes node.",
        epilog="Exit codes: 0 done, 1 failed, 2 wrong usage, 78 wrong configuration.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"nodecpu {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    daemon = verbs.add_parser("daemon", help="run the daemon (systemd does this)", allow_abbrev=False)
    daemon.add_argument("--config", type=Path, default=DEFAULT_CONFIG, metavar="FILE", help="default: %(default)s")

    for verb, text in (
        ("status", "links, CPUs and counts at a glance"),
        ("topology", "draw the node: who has which CPUs"),
        ("claims", "list the claims and their CPUs"),
        ("containers", "list the containers and where they run"),
        ("pools", "list the pools and what is asked of them"),
    ):
        _add_query(verbs.add_parser(verb, help=text, description=text, allow_abbrev=False))
    verbs.choices["status"].add_argument(
        "--watch", type=seconds, nargs="?", const=2.0, metavar="SECONDS", help="again and again (default: every 2 s)"
    )
    verbs.choices["topology"].add_argument("--svg", type=Path, metavar="FILE", help="draw into a file; - prints it")
    verbs.choices["topology"].add_argument(
        "--root", type=Path, metavar="DIR", help="draw the machine whose sys directory is below DIR; asks no daemon"
    )

    _add_working(verbs)
    _add_configuring(verbs)
    # Its own parser reads them, with more to say; here they are for man page and completion.
    add_arguments(verbs.add_parser("lab", help="rehearse on this machine, without a cluster", add_help=False))
    version = verbs.add_parser("version", help="print the version", allow_abbrev=False)
    version.add_argument("--json", action="store_true", help="print JSON, with the versions it runs on")
    return parser


def _add_working(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    text = "tell why a claim or container runs where it runs, or why it was refused"
    explain = verbs.add_parser("explain", help=text, description=text, allow_abbrev=False)
    _add_query(explain)
    about = explain.add_mutually_exclusive_group(required=True)
    about.add_argument(
        "what",
        nargs="?",
        metavar="WHAT",
        help="CLAIM, POD or POD/CONTAINER, each with NAMESPACE/ before it or not; a UID",
    )
    about.add_argument(
        "--file",
        type=Path,
        metavar="FILE",
        help="ask instead what would become of the claims and pods in a file (YAML)",
    )

    text = "look at everything around the daemon that has to be right, and tell the remedies"
    check = verbs.add_parser("check", help=text, description=text, allow_abbrev=False)
    _add_query(check)
    check.add_argument("--offline", action="store_true", help="do not ask the API server")
    check.add_argument("--preflight", action="store_true", help="before the start: the daemon need not run")

    text = "list the metrics with their help, or print the daemon's"
    metrics = verbs.add_parser("metrics", help=text, description=text, allow_abbrev=False)
    _add_query(metrics)
    metrics.add_argument("--values", action="store_true", help="print the daemon's, in Prometheus' text format")
    metrics.add_argument("--compatible", action="store_true", help="with those by the names of dra-driver-cpu")

    text = "write one archive with what somebody who helps needs, and no secrets"
    gather = verbs.add_parser("gather", help=text, description=text, allow_abbrev=False)
    gather.add_argument("--output", type=Path, metavar="FILE", help="default: nodecpu-NODE.tar.gz in this directory")
    gather.add_argument("--socket", type=Path, metavar="FILE", help="the daemon's socket; default: the configured one")
    gather.add_argument("--config", type=Path, metavar="FILE", help=f"default: {DEFAULT_CONFIG}, if it is there")

    text = "restart the daemon, once no container is being terminated"
    restart = verbs.add_parser("restart", help=text, description=text, allow_abbrev=False)
    restart.add_argument("--now", action="store_true", help="do not wait")
    restart.add_argument(
        "--wait",
        type=seconds,
        default=WAIT_S,
        metavar="SECONDS",
        help="fail if some still terminate after this time (default: %(default)g)",
    )
    restart.add_argument("--only-wait", action="store_true", help="wait, and leave the restart to others")
    restart.add_argument(
        "--dry-run", action="store_true", help="tell whether a daemon would start again, restart nothing"
    )
    restart.add_argument("--socket", type=Path, metavar="FILE", help="the daemon's socket; default: the configured one")
    restart.add_argument("--config", type=Path, metavar="FILE", help=f"default: {DEFAULT_CONFIG}, if it is there")

    text = "give shared containers room again, once the daemon is stopped for good"
    reset = verbs.add_parser("reset", help=text, description=text, allow_abbrev=False)
    reset.add_argument("--everything", action="store_true", help="also on CPUs that others have as their own")
    reset.add_argument("--dry-run", action="store_true", help="tell what would be done, and change nothing")
    reset.add_argument("--json", action="store_true", help="print JSON")
    reset.add_argument("--config", type=Path, metavar="FILE", help=f"default: {DEFAULT_CONFIG}, if it is there")


def _add_configuring(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    config = verbs.add_parser("config", help="check, show, compare or begin a configuration file", allow_abbrev=False)
    actions = config.add_subparsers(dest="action", required=True, metavar="ACTION")
    for action, text in (
        ("check", "list every mistake in a file"),
        ("show", "print all settings, and where each comes from: its line in the file, or the default"),
        ("diff", "tell what a file changes in the defaults, or another file in it"),
    ):
        one = actions.add_parser(action, help=text, description=text, allow_abbrev=False)
        one.add_argument("file", type=Path, nargs="?", default=DEFAULT_CONFIG, help="default: %(default)s")
    actions.choices["diff"].add_argument("other", type=Path, nargs="?", help="the file to compare with FILE")
    for action in ("check", "show", "diff"):
        actions.choices[action].add_argument("--json", action="store_true", help="print JSON")
    actions.add_parser("init", help="print a file to begin with", allow_abbrev=False)

    text = "print what the cluster needs once: DeviceClasses, rights, admission policy"
    made = verbs.add_parser("manifests", help=text, description=text, allow_abbrev=False)
    made.add_argument(
        "--driver", type=dns_name, default="dra.cpu", metavar="NAME", help="the driver's name (default: %(default)s)"
    )
    made.add_argument(
        "--namespace",
        type=namespace,
        default="nodecpu",
        metavar="NAME",
        help="of the ServiceAccount (default: %(default)s)",
    )
    made.add_argument(
        "--numa-nodes",
        type=numa_nodes,
        default=0,
        metavar="N",
        help="DeviceClasses for NUMA nodes 0 to N-1 (default: none)",
    )
    made.add_argument("--topology", action="store_true", help="with rights on NodeResourceTopology")
    made.add_argument("--topology-crd", action="store_true", help="with these rights and the CRD itself")
    made.add_argument("--json", action="store_true", help="print JSON, as one List")


def _add_query(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--socket", type=Path, metavar="FILE", help="the daemon's socket; default: the configured one")
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help=f"configuration that tells the socket; default: {DEFAULT_CONFIG}, if it is there",
    )
