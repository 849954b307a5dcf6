"""The tables of placement where sessions come and go: what is rejected, by policy and by moves.

Every policy sees the same arrivals and lifetimes for a seed. Results are kept in a file as they
come; prints Markdown for docs. `placement.py --churn` shows single runs.
"""

import argparse
import statistics
from collections.abc import Iterator
from pathlib import Path

from experiment import Allowance, churn
from kept import Job, gather, key_of
from openb import read_machines, read_pods
from placement import CHOICES, maker
from placement_table import NODES, PREFIX

Found = dict[str, float]
"""Of one run: `rejected`, `allocated`, `moves`, `let_in` and `moved`, as in `Churn`."""


def run(job: Job) -> Found:
    """One run of churn: trace, policy, mix, load in %, moves per 100 arrivals, least, seed."""
    folder, trace, policy, mix, load, moves, least, seed = job
    data = Path(str(folder))
    machines, pods = read_machines(data / NODES), read_pods(data / f"{PREFIX}{trace}.csv")
    found = churn(
        machines,
        pods,
        maker(str(policy), str(mix)),
        seed=int(seed),
        load=float(load) / 100,
        allowed=Allowance(float(moves), int(least)),
    )
    return {
        "rejected": found.rejected,
        "allocated": found.allocated,
        "moves": found.moves,
        "let_in": found.let_in,
        "moved": found.moved,
    }


def jobs_of(args: argparse.Namespace) -> Iterator[Job]:
    """Policies without moves, then the operator's own with each number of moves."""
    for seed in range(args.seed, args.seed + args.seeds):
        for load in args.loads:
            for policy in args.policies:
                yield str(args.data), args.trace, policy, args.mix, load, 0, args.least, seed
            for moves in args.moves:
                yield str(args.data), args.trace, "sojourn", args.mix, load, moves, args.least, seed


def cell(found: list[float]) -> str:
    """Mean and standard deviation over the seeds."""
    spread = statistics.stdev(found) if len(found) > 1 else 0.0
    return f"{statistics.fmean(found):.2f} ± {spread:.2f}"


def by_policy(args: argparse.Namespace, results: dict[str, Found]) -> Iterator[str]:
    """Rejected thousandths in % of those asked for, without moves; in brackets the allocated."""
    yield "| load % | " + " | ".join(args.policies) + " |"
    yield "| --- |" + " --- |" * len(args.policies)
    for load in args.loads:
        cells = [
            cell(column(args, results, (policy, load, 0), "rejected"))
            + f" ({statistics.fmean(column(args, results, (policy, load, 0), 'allocated')):.2f})"
            for policy in args.policies
        ]
        yield f"| {load} | " + " | ".join(cells) + " |"


def by_moves(args: argparse.Namespace, results: dict[str, Found]) -> Iterator[str]:
    """What moves bring: each is a pause of `moved` thousandths to let rejected ones in."""
    yield (
        "| load % | moves allowed | made | let in | allocated % | rejected % | saved "
        "| moved for 1 saved |"
    )
    yield "|" + " --- |" * 8
    for load in args.loads:
        base = statistics.fmean(column(args, results, ("sojourn", load, 0), "rejected"))
        for moves in (0, *args.moves):
            found = {
                name: column(args, results, ("sojourn", load, moves), name)
                for name in ("rejected", "allocated", "moves", "let_in", "moved")
            }
            saved = base - statistics.fmean(found["rejected"])
            moved = statistics.fmean(found["moved"])
            price = f"{moved / saved:.2f}" if moves and saved > 0 else "-"
            yield (
                f"| {load} | {moves:g} | {statistics.fmean(found['moves']):.2f} "
                f"| {statistics.fmean(found['let_in']):.2f} "
                f"| {statistics.fmean(found['allocated']):.2f} | {cell(found['rejected'])} "
                f"| {saved:.2f} | {price} |"
            )


def column(
    args: argparse.Namespace, results: dict[str, Found], what: tuple[str, float, float], name: str
) -> list[float]:
    """One figure over the seeds, for a policy, a load and a number of moves."""
    policy, load, moves = what
    return [
        results[key_of(job)][name]
        for job in jobs_of(args)
        if (job[2], job[4], job[5]) == (policy, load, moves)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the openb CSV files")
    parser.add_argument("--results", type=Path, required=True, help="file that keeps results")
    parser.add_argument("--trace", default="default")
    parser.add_argument("--policies", nargs="+", choices=CHOICES, default=list(CHOICES))
    parser.add_argument("--mix", choices=("declared", "observed", "none"), default="declared")
    parser.add_argument("--loads", nargs="+", type=int, default=[95, 100, 110])
    parser.add_argument("--moves", nargs="*", type=float, default=[1, 5, 10])
    parser.add_argument("--least", type=int, default=500, help="thousandths a move must let in")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    args = parser.parse_args()
    results = gather(jobs_of(args), run, args.results, processes=args.jobs)
    for line in (*by_policy(args, results), "", *by_moves(args, results)):
        print(line)


if __name__ == "__main__":
    main()
