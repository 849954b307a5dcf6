"""How the operator holds up beside kube-scheduler: 1,000 simulated nodes, 5,000 sessions at once.

First kube-scheduler binds as many equal pods, then the operator places the sessions, in one run on
one API server; then the operator is killed and started again beside a bare kopf listing, and its
memory is taken with fewer sessions. Every count is from the API server's audit log (see `audit`).
Some ten minutes. Prints Markdown; `--out FILE` writes JSON.
"""

import argparse
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from audit import Call, counted, latency
from jsonfile import save
from programs import cpu_seconds, peak_mib
from scale_table import table
from scalelab import (
    ADMIN,
    OPERATOR,
    ROOT,
    Lab,
    create_peer_pods,
    create_sessions,
    lab,
    remove_pods,
    remove_sessions,
)
from sojourn_api import names
from sojourn_operator.kinds import GPU_NODES, MODELS, NODES, PODS, SESSIONS, TIERS
from where import commit

if TYPE_CHECKING:
    from operatorrig import Operator

Raw = dict[str, Any]
FRACTIONS = (0.2, 0.5, 1.0)
"""Of the sessions: where memory is taken, for its slope."""
BARE = Path(__file__).resolve().with_name("barekopf.py")


def run(*, nodes: int, sessions: int, peer: bool, bare: bool, headless: bool) -> Raw:
    """All of it; keys are those of the report."""
    _say(f"an API server with {nodes} nodes comes up")
    with lab(nodes, headless=headless) as here:
        found: Raw = {"nodes": nodes, "sessions": sessions, "headless": headless}
        found["commit"] = commit()
        if peer:
            _say(f"kube-scheduler binds {sessions} pods")
            found["peer"] = peer_run(here, sessions)
        _say(f"the operator places {sessions} sessions")
        operator = here.operate()
        operator.until_ready()
        here.settle()
        found["ours"] = our_run(here, operator, sessions)
        _say("the operator starts again")
        found["restart"] = restart(here, operator, sessions, bare=bare)
        if bare:
            _say("its memory with fewer sessions")
            found["memory"] = memory(here, sessions)
        return found


