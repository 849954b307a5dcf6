"""Asks each runtime how it does, over HTTP, and keeps what is settled: target met, exact, idle.

Fast-changing numbers stay in the runtime's own metrics. A runtime that does not answer keeps its
last facts: whether it is Ready is the kubelet's probe to say. Nothing is decided here.
"""

import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

import urllib3
from sojourn_api.names import PATH_STATUS, PORT, TARGET_MET
from sojourn_api.objects import IdleAction, LatencyMetric

from sojourn_operator import metrics, reasons
from sojourn_operator.act.status import FALSE, TRUE, Verdict
from sojourn_operator.cache import Cache
from sojourn_operator.report import RuntimeStatus, parse_status
from sojourn_operator.scene import Runtime

TIMEOUT_SECONDS: Final = 1.0
WORKERS: Final = 4
AGREEING: Final = 3
"""Answers in a row that must agree before `TargetMet` turns: one slow window is no news."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Target:
    """One runtime to ask, and what to hold its answer against."""

    uid: str
    url: str
    metric: LatencyMetric
    target_ms: int
    idle_after: int


@dataclass(frozen=True, slots=True)
class _Known:
    runtime: Runtime
    votes: tuple[str, ...] = ()


class Poller:
    """Polls while this replica leads; `runtimes` is what it knows, by pod uid."""

    def __init__(
        self, cache: Cache, *, seconds: float, leads: Callable[[], bool], wake: Callable[[], None]
    ) -> None:
        self._cache = cache
        self._seconds = seconds
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

    def _round(self, pool: ThreadPoolExecutor) -> None:
        targets = list(self._targets())
        answers = pool.map(self._ask, targets)
        found = {
            target.uid: settle(self._known.get(target.uid), answer, target)
            for target, answer in zip(targets, answers, strict=True)
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


def settle(known: _Known | None, answer: RuntimeStatus | None, target: Target) -> _Known:
    """What is known after one more answer (None: there was none)."""
    before = known or _Known(Runtime())
    if answer is None:
        return before
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
    )
    return _Known(runtime, votes)


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
