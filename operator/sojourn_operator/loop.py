"""The one loop: what was seen -> what each session needs -> the plan -> its actions.

Level-triggered: a pass depends on the cache and the clock alone and may be repeated. One session's
error never stops the others: it is counted, and the next pass tries again.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from sojourn_operator import metrics, pacing, plan, reasons, upkeep, view
from sojourn_operator.act.api import Api, ApiError
from sojourn_operator.act.apply import Hands
from sojourn_operator.act.events import Teller
from sojourn_operator.act.pods import template_problem
from sojourn_operator.cache import Cache, Seen
from sojourn_operator.config import Config
from sojourn_operator.execute import Executor, Trouble
from sojourn_operator.kinds import LEASES
from sojourn_operator.leader import NotLeaderError
from sojourn_operator.note import Note, Subject
from sojourn_operator.planning import Planning
from sojourn_operator.pod import Pod
from sojourn_operator.scene import Runtime
from sojourn_operator.world import World, scene_of

GATHER_SECONDS: Final = 0.01
"""Changes come in flocks (a pod's phase, then its conditions); one pass serves them all."""
ERROR_SECONDS: Final = 1.0
MAX_ERROR_SECONDS: Final = 30.0
LONGEST_SECONDS: Final = 60.0
"""Between two passes: a bound on what a forgotten deadline could cost."""

log = logging.getLogger(__name__)


class Bell:
    """Rung by whoever knows of a change; the loop sleeps until then."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def ring(self) -> None:
        self._event.set()

    def wait(self, seconds: float) -> None:
        self._event.wait(seconds)
        self._event.clear()


@dataclass(slots=True)
class _Pass:
    """What one pass learns on its way."""

    now: float
    deadlines: list[float] = field(default_factory=list)
    failed: set[str] = field(default_factory=set)
    """Sessions of which a step went wrong: nothing more is done for them in this pass."""


@dataclass(frozen=True, slots=True)
class _AtHand:
    """The picture that the actions of one plan are carried out on.

    `sessions` are those of `world`; the one of an action is brought up to date in it, since an
    earlier action of the plan may have written to it.
    """

    world: World
    sessions: dict[str, Seen]
    pods: Mapping[str, list[Pod]]
    lost_nodes: frozenset[str]


class Loop:
    """Turns what the cache holds into what the plan asks for, while this replica leads."""

    def __init__(
        self,
        api: Api,
        *,
        cache: Cache,
        bell: Bell,
        leads: Callable[[], bool],
        config: Config,
        runtimes: Callable[[], dict[str, Runtime]],
    ) -> None:
        self._api = api
        self._cache = cache
        self._bell = bell
        self._leads = leads
        self._config = config
        self._runtimes = runtimes
        self._teller = Teller(api)
        self._hands = Hands(api, cache=cache, teller=self._teller, config=config)
        self._executor = Executor(self._hands, teller=self._teller)
        self._upkeep = upkeep.Upkeep(api, cache=cache)
        self._planning = Planning()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="loop", daemon=True)
        self._errors = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._bell.ring()
        self._thread.join(timeout=10)

    def alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        relist_at = 0.0
        while not self._stopping.is_set():
            now = time.time()
            try:
                if now >= relist_at:
                    again = self._config.relist_seconds if self._relist() else ERROR_SECONDS
                    relist_at = now + again
                wake_at = min(self._turn(now), relist_at)
            except Exception:
                # A fault of ours must not end the operator: it is told, and tried again later.
                metrics.ERRORS.labels("pass").inc()
                log.exception("a pass failed")
                wake_at = now + MAX_ERROR_SECONDS
            self._bell.wait(max(min(wake_at - time.time(), LONGEST_SECONDS), 0.0))
            self._stopping.wait(GATHER_SECONDS)

    def _relist(self) -> bool:
        try:
            self._cache.relist(self._api)
        except ApiError as error:
            metrics.ERRORS.labels("relist").inc()
            log.warning("cannot read the cluster: %s", error)
            return False
        return True

    def _turn(self, now: float) -> float:
        """One pass, if it is ours to make; when the next one is due at the latest."""
        if not self._cache.synced.is_set() or not self._leads():
            return now + LONGEST_SECONDS
        try:
            return self.run_once(now)
        except NotLeaderError as error:
            log.info("a pass ends early: %s", error)
            return now + LONGEST_SECONDS

    def run_once(self, now: float) -> float:
        """One pass over everything; when the clock alone makes the next one due."""
        this = _Pass(now)
        world = self._world(now)
        with self._counted(this, "", "upkeep"):
            self._upkeep.before(world)
        self._look(this, world)
        sessions = self._cache.sessions.values()
        world = self._world(now, sessions=sessions)
        troubles = {key: trouble for key in world.sessions if (trouble := _trouble(world, key))}
        state = view.state(world, blocked=frozenset(troubles))
        mix = self._planning.mix(session.request for session in state.sessions.values())
        found = self._planning.plan(replace(state, mix=mix))
        if news := self._planning.news():
            log.warning("%s", news)
            self._teller.tell(_of_the_lease(self._config, news), now=now)
        _count(state)
        at_hand = _AtHand(world, sessions, world.pods_by_session(), world.lost_nodes())
        for action in found.actions:
            if action.session not in troubles:
                self._act(this, at_hand, action)
        self._hold_back(this, state, troubles=troubles)
        with self._counted(this, "", "upkeep"):
            self._upkeep.after(self._world(now), state)
        this.deadlines += [] if found.next_deadline is None else [found.next_deadline]
        this.deadlines += world.silent_until()
        this.deadlines += [
            until
            for seen in world.sessions.values()
            if (until := pacing.avoided_until(seen.session)) > now
        ]
        return self._next(this)

    def _next(self, this: _Pass) -> float:
        self._errors = self._errors + 1 if this.failed else 0
        if this.failed:
            wait = min(ERROR_SECONDS * 2.0 ** (self._errors - 1), MAX_ERROR_SECONDS)
            this.deadlines.append(this.now + wait)
        # A deadline that is due and that nothing was done about waits its second, not a busy loop.
        return max(min(this.deadlines, default=this.now + LONGEST_SECONDS), this.now + 0.2)

    def _world(self, now: float, *, sessions: Mapping[str, Seen] | None = None) -> World:
        """What is known at this moment, our own writes included."""
        cache = self._cache
        return World(
            now=now,
            sessions=cache.sessions.values() if sessions is None else sessions,
            models=cache.models.values(),
            tiers=cache.tiers.values(),
            tenants=cache.tenants.values(),
            gpu_nodes=cache.gpu_nodes.values(),
            nodes=cache.nodes.values(),
            unreadable_nodes=cache.nodes.unreadable(),
            pods=cache.pods.values(),
            budgets=cache.budgets.values(),
            runtimes=self._runtimes(),
            lost_node_seconds=self._config.lost_node_seconds,
            pending_seconds=self._config.pending_seconds,
            purges=self._config.file_store,
        )

    def _look(self, this: _Pass, world: World) -> None:
        """Bring each session's status and pods in line with what is."""
        pods = world.pods_by_session()
        lost = world.lost_nodes()
        for key in world.sessions:
            scene = scene_of(world, key, pods=pods.get(key, ()), lost_nodes=lost)
            with self._counted(this, key, "step"):
                deadline = self._executor.step(world, scene)
                this.deadlines += [] if deadline is None else [deadline]
        for pod in world.pods.values():
            seen = world.sessions.get(pod.key)
            orphan = seen is None or seen.session.meta.uid != pod.owner_uid
            if orphan and pod.held and pod.ended(this.now):
                with self._counted(this, pod.key, "orphan"):
                    self._hands.release_orphan(pod)

    @contextmanager
    def _counted(self, this: _Pass, key: str, what: str) -> Iterator[None]:
        """An error of one session is counted and tried again; the others go on."""
        try:
            yield
        except ApiError as error:
            this.failed.add(key)
            metrics.ERRORS.labels(what).inc()
            log.warning("%s: %s; tried again", key, error)

    def _act(self, this: _Pass, at_hand: _AtHand, action: plan.Action) -> None:
        """Carry out one action, unless something it builds upon went wrong."""
        key = action.session
        by = action.by if isinstance(action, plan.Pause) else ""
        if this.failed & {key, by} or not self._refresh(at_hand.sessions, key):
            return
        session = at_hand.sessions[key].session
        held_until = self._executor.held_until(action, session, now=this.now)
        if held_until is not None:
            this.deadlines.append(held_until)
            return
        metrics.ACTIONS.labels(type(action).__name__).inc()
        with self._counted(this, key, "action"):
            if self._executor.do(at_hand.world, action) and self._refresh(at_hand.sessions, key):
                scene = scene_of(
                    at_hand.world,
                    key,
                    pods=at_hand.pods.get(key, ()),
                    lost_nodes=at_hand.lost_nodes,
                )
                self._executor.step(at_hand.world, scene)

    def _refresh(self, sessions: dict[str, Seen], key: str) -> bool:
        seen = self._cache.sessions.get(key)
        if seen is not None:
            sessions[key] = seen
        return seen is not None

    def _hold_back(
        self, this: _Pass, state: plan.State, *, troubles: Mapping[str, Trouble]
    ) -> None:
        """Sessions that the plan says nothing of: those with a fault, and those that shall rest."""
        for key, wanted in state.sessions.items():
            seen = self._cache.sessions.get(key)
            if seen is None or key in this.failed or wanted.deleting:
                continue
            trouble = troubles.get(key)
            with self._counted(this, key, "hold_back"):
                if trouble is not None and not trouble.told:
                    self._executor.reject(seen.session, trouble, now=this.now)
                elif trouble is None and wanted.suspend:
                    self._executor.hold_back(seen.session, now=this.now)


def _trouble(world: World, key: str) -> Trouble | None:
    """What keeps a session from starting until someone changes something."""
    seen = world.sessions[key]
    session = seen.session
    if seen.problem:
        return Trouble(reasons.INVALID_SPEC, seen.problem)
    model = world.models.get(session.spec.model)
    if model is None:
        hint = f"there is no LLMModel {session.spec.model}; create it, or see kubectl get llmmodels"
        return Trouble(reasons.UNKNOWN_MODEL, hint)
    problem = template_problem(session.spec.template)
    if problem:
        return Trouble(reasons.INVALID_TEMPLATE, problem)
    if pacing.blocked_by_failure(session, model_generation=model.meta.generation):
        failure = session.status.failure
        return Trouble(failure.reason if failure else "", "", told=True)
    return None


def _of_the_lease(config: Config, news: str) -> Note:
    """What concerns the operator itself is told on the Lease that its replicas compete for."""
    lease = Subject(LEASES.name, config.lease.name, config.lease.namespace, "", LEASES.api_version)
    return Note(lease, reasons.EVENT_GENERATION, news, once_per=news, warning=True)


def _count(state: plan.State) -> None:
    metrics.SESSIONS.clear()
    for session in state.sessions.values():
        metrics.SESSIONS.labels(session.tier, session.phase.value).inc()
