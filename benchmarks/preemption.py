"""Times the plan for a Gold session that needs room on a full cluster of many sessions.

`--nodes` is the openb list of machines; sessions of three tiers fill it, then Gold claims come
one by one, each carried out before the next. Prints milliseconds per plan, by the clock and by
CPU.
"""

import argparse
import json
import random
from dataclasses import replace
from pathlib import Path
from time import perf_counter, thread_time

from experiment import quantile
from openb import read_machines
from ours import REFERENCE
from sojourn_operator.plan.actions import Nominate, Pause
from sojourn_operator.plan.planner import Planner
from sojourn_operator.plan.play import World
from sojourn_operator.plan.state import Gpu, Node, Phase, Request, Session, Tier

SLICES = 80
TIERS = (
    Tier("gold", 2000),
    Tier("silver", 1000, pausable_by=frozenset({"gold"})),
    Tier("bronze", 100, pausable_by=frozenset({"gold", "silver"})),
)


def nodes_from(path: Path) -> list[Node]:
    """The machines with memory as slices, all GPUs of one model."""
    return [
        Node(
            name=machine.name,
            cpu_milli=machine.cpu,
            memory_bytes=machine.memory << 20,
            gpus=tuple(
                Gpu(i, f"{machine.name}-{i}", "A100-80GB", slices=SLICES, speed=REFERENCE)
                for i in range(machine.gpus)
            ),
        )
        for machine in read_machines(path)
    ]


def session(rng: random.Random, number: int, tier: str, slices: int) -> Session:
    return Session(
        f"load/s{number}",
        tier,
        Request(slices=slices, cpu_milli=500),
        Phase.WAITING,
        created=float(number),
        since=0.0,
        save_bytes=rng.randint(10**6, 10**9),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=Path, required=True)
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--claims", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    world = World(nodes=nodes_from(args.nodes), tiers=TIERS)
    planner = Planner()
    for number in range(args.sessions):
        tier = rng.choice(["gold", "silver", "silver", "bronze"])
        world.put(session(rng, number, tier, rng.choice([20, 40, 60, 80, 80])))
    begin = perf_counter()
    world.do(planner.plan(world.state()).actions)
    first = perf_counter() - begin
    for _ in range(2):
        world.advance(10_000.0)
    for one in list(world.sessions.values()):
        if one.phase is not Phase.RUNNING:
            world.put(replace(one, suspend=True))
    planner.plan(world.state())
    wall, cpu, rooms, paused = [], [], 0, 0
    for number in range(args.claims):
        slices = rng.choice([20, 40, 60, 80])
        world.put(session(rng, args.sessions + number, "gold", slices))
        state = world.state()
        begin, busy = perf_counter(), thread_time()
        actions = planner.plan(state).actions
        cpu.append(thread_time() - busy)
        wall.append(perf_counter() - begin)
        rooms += sum(isinstance(one, Nominate) for one in actions)
        paused += sum(isinstance(one, Pause) for one in actions)
        world.do(actions)
        world.advance(5.0)
        world.do(planner.plan(world.state()).actions)
    report = {
        "sessions": args.sessions,
        "gpus": sum(len(node.gpus) for node in world.nodes.values()),
        "running": sum(one.phase is Phase.RUNNING for one in world.sessions.values()),
        "firstPlanSeconds": round(first, 2),
        "claims": args.claims,
        "nominations": rooms,
        "pauses": paused,
        "milliseconds": {f"p{p}": round(quantile(wall, p / 100), 2) for p in (50, 99)},
        "cpuMilliseconds": {f"p{p}": round(quantile(cpu, p / 100), 2) for p in (50, 99)},
    }
    if args.json:
        print(json.dumps(report))
        return
    for name, value in report.items():
        print(f"{name}: {value}")


if __name__ == "__main__":
    main()
