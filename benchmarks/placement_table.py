"""The tables of placement: every trace by every policy over the seeds, beside the bounds.

Results are kept in a file as they come, so that a run can be broken off and taken up again. Prints
Markdown for docs; `placement.py` shows and logs single runs.
"""

import argparse
import statistics
from collections.abc import Iterator
from pathlib import Path

from bound import fair, most
from experiment import fill
from kept import Job, gather, key_of
from openb import capacity_of, read_machines, read_pods
from placement import CHOICES, maker

NODES = "openb_node_list_gpu_node.csv"
PREFIX = "openb_pod_list_"


def run(job: Job) -> float:
    """Allocation (%) at 100 % arrival of one trace, policy, mix, seed and order."""
    folder, trace, policy, mix, seed, order = job
    data = Path(str(folder))
    machines, pods = read_machines(data / NODES), read_pods(data / f"{PREFIX}{trace}.csv")
    found = fill(
        machines,
        pods,
        maker(str(policy), str(mix)),
        seed=int(seed),
        order=str(order),
        until=1.0,
    )
    return found.allocation[100]


def traces_in(folder: Path) -> list[str]:
    return sorted(path.stem.removeprefix(PREFIX) for path in folder.glob(f"{PREFIX}*.csv"))


def jobs_of(args: argparse.Namespace) -> Iterator[Job]:
    for seed in range(args.seed, args.seed + args.seeds):
        for trace in args.traces or traces_in(args.data):
            for policy in args.policies:
                yield str(args.data), trace, policy, args.mix, seed, args.order


def table(args: argparse.Namespace, results: dict[str, float]) -> Iterator[str]:
    """Mean over the seeds and, for one's own policy, the standard deviation."""
    machines = read_machines(args.data / NODES)
    yield "| trace | " + " | ".join(args.policies) + " | bound, equal parts | bound, may refuse |"
    yield "| --- |" + " --- |" * (len(args.policies) + 2)
    for trace in args.traces or traces_in(args.data):
        cells = []
        for policy in args.policies:
            values = [results[key_of(job)] for job in jobs_of(args) if job[1:3] == (trace, policy)]
            spread = statistics.stdev(values) if len(values) > 1 else 0.0
            cells.append(f"{statistics.fmean(values):.2f} ± {spread:.2f}")
        pods, capacity = read_pods(args.data / f"{PREFIX}{trace}.csv"), capacity_of(machines)
        bounds = (fair(pods, capacity), most(pods, capacity))
        yield f"| {trace} | " + " | ".join([*cells, *(f"{bound:.2f}" for bound in bounds)]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of the openb CSV files")
    parser.add_argument("--results", type=Path, required=True, help="file that keeps results")
    parser.add_argument("--policies", nargs="+", choices=CHOICES, default=list(CHOICES))
    parser.add_argument("--traces", nargs="*", help="all in the folder unless named")
    parser.add_argument("--mix", choices=("declared", "observed", "none"), default="declared")
    parser.add_argument("--order", default="seed")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    args = parser.parse_args()
    results = gather(jobs_of(args), run, args.results, processes=args.jobs)
    for line in table(args, results):
        print(line)


if __name__ == "__main__":
    main()
