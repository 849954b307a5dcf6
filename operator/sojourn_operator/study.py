"""`explain`, `simulate` and `compare`: questions to the plan without acting on a cluster.

Reads files or a live cluster, asks the pure `plan`, prints tables or JSON. Never writes to a
cluster.
"""

import argparse
import importlib
import json
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from sojourn_operator import plan
from sojourn_operator.plan.compare import Likeness, compare
from sojourn_operator.plan.explain import explain
from sojourn_operator.plan.generations import Plans
from sojourn_operator.plan.play import World
from sojourn_operator.plan.record import to_data
from sojourn_operator.plan.simulate import Job, Sample, Simulation
from sojourn_operator.studyfiles import (
    TIERS,
    StudyError,
    jobs_from,
    nodes_from,
    recorded,
)


def explain_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("session", help="namespace/name")
    parser.add_argument("--state", type=Path, help="a recorded state (JSON); else the live cluster")
    parser.add_argument("--record", type=Path, help="also write the state to this file")
    parser.add_argument("--json", action="store_true")


def run_explain(options: argparse.Namespace) -> int:
    state = recorded(options.state) if options.state else live_state()
    if options.record:
        options.record.write_text(json.dumps(to_data(state)))
    try:
        found = explain(state, options.session)
    except KeyError:
        sys.stderr.write(f"sojourn-operator explain: no session {options.session}\n")
        return 1
    if options.json:
        say(json.dumps(asdict(found)))
        return 0
    say(f"{found.session} needs {found.asks}")
    say(f"now: {found.now}")
    say(table(("PLACE", "WHY NOT"), [(one.where, one.why or "it fits") for one in found.lines]))
    return 0


