"""Asks each runtime how it does, over HTTP, and keeps what is settled: target met, exact, idle.

Fast-changing numbers stay in the runtime's own metrics. A runtime that stops to answer keeps its
last facts and is told as silent: a dead node's kubelet says nothing for most of a minute. Nothing
is decided here.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

import urllib3
from sojourn_api.names import PATH_STATUS, PORT, TARGET_MET
from sojourn_api.objects import IdleAction, LatencyMetric

from sojourn_operator import metrics, reasons
from sojourn_operator.act.status import FALSE, TRUE, Verdict
from sojourn_operator.plan.words import counted
from sojourn_operator.seen.cache import Cache
from sojourn_operator.seen.report import RuntimeStatus, parse_status
from sojourn_operator.session.scene import Runtime

TIMEOUT_SECONDS: Final = 1.0
WORKERS: Final = 4
FLOCK: Final = 20
FLOCK_SECONDS: Final = 0.2
"""So many are asked at once, and so long after the ones before: with thousands of sessions a round
takes longer than its pause, and the operator's one core is not spent on asking. A guess.
"""
AGREEING: Final = 3
"""Answers in a row that must agree before `TargetMet` turns: one slow window is no news."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Target:
    """One runtime to ask, and what to hold its answer against."""

    uid: str
    node: str
    url: str
    metric: LatencyMetric
    target_ms: int
    idle_after: int


@dataclass(frozen=True, slots=True)
class _Known:
    runtime: Runtime
    votes: tuple[str, ...] = ()
    answered: float | None = None
    """When it last did, on the monotonic clock; None: not to this replica since it leads."""
    misses: int = 0
    """Polls since then."""


class Poller:
    """Polls while this replica leads; `runtimes` is what it knows, by pod uid."""

    def __init__(
        self,
        cache: Cache,
        *,
        seconds: float,
        misses: int,
        leads: Callable[[], bool],
        wake: Callable[[], None],
    ) -> None:
        """`misses` polls in a row without an answer make a runtime silent."""
        self._cache = cache
        self._seconds = seconds
        self._misses = misses
        self._leads = leads
        self._wake = wake
        self._http = urllib3.PoolManager(num_pools=64, retries=False, timeout=TIMEOUT_SECONDS)
        self._known: dict[str, _Known] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="poll", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(timeout=2 * TIMEOUT_SECONDS)

    def alive(self) -> bool:
        return self._thread.is_alive()

    def runtimes(self) -> dict[str, Runtime]:
        return {uid: known.runtime for uid, known in self._known.items()}

    def _run(self) -> None:
        with ThreadPoolExecutor(max_workers=WORKERS, thread_name_prefix="poll") as pool:
            while not self._stopping.wait(self._seconds):
                if self._leads():
                    self._round(pool)
                else:
                    # Whoever polled meanwhile knows better; and time went by without us.
                    self._known = {uid: _unheard(known) for uid, known in self._known.items()}

    def _round(self, pool: ThreadPoolExecutor) -> None:
        targets = list(self._targets())
        answers: dict[Target, RuntimeStatus | None] = {}
        for first in range(0, len(targets), FLOCK):
            if first and self._stopping.wait(FLOCK_SECONDS):
                return
            flock = targets[first : first + FLOCK]
            answers |= zip(flock, pool.map(self._ask, flock), strict=True)
        limit = math.inf if deaf(answers) else self._misses
        now = time.monotonic()
        found = {
            target.uid: settle(self._known.get(target.uid), answer, target, now=now, misses=limit)
            for target, answer in answers.items()
        }
        news = _lasting(found) != _lasting(self._known)
        self._known = found
        if news:
            self._wake()

    def _targets(self) -> Iterable[Target]:
        sessions = self._cache.sessions.values()
        tiers = self._cache.tiers.values()
        for pod in self._cache.pods.values().values():
            seen = sessions.get(pod.key)
            if seen is None or not pod.ip or pod.phase != "Running" or pod.deleting:
                continue
            spec = seen.session.spec
            tier = tiers.get(spec.tier)
            yield Target(
                uid=pod.uid,
                node=pod.node,
                url=f"http://{pod.ip}:{PORT}{PATH_STATUS}",
                metric=tier.target_metric if tier else LatencyMetric.TIME_TO_FIRST_TOKEN,
                target_ms=tier.target_p95_ms if tier else 0,
                idle_after=spec.idle_after_seconds if spec.idle_action is IdleAction.PAUSE else 0,
            )

    def _ask(self, target: Target) -> RuntimeStatus | None:
        try:
            answer = self._http.request("GET", target.url)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            metrics.POLL_ERRORS.inc()
            log.debug("%s does not answer: %s", target.url, error)
            return None
        if answer.status != 200:
            metrics.POLL_ERRORS.inc()
            return None
        return parse_status(answer.data.decode(errors="replace"))


