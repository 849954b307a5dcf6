"""`make demo`: tells the story of Sojourn on a real Kubernetes, and ends with a summary."""

import argparse
import sys
import time
from pathlib import Path

from kube import CommandFailedError, NotInTimeError
from places import local_cluster, only_telling, own_cluster
from steps import condition_of
from story import Facts, tell


def summary(facts: Facts) -> str:
    """Seconds of each step; how long each pause took, and what was saved at the first."""
    lines = [f"   {what:58} {seconds:7.1f} s" for what, seconds in facts.times.items()]
    lines += [f"   {e['reason']}: {e['message']}" for e in facts.events if e["reason"] == "Paused"]
    lines.append(f"   Saved: {condition_of(facts.paused, 'ContextSaved').get('message', '')}")
    return "\n".join(["Summary", *lines])


def main() -> int:
    """Run the demo; 0 when every text was equal to its control run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the cluster up")
    parser.add_argument("--kubeconfig", type=Path, help="use this cluster instead of a local one")
    parser.add_argument(
        "--values",
        type=Path,
        help="the chart's values for that cluster (else the local one's)",
    )
    args = parser.parse_args()
    start = time.monotonic()
    where = (
        own_cluster(args.kubeconfig, values=args.values)
        if args.kubeconfig
        else local_cluster(keep=args.keep)
    )
    try:
        with only_telling(args.kubeconfig), where as place:
            facts = tell(place)
    except (CommandFailedError, NotInTimeError) as error:
        print(f"\nThe demo failed: {error}", file=sys.stderr)
        return 1
    print(f"\n{summary(facts)}\n   the whole demo {time.monotonic() - start:.0f} s")
    return 0 if all(run.identical and run.once for run in facts.runs) else 1


if __name__ == "__main__":
    raise SystemExit(main())