def simulate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--nodes", type=Path, help="CSV or YAML: name,cpu_milli,memory_mib,gpu,model[,slices]"
    )
    parser.add_argument(
        "--sessions",
        type=Path,
        help="CSV or YAML: name,tier,slices[,share,arrival,duration,cpu_milli,memory_mib,"
        "gpu_models,max_shards,tenant,save_mib]",
    )
    parser.add_argument("--live", action="store_true", help="start from the live cluster")
    parser.add_argument("--every", type=float, default=60, help="seconds between samples")
    parser.add_argument("--until", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--start-seconds", type=float, default=10)
    parser.add_argument("--stop-seconds", type=float, default=10)
    parser.add_argument("--json", action="store_true")


def run_simulate(options: argparse.Namespace) -> int:
    if not options.live and not (options.nodes and options.sessions):
        sys.stderr.write("sojourn-operator simulate: --nodes and --sessions, or --live\n")
        return 2
    simulation = simulation_of(options)
    samples: list[Sample] = []
    bar = Bar(len(simulation.jobs))
    for sample in simulation.run():
        samples.append(sample)
        bar.show(sample.done)
    bar.end()
    if options.json:
        fates = {key: asdict(fate) for key, fate in simulation.fates.items()}
        say(json.dumps({"samples": [asdict(one) for one in samples], "sessions": fates}))
        return 0
    say(samples_table(samples))
    say("")
    say(fates_table(simulation))
    return 0


def simulation_of(options: argparse.Namespace) -> Simulation:
    """The world and its jobs, from files or from the live cluster (whose sessions never end)."""
    live = live_state() if options.live else None
    nodes = nodes_from(options.nodes) if options.nodes else []
    jobs = jobs_from(options.sessions) if options.sessions else []
    tiers: Iterable[plan.Tier] = TIERS
    if live is not None:
        nodes = [*live.nodes.values(), *nodes]
        tiers = live.tiers.values()
        jobs += [Job(one, arrival=0.0, duration=float("inf")) for one in live.sessions.values()]
    world = World(
        nodes=nodes,
        tiers=tiers,
        tenants=live.tenants.values() if live else (),
        start_seconds=options.start_seconds,
        stop_seconds=options.stop_seconds,
    )
    return Simulation(world, jobs, every=options.every, until=options.until)


def compare_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("states", type=Path, nargs="+", help="recorded states (JSON)")
    parser.add_argument("--new", default="sojourn_operator.plan:Planner", help="module:class")
    parser.add_argument("--old", default="sojourn_operator.plan:Planner", help="module:class")
    parser.add_argument("--json", action="store_true")


def run_compare(options: argparse.Namespace) -> int:
    """0 when decisions are equal or equal up to order, 1 at the first difference."""
    states = (recorded(path) for path in options.states)
    found = compare(generation(options.old), generation(options.new), states)
    if options.json:
        say(json.dumps(asdict(found)))
    else:
        say(f"{found.likeness} on {found.states} states")
        if found.first:
            say(found.first)
    return int(found.likeness is Likeness.DIFFERENT)


def generation(name: str) -> Plans:
    """A generation by `module:class`; the class is called without arguments."""
    module, _, member = name.partition(":")
    try:
        made: Plans = getattr(importlib.import_module(module), member)()
    except (ImportError, AttributeError, TypeError) as error:
        raise StudyError(f"{name}: not a generation that can be made ({error})") from error
    return made


def live_state() -> plan.State:
    """The state that the operator would decide from, but for what its process alone knows.

    That is the mix that it packs for, and what runtimes said when they were polled.
    """
    from sojourn_operator.act.api import Api, connect  # noqa: PLC0415 - files need no cluster
    from sojourn_operator.cache import Cache  # noqa: PLC0415
    from sojourn_operator.view import state  # noqa: PLC0415
    from sojourn_operator.world import World as Seen  # noqa: PLC0415

    cache = Cache(lambda: None)
    cache.relist(Api(connect()))
    seen = Seen(
        now=time.time(),
        sessions=cache.sessions.values(),
        models=cache.models.values(),
        tiers=cache.tiers.values(),
        tenants=cache.tenants.values(),
        gpu_nodes=cache.gpu_nodes.values(),
        nodes=cache.nodes.values(),
        unreadable_nodes=cache.nodes.unreadable(),
        pods=cache.pods.values(),
        budgets=cache.budgets.values(),
    )
    return state(seen, blocked=frozenset())


class Bar:
    """A progress bar on a terminal's error stream; silent elsewhere."""

    def __init__(self, total: int) -> None:
        self._total = max(total, 1)
        self._shown = sys.stderr.isatty()

    def show(self, done: int) -> None:
        if self._shown:
            width = 40 * done // self._total
            sys.stderr.write(f"\r[{'#' * width}{' ' * (40 - width)}] {done}/{self._total} sessions")
            sys.stderr.flush()

    def end(self) -> None:
        if self._shown:
            sys.stderr.write("\n")


def samples_table(samples: Iterable[Sample]) -> str:
    head = ("TIME", "RUN", "WAIT", "PAUSED", "DONE", "SLICES%", "SHARE%", "SCATTER%", "STRANDED%")
    return table(
        head,
        [
            (
                f"{one.time:.0f}",
                str(one.running),
                str(one.waiting),
                str(one.paused),
                str(one.done),
                f"{one.fill.slices:.1f}",
                f"{one.fill.share:.1f}",
                f"{one.fill.scatter:.1f}",
                f"{one.fill.stranded:.1f}",
            )
            for one in samples
        ],
    )


def fates_table(simulation: Simulation) -> str:
    return table(
        ("SESSION", "TIER", "STARTED", "ENDED", "PAUSES", "MOVES", "WAITED", "LAST"),
        [
            (
                key,
                fate.tier,
                "-" if fate.started is None else f"{fate.started:.0f}",
                "-" if fate.ended is None else f"{fate.ended:.0f}",
                str(fate.pauses),
                str(fate.moves),
                f"{fate.waited:.0f}",
                fate.last,
            )
            for key, fate in simulation.fates.items()
        ],
    )


def say(text: str) -> None:
    """A line on the output."""
    sys.stdout.write(f"{text}\n")


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """Columns as wide as their widest cell."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [head, *rows]
    )
