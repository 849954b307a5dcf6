"""Processes that use one GPU's arbiter as runtimes do, for tests and benchmarks.

`python arbiterplayers.py ROLE ...`; each writes what it did, with monotonic times, as JSON.
"""

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from sojourn_api import arbiter
from sojourn_api.arbiter_page import Page
from sojourn_api.arbiter_turn import Turns
from sojourn_api.arbiter_watch import Watch

PATIENCE_SECONDS = 10.0
"""Far above the heartbeat's bound: whoever is held up so long is held up for ever."""
HOUR_NS = 3_600_000_000_000


def gold(grants: str, slot: str, requests: str) -> None:
    """Raise and lower the flag; report each rise (done) and fall (begun)."""
    page = Page(Path(grants) / slot / arbiter.POD)
    _say({"ready": True})
    rises, falls = [], []
    for _ in range(int(requests)):
        page.raise_flag()
        rises.append(time.monotonic_ns())
        _spin(100_000)
        falls.append(time.monotonic_ns())
        page.lower_flag()
        _spin(20_000)
    _say({"rises": rises, "falls": falls})
    page.close()


def silver(grants: str, slot: str, seconds: str, step_us: str) -> None:
    """Look before every step; report when the look began and ended, and when the step ended."""
    page = Page(Path(grants) / slot / arbiter.POD)
    watch = Watch(Path(grants), own_slot=slot)
    priority = arbiter.read_tier(Path(grants), slot).priority
    _say({"ready": True})
    looks, seen, ends = [], [], []
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        page.beat()
        look = time.monotonic_ns()
        if watch.higher_raised(priority):
            continue
        looked = time.monotonic_ns()
        page.step()
        _spin(int(step_us) * 1000)
        page.step_done()
        looks.append(look)
        seen.append(looked)
        ends.append(time.monotonic_ns())
    _say({"looks": looks, "seen": seen, "ends": ends})
    page.close()


def equal(grants: str, slot: str, seconds: str, step_us: str) -> None:
    """Take turns; report the computing time."""
    page = Page(Path(grants) / slot / arbiter.POD)
    threading.Thread(target=_beat, args=(page,), daemon=True).start()
    turns = Turns(Path(grants), page, own_slot=slot)
    _say({"ready": True})
    sys.stdin.readline()  # all begin together
    computed = 0
    end = time.monotonic() + float(seconds)
    turns.want(True)  # noqa: FBT003
    while time.monotonic() < end:
        if not turns.mine():
            time.sleep(0.0005)
            continue
        begin = time.monotonic_ns()
        time.sleep(int(step_us) / 1e6)  # the GPU computes, the CPU idles
        spent = time.monotonic_ns() - begin
        turns.spent(spent)
        computed += spent
    _say({"computed": computed})
    os._exit(0)


def _beat(page: Page, every: float = 0.05) -> None:
    while True:
        page.beat()
        time.sleep(every)


def riot(folder: str, rounds: str, seed: str) -> None:
    """Eight owners of three tiers, killed and stopped at random, while they compute in turns.

    After each blow the one who was hit may not hold the GPU, as a reader of the lowest tier sees
    it, and somebody else must go on: whoever was hit may have had its flag up, or the turn.
    """
    grants = Path(folder)
    index = arbiter.create_index(grants, arbiter.Limits(stale_ns=60_000_000))
    tiers = {"1": 2500, "2": 2500, "3": 1000, "4": 1000, "5": 1000, "6": 0, "7": 0, "8": 0}
    for slot, priority in tiers.items():
        arbiter.create_grant(grants, slot, arbiter.Tier(priority=priority))
    arbiter.bump(index)
    dice = random.Random(int(seed))  # noqa: S311
    pids = {slot: _owner(grants, slot) for slot in tiers}
    watch = Watch(grants)
    wrong = stuck = 0
    for _ in range(int(rounds)):
        slot = dice.choice(sorted(tiers))
        killed = dice.random() < 0.5
        os.kill(pids[slot], signal.SIGKILL if killed else signal.SIGSTOP)
        if killed:
            os.waitpid(pids[slot], 0)
        others = {other: _steps(grants, other) for other in tiers if other != slot}
        wrong += not _soon(partial(_holds_not, watch, slot))
        stuck += not _soon(partial(_somebody_went_on, grants, others))
        if wrong or stuck:
            break  # it takes its time, and one is enough
        if killed:
            pids[slot] = _owner(grants, slot)
        else:
            os.kill(pids[slot], signal.SIGCONT)
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    still = [slot for slot in tiers if not _steps(grants, slot)]
    _say({"wrong": wrong, "stuck": stuck, "idle": still, "left": watch.holder(-1) is not None})


def _steps(grants: Path, slot: str) -> int:
    return arbiter.read_page(grants, slot).steps


def _holds_not(watch: Watch, slot: str) -> bool:
    holder = watch.holder(-1)
    return holder is None or holder.slot != slot


def _somebody_went_on(grants: Path, before: dict[str, int]) -> bool:
    return any(_steps(grants, slot) > steps for slot, steps in before.items())


def _soon(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.0005)
    return True


def _owner(grants: Path, slot: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    page = Page(grants / slot / arbiter.POD)
    threading.Thread(target=_beat, args=(page, 0.01), daemon=True).start()
    watch = Watch(grants, own_slot=slot)
    # Without the bounds for the dishonest: the dead and the stopped hold nobody up for any time.
    turns = Turns(grants, page, own_slot=slot, turn_limit_ns=HOUR_NS, starved_ns=HOUR_NS)
    priority = arbiter.read_tier(grants, slot).priority
    dice = random.Random(os.getpid())  # noqa: S311
    while True:
        page.raise_flag()
        turns.want(wants=True)
        for _ in range(dice.randint(1, 5)):
            while watch.higher_raised(priority) or not turns.mine():
                time.sleep(0.0005)
            page.step()
            begin = time.monotonic_ns()
            time.sleep(dice.random() / 1000)
            spent = time.monotonic_ns() - begin
            page.step_done(spent)
            turns.spent(spent)
        page.lower_flag()
        turns.want(wants=False)
        time.sleep(dice.random() / 50)


def _spin(nanoseconds: int) -> None:
    end = time.monotonic_ns() + nanoseconds
    while time.monotonic_ns() < end:
        pass


def _say(what: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    roles: dict[str, Callable[..., None]] = {
        "gold": gold,
        "silver": silver,
        "equal": equal,
        "riot": riot,
    }
    roles[sys.argv[1]](*sys.argv[2:])
