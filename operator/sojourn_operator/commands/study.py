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
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from sojourn_operator import plan
from sojourn_operator.commands.rows import StudyError
from sojourn_operator.commands.studyfiles import TIERS, jobs_from, nodes_from, recorded
from sojourn_operator.config import load
from sojourn_operator.plan.compare import Likeness, compare
from sojourn_operator.plan.explain import Line, explain
from sojourn_operator.plan.generations import Plans
from sojourn_operator.plan.play import World
from sojourn_operator.plan.record import to_data
from sojourn_operator.plan.simulate import Job, Sample, Simulation
from sojourn_operator.plan.words import NAMED

SETTINGS: Final = Path("/etc/sojourn/operator.yaml")
"""Where the chart puts them in the operator's pod."""


def explain_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("session", help="NAMESPACE/NAME")
    parser.add_argument("--config", type=Path, help=f"the operator's settings, else {SETTINGS}")
    parser.add_argument("--state", type=Path, help="a recorded state (JSON); else the live cluster")
    parser.add_argument("--record", type=Path, help="also write the state to this file")
    parser.add_argument("--json", action="store_true")


def run_explain(options: argparse.Namespace) -> int:
    state = recorded(options.state) if options.state else live_state(options.config)
    if options.record:
        try:
            options.record.write_text(json.dumps(to_data(state)))
        except OSError as error:
            raise StudyError(f"--record {options.record}: {error.strerror}") from error
    try:
        found = explain(state, options.session)
    except KeyError as error:
        raise StudyError(unknown(options.session, state.sessions)) from error
    if options.json:
        say(json.dumps(asdict(found)))
        return 0
    say(f"{found.session} needs {found.asks}")
    say(f"now: {found.now}")
    say(table(("PLACE", "VERDICT"), [(one.where, verdict(one)) for one in found.lines]))
    return 0


def unknown(asked: str, known: Iterable[str]) -> str:
    """There is no such session; those of its name in other namespaces are named."""
    like = [key for key in sorted(known) if key.endswith(f"/{asked.rpartition('/')[2]}")]
    hint = f"is it {' or '.join(like[:NAMED])}?" if like else "see kubectl get llms -A"
    return f"no session {asked}; name it as NAMESPACE/NAME ({hint})"


def verdict(line: Line) -> str:
    """What the table says of a place."""
    if line.here:
        return f"it is here; {line.why}" if line.why else "it is here"
    return line.why or "it would fit"


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
    parser.add_argument("--config", type=Path, help=f"its operator's settings, else {SETTINGS}")
    parser.add_argument("--every", type=float, default=60, help="seconds between samples")
    parser.add_argument("--until", type=float, default=float("inf"), help="stop after so long")
    parser.add_argument("--start-seconds", type=float, default=10)
    parser.add_argument("--stop-seconds", type=float, default=10)
    parser.add_argument("--json", action="store_true")


def run_simulate(options: argparse.Namespace) -> int:
    if not options.live and not (options.nodes and options.sessions):
        sys.stderr.write("sojourn-operator simulate: --nodes and --sessions, or --live\n")
        return 2
    _check_times(options)
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


def _check_times(options: argparse.Namespace) -> None:
    for name, low in (
        ("every", 1.0),
        ("until", 0.0),
        ("start_seconds", 0.0),
        ("stop_seconds", 0.0),
    ):
        value = getattr(options, name)
        if not value >= low:
            flag = name.replace("_", "-")
            raise StudyError(f"--{flag} {value:g}: give seconds, {low:g} or more")


def simulation_of(options: argparse.Namespace) -> Simulation:
    """The world and its jobs, from files or from the live cluster, whose sessions begin where they
    stand and never end.
    """
    live = live_state(options.config) if options.live else None
    nodes = nodes_from(options.nodes) if options.nodes else []
    tiers = tuple(live.tiers.values()) if live else TIERS
    tenants = tuple(live.tenants.values()) if live else ()
    jobs = jobs_from(options.sessions, tiers, tenants) if options.sessions else []
    if live is not None:
        nodes = [*live.nodes.values(), *nodes]
        jobs += there(live)
    world = World(
        nodes=nodes,
        tiers=tiers,
        tenants=tenants,
        start_seconds=options.start_seconds,
        stop_seconds=options.stop_seconds,
    )
    return Simulation(world, jobs, every=options.every, until=options.until)


def there(live: plan.State) -> list[Job]:
    """The sessions of a cluster, on a clock that begins at 0 with the simulation."""
    return [
        Job(
            replace(
                one,
                created=one.created - live.now,
                since=one.since - live.now,
                not_before=one.not_before - live.now,
                nomination=one.nomination
                and replace(one.nomination, expires=one.nomination.expires - live.now),
            ),
            arrival=0.0,
            duration=float("inf"),
            there=True,
        )
        for one in live.sessions.values()
    ]


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


def live_state(config: Path | None) -> plan.State:
    """The state that the operator would decide from, but for what its process alone knows.

    That is the mix that it packs for, and what runtimes said when they were polled.
    """
    from sojourn_operator.act.api import ApiError, reached  # noqa: PLC0415
    from sojourn_operator.seen import others, world  # noqa: PLC0415 - files need no cluster
    from sojourn_operator.seen.cache import Cache  # noqa: PLC0415
    from sojourn_operator.view import of  # noqa: PLC0415

    settings = load(config or (SETTINGS if SETTINGS.exists() else None))
    cache, api = Cache(lambda: None), reached()
    try:
        cache.relist(api)
        taken = others.read(api)
    except ApiError as error:
        raise StudyError(f"cannot read the cluster: {error}") from error
    seen = replace(world.world_of(cache, time.time()), others=taken)
    return of(settings).state(seen, blocked=frozenset())


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