def deaf(answers: Mapping[Target, RuntimeStatus | None]) -> bool:
    """Whether nobody answers, on several nodes: then it is we who are cut off from them."""
    nodes = {target.node for target in answers}
    return len(nodes) > 1 and not any(answers.values())


def settle(
    known: _Known | None,
    answer: RuntimeStatus | None,
    target: Target,
    *,
    now: float,
    misses: float,
) -> _Known:
    """What is known after one more answer (None: there was none)."""
    before = known or _Known(Runtime())
    if answer is None:
        return _missed(before, now=now, limit=misses)
    votes = (*before.votes, _vote(answer, target))[-AGREEING:]
    verdict = before.runtime.target
    if len(votes) == AGREEING and len(set(votes)) == 1 and votes[0]:
        verdict = _verdict(votes[0], answer, target, before=verdict)
    idle = bool(target.idle_after) and answer.idle_seconds >= target.idle_after
    runtime = Runtime(
        phase=answer.phase,
        exact=answer.exact,
        exact_reason=answer.exact_reason,
        target=verdict,
        idle=idle and not answer.requests,
        unsaved_bytes=answer.unsaved_bytes,
        snapshot=answer.snapshot,
        stalled=answer.stalled,
        damage=answer.damage,
        weights=answer.weights,
    )
    return _Known(runtime, votes, answered=now)


def _missed(known: _Known, *, now: float, limit: float) -> _Known:
    """After a poll without an answer; of one that never answered nothing can be concluded."""
    if known.answered is None:
        return known
    misses, runtime = known.misses + 1, known.runtime
    if not runtime.silent and misses >= limit:
        silent = f"{counted(misses, 'poll')} in {now - known.answered:.0f} s"
        runtime = replace(runtime, silent=silent)
    return replace(known, runtime=runtime, misses=misses)


def _unheard(known: _Known) -> _Known:
    return replace(known, runtime=replace(known.runtime, silent=""), answered=None, misses=0)


def _vote(answer: RuntimeStatus, target: Target) -> str:
    measured = answer.latency.of(target.metric)
    if not target.target_ms or measured is None or not answer.latency.window:
        return reasons.NO_TRAFFIC if target.target_ms else ""
    return reasons.MET if measured <= target.target_ms else reasons.MISSED


def _verdict(
    vote: str, answer: RuntimeStatus, target: Target, *, before: Verdict | None
) -> Verdict | None:
    """The condition for an agreed vote; with figures of each poll, each poll were a write."""
    if vote == reasons.NO_TRAFFIC or (before is not None and before.reason == vote):
        return None if vote == reasons.NO_TRAFFIC else before
    measured = answer.latency.of(target.metric) or 0.0
    side = "within" if vote == reasons.MET else "above"
    text = (
        f"p95 {target.metric} {measured:.0f} ms, "
        f"{side} the target of {target.target_ms} ms, when this last turned"
    )
    return Verdict(TARGET_MET, TRUE if vote == reasons.MET else FALSE, vote, text)


def _lasting(known: dict[str, _Known]) -> dict[str, Runtime]:
    """Without what changes with every answer."""
    return {
        uid: replace(entry.runtime, unsaved_bytes=0, snapshot=None) for uid, entry in known.items()
    }
