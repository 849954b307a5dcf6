"""The command line: a table of subcommands, each with its arguments and its function.

Nothing is imported before it is needed: `--help` and `explain` start without kopf.
"""

import argparse
import logging
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sojourn_operator.config import ConfigError, load


@dataclass(frozen=True, slots=True)
class Command:
    """One subcommand. `run` returns the exit status."""

    name: str
    help: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def _run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, help="settings (YAML); defaults without it")
    parser.add_argument("--namespace-of-lease", help="overrides lease.namespace of the settings")
    parser.add_argument("--identity", help="name in the Lease (default: POD_NAME, or a random one)")
    parser.add_argument("--host", default="0.0.0.0", help="address of /healthz, /readyz, /metrics")  # noqa: S104 - probes come from the node
    parser.add_argument("--port", type=int, default=8080, help="their port (default: 8080)")


def _run(options: argparse.Namespace) -> int:
    # kopf takes a second, and a container's first process has to say itself that SIGTERM ends it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    from dataclasses import replace  # noqa: PLC0415

    from sojourn_operator.app import WatchError, run  # noqa: PLC0415 - kopf takes a second
    from sojourn_operator.seen.watching import KopfError  # noqa: PLC0415

    config = load(options.config)
    if options.namespace_of_lease:
        lease = replace(config.lease, namespace=options.namespace_of_lease)
        config = replace(config, lease=lease)
    try:
        run(config, host=options.host, port=options.port, identity=options.identity)
    except (WatchError, KopfError) as error:
        logging.getLogger(__name__).error("%s", error)  # noqa: TRY400 - kopf has told the rest
        return 1
    return 0


def _crds_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--from", dest="folder", type=Path, required=True, help="folder with one CRD per *.yaml"
    )


def _apply_crds(options: argparse.Namespace) -> int:
    from sojourn_operator.act.api import ApiError, reached  # noqa: PLC0415
    from sojourn_operator.commands.crds import CrdsError, apply_folder  # noqa: PLC0415

    try:
        apply_folder(reached(), options.folder)
    except (ApiError, CrdsError) as error:
        sys.stderr.write(f"sojourn-operator apply-crds: {error}\n")
        return 1
    return 0


def _release_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, help="settings (YAML), for the Lease's name")
    parser.add_argument("--timeout", type=float, default=600, help="seconds (default: 600)")


def _release(options: argparse.Namespace) -> int:
    from sojourn_operator.act.api import ApiError, reached  # noqa: PLC0415
    from sojourn_operator.commands.release import ReleaseError, release  # noqa: PLC0415

    lease = load(options.config).lease
    try:
        release(reached(), lease=lease, timeout=options.timeout)
    except (ApiError, ReleaseError) as error:
        sys.stderr.write(f"sojourn-operator release: {error}\n")
        return 1
    return 0


def _study(
    name: str,
) -> tuple[Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], int]]:
    """Arguments and function of a question to the plan."""

    def arguments(parser: argparse.ArgumentParser) -> None:
        from sojourn_operator.commands import study  # noqa: PLC0415

        getattr(study, f"{name}_arguments")(parser)

    def run(options: argparse.Namespace) -> int:
        from sojourn_operator.commands import study  # noqa: PLC0415
        from sojourn_operator.commands.rows import StudyError  # noqa: PLC0415

        try:
            status: int = getattr(study, f"run_{name}")(options)
        except StudyError as error:
            sys.stderr.write(f"sojourn-operator {name}: {error}\n")
            return 1
        return status

    return arguments, run


COMMANDS: Final[tuple[Command, ...]] = (
    Command("run", "watch the cluster, decide and act", _run_arguments, _run),
    Command("apply-crds", "bring the CRDs up to date", _crds_arguments, _apply_crds),
    Command("release", "pause all sessions and let go of them", _release_arguments, _release),
    Command("explain", "say why a session is not on each node and GPU", *_study("explain")),
    Command("simulate", "play sessions on nodes, without a cluster", *_study("simulate")),
    Command("compare", "hold two generations' decisions against each other", *_study("compare")),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """The entry point of `sojourn-operator`."""
    parser = argparse.ArgumentParser(prog="sojourn-operator", description=__doc__)
    parser.add_argument(
        "--log-level", default="info", choices=["debug", "info", "warning", "error"]
    )
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        sub = subparsers.add_parser(command.name, help=command.help)
        command.arguments(sub)
        sub.set_defaults(run=command.run)
    options = parser.parse_args(arguments)
    logging.basicConfig(
        level=options.log_level.upper(),
        format="%(asctime)s %(levelname).1s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    # One line for each watched event, and for each connection, is no news.
    for noisy in ("kopf.objects", "kopf.activities", "kopf._core.engines.activities"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    # It warns that signals are ours to handle, which is so on purpose.
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
    try:
        status: int = options.run(options)
    except ConfigError as error:
        sys.stderr.write(f"sojourn-operator: {error}\n")
        return 2
    return status