def _say(what: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {what}\n")


@contextmanager
def watched(here: Lab, found: Raw, count: int) -> Iterator[None]:
    """Notes the load, and what each program spent on each of `count` objects until all is quiet."""
    before, found["loadBefore"] = cpu_seconds(), os.getloadavg()[0]
    yield
    found["loadAfter"] = os.getloadavg()[0]
    here.settle(seconds=600)
    after = cpu_seconds()
    used = {name: 1000 * (after[name] - before.get(name, 0.0)) / count for name in after}
    found["cpuMs"] = {name: round(spent, 1) for name, spent in used.items() if spent >= 0.05}
    found["cpuMs"]["all"] = round(sum(used.values()), 1)


def peer_run(here: Lab, count: int) -> Raw:
    """Equal pods, from the first creation to the last bind."""
    found: Raw = {}
    begin = time.time()
    with watched(here, found, count):
        create_peer_pods(here, range(count))

        def bound() -> bool:
            return len(_binds(here, begin)) >= count

        here.until(bound, what="kube-scheduler binds all pods", seconds=count / 10 + 60)
    binds = _binds(here, begin)
    first = min(call.begun for call in _created(here, "pods", begin))
    seconds = max(call.done for call in binds) - first
    found |= {"bound": count, "seconds": round(seconds, 2), "perSecond": round(count / seconds, 1)}
    found |= _creation(_created(here, "pods", begin), count)
    found["api"] = health(here.audit.of("", since=begin))
    remove_pods(here)
    return found


def _creation(calls: list[Call], count: int) -> Raw:
    seconds = max(call.done for call in calls) - min(call.begun for call in calls)
    return {"createdPerSecond": round(count / seconds, 1)}


def _binds(here: Lab, since: float) -> list[Call]:
    calls = here.audit.of("kube-scheduler", since=since)
    return [call for call in calls if call.subresource == "binding" and call.ok]


def _created(here: Lab, resource: str, since: float) -> list[Call]:
    calls = here.audit.of(ADMIN, since=since)
    return [
        call
        for call in calls
        if (call.verb, call.resource, call.subresource) == ("create", resource, "") and call.ok
    ]


def our_run(here: Lab, operator: "Operator", count: int) -> Raw:
    """Sessions, from the first creation to the last that has status, Service and pod."""
    found: Raw = {"idleMiB": round(operator.resident_mib(), 1)}
    begin = time.time()
    with watched(here, found, count):
        create_sessions(here, range(count))
        here.until(
            lambda: len(placed(here, begin)) >= count,
            what="all sessions are placed",
            seconds=count / 5 + 120,
        )
    times = placed(here, begin)
    first = min(call.begun for call in _created(here, "llmsessions", begin))
    seconds = max(times.values()) - first
    writes = here.audit.of(OPERATOR, since=begin)
    until = [call for call in writes if call.done <= times.get(_session(call), 0.0)]
    found |= {"placed": len(times), "seconds": round(seconds, 2)}
    found |= {"perSecond": round(len(times) / seconds, 1)}
    found |= _creation(_created(here, "llmsessions", begin), count)
    found["writesPerSession"] = round(len(until) / count, 2)
    found["writesUntilServing"] = round(len(writes) / count, 2)
    found["writes"] = counted(writes, lambda call: call.kind_of_write)
    found["settledSeconds"] = round(max(call.done for call in writes) - first, 2)
    found["api"] = health(here.audit.of("", since=begin))
    found |= state_of(here)
    found["residentMiB"] = round(operator.resident_mib(), 1)
    found["peakMiB"] = round(peak_mib(operator.process.pid), 1)
    return found


def _session(call: Call) -> str:
    """Of which session this write is: pods are named NAME-EPOCH, events NAME.HASH."""
    name = call.name.partition(".")[0] if call.resource == "events" else call.name
    name = name.rpartition("-")[0] if call.resource == "pods" else name
    return f"{call.namespace}/{name}"


def placed(here: Lab, since: float) -> dict[str, float]:
    """When each session had its status written, its Service and its pod."""
    wanted = ("llmsessions/status", "services", "pods")
    times: dict[str, dict[str, float]] = {}
    for call in here.audit.of(OPERATOR, since=since):
        what = f"{call.resource}/{call.subresource}" if call.subresource else call.resource
        if what in wanted and call.ok:
            times.setdefault(_session(call), {}).setdefault(what, call.done)
    return {key: max(parts.values()) for key, parts in times.items() if len(parts) == len(wanted)}


def health(calls: list[Call]) -> Raw:
    """What the API server says of its writes, all programs together.

    Refused by program: the API server itself draws a Service's address by lot, and draws again when
    it meets one that is taken (409).
    """
    refused: dict[str, Counter[str]] = {}
    for call in calls:
        if not call.ok:
            told = refused.setdefault(call.agent.partition("/")[0], Counter())
            told[f"{call.kind_of_write} {call.code}"] += 1
    kinds = sorted({call.kind_of_write for call in calls if OPERATOR in call.agent})
    each = {kind: latency(call for call in calls if call.kind_of_write == kind) for kind in kinds}
    return {"writes": len(calls), **latency(calls), "refused": refused, "each": each}


def state_of(here: Lab) -> Raw:
    """What the cluster looks like when all is quiet."""
    sessions = here.api.list(SESSIONS)[0]
    ready = sum(raw.get("status", {}).get("ready") == "True" for raw in sessions)
    pods = Counter(
        f"{raw['metadata']['namespace']}/{raw['metadata']['labels'][names.LABEL_SESSION]}"
        for raw in here.api.list(PODS, label_selector=names.LABEL_SESSION)[0]
    )
    return {
        "serving": ready,
        "unplaced": len(sessions) - len(pods),
        "duplicatePods": sum(number - 1 for number in pods.values()),
    }


def restart(here: Lab, operator: "Operator", count: int, *, bare: bool) -> Raw:
    """kill -9, one more session, and the time from the new start until its status is written."""
    found: Raw = {"loadBefore": os.getloadavg()[0]}
    operator.kill()
    if bare:
        found["bareSeconds"] = [bare_listing(here)]
    create_sessions(here, [count])
    begin = time.time()
    operator = here.operate()
    here.until(lambda: bool(placed(here, begin)), what="the restarted operator places", seconds=300)
    writes = here.audit.of(OPERATOR, since=begin)
    statuses = [call for call in writes if call.subresource == "status"]
    found["seconds"] = round(min(call.done for call in statuses) - begin, 2)
    here.settle()
    others = [
        call
        for call in here.audit.of(OPERATOR, since=begin)
        if not call.name.startswith(f"s{count:05d}")
    ]
    found["otherWrites"] = counted(others, lambda call: f"{call.kind_of_write} {call.name}")
    found |= state_of(here)
    found["residentMiB"] = round(operator.resident_mib(), 1)
    operator.kill()
    if bare:
        found["bareSeconds"].append(bare_listing(here))
        found["ratio"] = round(found["seconds"] / max(found["bareSeconds"]), 2)
    return found


def bare_listing(here: Lab) -> float:
    """Seconds that kopf alone takes for the same objects, its start included."""
    kinds = (NODES, GPU_NODES, TIERS, MODELS, SESSIONS)
    expected = [f"{kind.plural}={here.count(kind)}" for kind in kinds]
    expected += [f"{PODS.plural}={here.count(PODS, label_selector=names.LABEL_SESSION)}"]
    path = os.pathsep.join(str(ROOT / part) for part in ("crds", "operator"))
    env = {**os.environ, "KUBECONFIG": str(here.control_plane.kubeconfig), "PYTHONPATH": path}
    begin = time.monotonic()
    subprocess.run([sys.executable, str(BARE), *expected], env=env, check=True, timeout=300)
    return round(time.monotonic() - begin, 2)


def memory(here: Lab, count: int) -> Raw:
    """Of an operator that has just read so many sessions and their pods, the most first."""
    found: Raw = {}
    for fraction in sorted(FRACTIONS, reverse=True):
        left = round(count * fraction)
        remove_sessions(here, keep=left)
        operator = here.operate()
        operator.until_ready()
        here.settle()
        found[str(left)] = round(operator.resident_mib(), 1)
        operator.kill()
    low, high = round(count * min(FRACTIONS)), count
    slope = (found[str(high)] - found[str(low)]) * 1024 / (high - low)
    return {"residentMiB": found, "slopeKiB": round(slope, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--sessions", type=int, default=5000)
    parser.add_argument("--no-peer", action="store_true", help="leave kube-scheduler's turn out")
    parser.add_argument(
        "--quick", action="store_true", help="leave the bare listing and the slope of memory out"
    )
    parser.add_argument(
        "--headless", action="store_true", help="sessions get Services without an address"
    )
    parser.add_argument("--out", type=Path, help="write the report as JSON")
    args = parser.parse_args()
    found = run(
        nodes=args.nodes,
        sessions=args.sessions,
        peer=not args.no_peer,
        bare=not args.quick,
        headless=args.headless,
    )
    save(found, args.out)
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()
