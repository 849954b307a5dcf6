"""Runs the published placement experiment with one policy and prints what it allocates.

`--nodes` and `--pods` are the CSV files of the openb traces. `--seeds N` takes N seeds from
`--seed` on. `--log FILE` writes one row per decision (step,pod,placed,node,gpus), so that anyone
can replay it. The policy `sojourn` is the operator's own placer, told the mix of the trace
(`--mix declared`), or only what has arrived so far (`--mix observed`).
"""

import argparse
import csv
import functools
import json
import random
import resource
import statistics
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from baselines import POLICIES, baseline
from experiment import Allowance, MakePlacer, Placer, churn, fill, quantile
from openb import Machine, Pod, read_machines, read_pods
from ours import OurPlacer, mix_from
from sojourn_operator.plan.score import PASSING, Weights
from sojourn_operator.plan.state import Mix

CHOICES = ("sojourn", "fgd", *POLICIES)


def weights_from(changes: Iterable[str], plain: Weights) -> Weights:
    """The operator's weights with `name=value` changes, to see what each ingredient is worth."""
    pairs = (change.partition("=") for change in changes)
    return replace(plain, **{name: float(value) for name, _, value in pairs})


def maker(policy: str, mix: str, changes: Iterable[str] = ()) -> MakePlacer:
    """How to make the placer of a policy for a run."""
    weights, passing = weights_from(changes, Weights()), weights_from(changes, PASSING)

    def make(machines: list[Machine], pods: list[Pod], rng: random.Random) -> Placer:
        if policy != "sojourn":
            return baseline(policy, machines, pods, rng=rng)
        known = mix_from(pods) if mix == "declared" else Mix()
        return OurPlacer(
            machines, mix=known, observe=mix == "observed", weights=weights, passing=passing
        )

    return make


def stretched(machines: list[Machine], times: int) -> list[Machine]:
    """The cluster several times over, for questions of size."""
    if times == 1:
        return machines
    return [
        Machine(f"{machine.name}-{copy}", machine.cpu, machine.memory, machine.gpus, machine.model)
        for copy in range(times)
        for machine in machines
    ]


def one_fill(args: argparse.Namespace, machines: list[Machine], pods: list[Pod], seed: int) -> Any:
    """One seed of the published experiment."""
    result = fill(
        machines,
        pods,
        maker(args.policy, args.mix, args.weight),
        seed=seed,
        order=args.order,
        until=args.until,
    )
    if args.log:
        with args.log.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["step", "pod", "placed", "node", "gpus"])
            writer.writerows((s, p, int(ok), node, gpus) for s, p, ok, node, gpus in result.log)
    last = max(x for x in result.allocation if x <= 100)
    return {
        "seed": seed,
        "allocation": round(result.allocation[last], 3),
        "curve": {x: round(y, 3) for x, y in sorted(result.allocation.items()) if x % 5 == 0},
        "decisions": len(result.seconds),
        "setupSeconds": round(result.setup, 2),
        "milliseconds": times(result.seconds),
        "cpuMilliseconds": times(result.cpu_seconds),
    }


def times(seconds: list[float]) -> dict[str, float]:
    """Decision with update: by the wall clock, or of this thread alone on a machine in use."""
    found = {f"p{100 * part:g}": quantile(seconds, part) for part in (0.5, 0.99)}
    found["mean"] = 1000 * statistics.fmean(seconds)
    return {name: round(value, 4) for name, value in found.items()}


def one_churn(args: argparse.Namespace, machines: list[Machine], pods: list[Pod], seed: int) -> Any:
    """One seed of churn at the given load."""
    make = maker(args.policy, args.mix, args.weight)
    allowed = Allowance(args.moves, args.least)
    result = churn(machines, pods, make, seed=seed, load=args.load / 100, allowed=allowed)
    return {
        "seed": seed,
        "load": args.load,
        "rejected": round(result.rejected, 3),
        "allocated": round(result.allocated, 3),
        "arrivals": result.arrivals,
        "movesPer100": round(result.moves, 2),
        "letInPer100": round(result.let_in, 2),
        "moved": round(result.moved, 3),
        "byWidth": {width: round(part, 2) for width, part in result.by_width.items()},
    }


def summary(rows: list[dict[str, Any]], key: str) -> dict[str, float]:
    """Mean and standard deviation over the seeds."""
    values = [row[key] for row in rows]
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return {"mean": round(statistics.fmean(values), 3), "sd": round(spread, 3)}


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = functools.partial(top.add_argument)
    add("--nodes", type=Path, required=True, help="CSV of machines")
    add("--pods", type=Path, required=True, help="CSV of pods")
    add("--policy", choices=CHOICES, default="sojourn")
    add("--seed", type=int, default=42)
    add("--seeds", type=int, default=1, help="how many seeds, counted up from --seed")
    add("--order", default="seed", help="of machines: seed, name, reverse or large-first")
    add("--mix", choices=("declared", "observed", "none"), default="declared")
    add("--weight", action="append", default=[], help="of the policy, name=value; repeatable")
    add("--until", type=float, default=1.0, help="arrivals, as a multiple of the GPUs")
    add("--times", type=int, default=1, help="repeat cluster and trace so many times")
    add("--churn", action="store_true", help="let pods leave; prints what is rejected")
    add("--load", type=float, default=100.0, help="of churn, %% of the GPUs")
    add("--moves", type=float, default=0.0, help="of churn, allowed per 100 arrivals")
    add("--least", type=int, default=500, help="thousandths that each move must let in")
    add("--log", type=Path, help="write one row per decision")
    add("--json", action="store_true")
    return top


def main() -> None:
    args = parser().parse_args()
    machines = stretched(read_machines(args.nodes), args.times)
    pods = read_pods(args.pods) * args.times
    run = one_churn if args.churn else one_fill
    rows = [run(args, machines, pods, args.seed + index) for index in range(args.seeds)]
    key = "rejected" if args.churn else "allocation"
    report = {
        "policy": args.policy,
        "pods": args.pods.stem,
        "gpus": sum(machine.gpus for machine in machines),
        key: summary(rows, key),
        "peakMiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "runs": rows,
    }
    if args.json:
        print(json.dumps(report))
        return
    print(f"{args.policy} on {args.pods.stem}, {report['gpus']} GPUs, {args.seeds} seeds")
    print(f"{key} %: {report[key]['mean']} (sd {report[key]['sd']})")
    for row in rows:
        print("  " + "  ".join(f"{name} {value}" for name, value in row.items() if name != "curve"))


if __name__ == "__main__":
    main()
