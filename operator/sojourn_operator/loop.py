"""The one loop: what was seen -> what each session needs -> the plan -> its actions.

Level-triggered: a pass depends on the cache and the clock alone and may be repeated. One session's
error never stops the others: it is counted, and the next pass tries again.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from sojourn_operator import clock, metrics, plan, reasons, upkeep, view
from sojourn_operator.act.addresses import Addresses
from sojourn_operator.act.api import Api, ApiError
from sojourn_operator.act.apply import Hands
from sojourn_operator.act.events import Teller
from sojourn_operator.config import Config
from sojourn_operator.crew import Crew
from sojourn_operator.execute import Executor, Trouble
from sojourn_operator.faults import SESSION, Faults, Row
from sojourn_operator.kinds import LEASES
from sojourn_operator.leader import NotLeaderError
from sojourn_operator.onepass import LONGEST_SECONDS, OnePass
from sojourn_operator.packing import Packing
from sojourn_operator.patience import API, Patience
from sojourn_operator.planning import Planning, offered, postponed
from sojourn_operator.restore import Restorer
from sojourn_operator.seen.cache import Cache, Seen
from sojourn_operator.seen.others import Taken
from sojourn_operator.seen.pod import Pod
from sojourn_operator.seen.world import World, scene_of, world_of
from sojourn_operator.session import doubts, life, pacing
from sojourn_operator.session.note import Note, Subject
from sojourn_operator.session.scene import Runtime, Scene, Step
from sojourn_operator.session.still import Still

GATHER_SECONDS: Final = 0.01
"""Changes come in flocks (a pod's phase, then its conditions); one pass serves them all."""
GATHER_MOST_SECONDS: Final = 0.25
"""As long as the pass before took, up to this: a large cluster's small changes cost half a core."""
SOON_SECONDS: Final = 30.0
"""The second reading: what vanished between the first and the begin of the watches is gone."""
FAULT_SECONDS: Final = 10.0
UPKEEP: Final = "upkeep"
RELIST: Final = "relist"

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
        others: Callable[[], Mapping[str, Taken]] = dict,
        silent: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        self._api = api
        self._cache = cache
        self._bell = bell
        self._leads = leads
        self._config = config
        self._runtimes = runtimes
        self._others = others
        self._silent = silent
        self._teller = Teller(api)
        addresses = Addresses(api, headless=config.headless_services)
        self._hands = Hands(
            api, cache=cache, teller=self._teller, config=config, addresses=addresses
        )
        self._executor = Executor(self._hands, teller=self._teller, system=config.lease.namespace)
        self._upkeep = upkeep.Upkeep(api, cache=cache, teller=self._teller)
        self._restorer = Restorer(api, cache=cache, teller=self._teller, addresses=addresses)
        self._planning = Planning(
            offered=offered(), slow_seconds=config.decision_milliseconds / 1000
        )
        self._packing = Packing(
            plan.DefragMode(config.defragmentation), most=config.moves_per_minute
        )
        self._faults = Faults()
        self._row = Row()
        self._view = view.of(config, self._faults)
        self._never: Mapping[str, str] = {}
        self._still = Still()
        self._crew = Crew()
        self._patience = Patience()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="loop", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._bell.ring()
        self._thread.join(timeout=10)
        self._crew.close()

    def alive(self) -> bool:
        return self._thread.is_alive()

    def trouble(self) -> str:
        """Why passes fail; empty while they work."""
        return self._row.trouble()

    def _run(self) -> None:
        relist_at, again = 0.0, min(SOON_SECONDS, self._config.relist_seconds)
        while not self._stopping.is_set():
            now = time.time()
            try:
                if now >= relist_at:
                    if self._relist():
                        relist_at, again = now + again, self._config.relist_seconds
                    else:
                        relist_at = now + self._patience.left(RELIST)
                wake_at = min(self._turn(now), relist_at)
            except Exception as error:
                # A fault of ours must not end the operator: it is told, and tried again later.
                metrics.ERRORS.labels("pass").inc()
                log.exception("a pass failed")
                self._row.failed(error)
                wake_at = now + FAULT_SECONDS
            took, due = time.time() - now, wake_at - time.time()
            self._bell.wait(max(min(due, LONGEST_SECONDS), 0.0))
            gather = min(took, GATHER_MOST_SECONDS) if due > 0 else 0.0
            self._stopping.wait(max(gather, GATHER_SECONDS))

    def _relist(self) -> bool:
        try:
            self._cache.relist(self._api)
        except ApiError as error:
            metrics.ERRORS.labels("relist").inc()
            log.warning("cannot read the cluster: %s", error)
            self._patience.failed(RELIST, at_least=error.retry_after)
            return False
        self._patience.worked(RELIST)
        self._restorer.look()
        return True

    def _turn(self, now: float) -> float:
        """One pass, if it is ours to make; when the next one is due at the latest."""
        if not self._cache.synced.is_set() or not self._leads():
            self._row.worked()
            return now + LONGEST_SECONDS
        if wait := self._patience.left(API):
            return now + wait
        try:
            due = self.run_once(now)
        except NotLeaderError as error:
            log.info("a pass ends early: %s", error)
            due = now + LONGEST_SECONDS
        self._row.worked()
        return due

    def run_once(self, now: float) -> float:
        """One pass over everything; when the clock alone makes the next one due."""
        this = OnePass(now, self._patience)
        self._faults.begin()
        world = self._world(now)
        self._tell_silent(this, world)
        self._restorer.restore(this, world)
        self._look(this, world)
        sessions = self._cache.sessions.values()
        world = self._world(now, sessions=sessions)
        troubles = self._troubles(world)
        state = self._view.state(world, blocked=frozenset(troubles))
        troubles |= self._faulty()
        state = postponed(state, this.leave())
        mix = self._planning.mix(session.request for session in state.sessions.values())
        found = self._planning.plan(replace(state, mix=mix, defrag=self._packing.allowed(now)))
        if found.never != self._never:
            self._never = found.never
            this.due(now)
        self._tell_of_the_plan(found, now=now)
        _count(state)
        at_hand = _AtHand(world, sessions, world.pods_by_session(), world.lost_nodes())
        self._carry_out(this, at_hand, found.actions, troubles=troubles)
        self._hold_back(this, state, troubles=troubles)
        if this.may(UPKEEP):
            with this.trying(UPKEEP, "upkeep"):
                self._upkeep.after(self._world(now), state)
        this.due(found.next_deadline)
        this.due(self._packing.due())
        for silent in world.silent_until():
            this.due(silent)
        for key, seen in world.sessions.items():
            with self._faults.apart(SESSION, key):
                if (until := pacing.avoided_until(seen.session)) > now:
                    this.due(until)
        return this.next()

    def _tell_of_the_plan(self, found: plan.Plan, *, now: float) -> None:
        """What concerns the plan as a whole: who decides, and what a dry run would move."""
        if news := self._planning.news():
            log.warning("%s", news)
            told = _of_the_lease(self._config, reasons.EVENT_GENERATION, news, now=now)
            self._teller.tell(replace(told, warning=True), now=now)
        for text in self._packing.news(found.notes):
            log.info("%s", text)
            told = _of_the_lease(self._config, reasons.EVENT_WOULD_MOVE, text, now=now)
            self._teller.tell(told, now=now)

    def _troubles(self, world: World) -> dict[str, Trouble]:
        """What keeps sessions from starting, by key; of those without trouble there is no entry."""
        found: dict[str, Trouble] = {}
        for key in world.sessions:
            with self._faults.apart(SESSION, key):
                if trouble := _trouble(world, key):
                    found[key] = trouble
        return found | self._faulty()

    def _faulty(self) -> dict[str, Trouble]:
        found = self._faults.sessions()
        return {key: Trouble(reasons.INVALID_SPEC, text) for key, text in found.items()}

    def _world(self, now: float, *, sessions: Mapping[str, Seen] | None = None) -> World:
        """What is known at this moment, our own writes included."""
        found = replace(
            world_of(self._cache, now),
            runtimes=self._runtimes(),
            others=self._others(),
            silent=self._silent(),
            never=self._never,
            lost_node_seconds=self._config.lost_node_seconds,
            pending_seconds=self._config.pending_seconds,
            purges=self._config.file_store,
        )
        return found if sessions is None else replace(found, sessions=sessions)

    def _tell_silent(self, this: OnePass, world: World) -> None:
        """Each node by itself: one that cannot be written stops no other."""
        for name in world.silent:
            key = f"GPUNode {name}"
            if this.may(key):
                with this.trying(key, "upkeep"):
                    self._upkeep.tell_silent(world, name)

    def _look(self, this: OnePass, world: World) -> None:
        """Bring each session's status and pods in line with what is."""
        pods = world.pods_by_session()
        lost = world.lost_nodes()
        this.begin()
        for key in world.sessions:
            looked = self._faults.tried(
                SESSION, key, partial(self._looked, world, key, pods=pods.get(key, ()), lost=lost)
            )
            if looked is None:
                continue
            scene, step = looked
            this.due(step.deadline)
            if step.asks(scene.status) and this.may(key):
                if self._stopping.is_set() or this.over():
                    break
                self._crew.do([key], partial(self._step, this, world, scene, step))
        self._crew.rest()
        self._still.keep(world.sessions)
        for pod in world.pods.values():
            seen = world.sessions.get(pod.key)
            orphan = seen is None or seen.session.meta.uid != pod.owner_uid
            if orphan and pod.held and pod.ended(this.now) and this.may(pod.key):
                with this.trying(pod.key, "orphan"):
                    self._hands.release_orphan(pod)

    def _looked(
        self, world: World, key: str, *, pods: Iterable[Pod], lost: frozenset[str]
    ) -> tuple[Scene, Step] | None:
        """A session and its next step; None while nothing of it changes."""
        scene = scene_of(world, key, pods=pods, lost_nodes=lost)
        if self._still.holds(key, scene):
            return None
        step = life.look(scene)
        self._still.note(key, scene, step)
        return scene, step

    def _step(self, this: OnePass, world: World, scene: Scene, step: Step) -> None:
        meta = scene.session.meta
        with this.trying(f"{meta.namespace}/{meta.name}", "step"):
            self._executor.step(world, scene, step)

    def _carry_out(
        self,
        this: OnePass,
        at_hand: _AtHand,
        actions: Iterable[plan.Action],
        *,
        troubles: Mapping[str, Trouble],
    ) -> None:
        """The plan's actions; one that builds upon another waits for it, the others do not.

        A session in trouble is paused like any other: it runs, and could only not start again.
        """
        this.begin()
        for action in actions:
            if action.session in troubles and not isinstance(action, plan.Pause):
                continue
            if self._stopping.is_set() or this.over():
                break
            self._crew.do(_builds_on(action), partial(self._act, this, at_hand, action))
        self._crew.rest()

    def _act(self, this: OnePass, at_hand: _AtHand, action: plan.Action) -> None:
        """Carry out one action, unless something it builds upon went wrong."""
        key = action.session
        if not this.may(*_builds_on(action)) or not self._refresh(at_hand.sessions, key):
            return
        session = at_hand.sessions[key].session
        held_until = self._executor.held_until(action, session, now=this.now)
        if held_until is not None:
            this.due(held_until)
            return
        metrics.ACTIONS.labels(type(action).__name__).inc()
        with this.trying(key, "action"):
            again = self._executor.do(at_hand.world, action)
            self._packing.moved(action, now=this.now)
            if again and self._refresh(at_hand.sessions, key):
                scene = scene_of(
                    at_hand.world,
                    key,
                    pods=at_hand.pods.get(key, ()),
                    lost_nodes=at_hand.lost_nodes,
                )
                self._executor.step(at_hand.world, scene, life.look(scene))

    def _refresh(self, sessions: dict[str, Seen], key: str) -> bool:
        seen = self._cache.sessions.get(key)
        if seen is not None:
            sessions[key] = seen
        return seen is not None

    def _hold_back(
        self, this: OnePass, state: plan.State, *, troubles: Mapping[str, Trouble]
    ) -> None:
        """Sessions that the plan says nothing of: those with a fault, and those that shall rest."""
        rests = {key for key, wanted in state.sessions.items() if wanted.suspend}
        for key in sorted(rests | troubles.keys()):
            trouble = troubles.get(key)
            seen = self._cache.sessions.get(key)
            if seen is None or seen.session.meta.deleting or not this.may(key):
                continue
            with this.trying(key, "hold_back"):
                if trouble is not None and not trouble.told:
                    self._executor.reject(seen.session, trouble, now=this.now)
                elif trouble is None:
                    self._executor.hold_back(seen.session, now=this.now)


def _builds_on(action: plan.Action) -> tuple[str, ...]:
    """The sessions whose earlier actions have to be done before it."""
    by = action.by if isinstance(action, plan.Pause) else ""
    return (action.session, by) if by else (action.session,)


def _trouble(world: World, key: str) -> Trouble | None:
    """What keeps a session from starting until someone changes something."""
    seen = world.sessions[key]
    session = seen.session
    if seen.problem:
        return Trouble(reasons.INVALID_SPEC, seen.problem)
    model = world.models.get(session.spec.model)
    if model is None:
        return Trouble(reasons.UNKNOWN_MODEL, f"there is no LLMModel {session.spec.model}")
    doubt = doubts.too_long(session, model)
    if doubt is not None and not session.status.context_length:
        return Trouble(doubt.reason, doubt.message)
    if seen.template_problem:
        return Trouble(reasons.INVALID_TEMPLATE, seen.template_problem)
    if pacing.blocked_by_failure(session, model_generation=model.meta.generation):
        failure = session.status.failure
        return Trouble(failure.reason if failure else "", "", told=True)
    return None


def _of_the_lease(config: Config, reason: str, text: str, *, now: float) -> Note:
    """What concerns the operator itself is told on the Lease that its replicas compete for.

    Each time anew: the same words later are another time that it happened.
    """
    lease = Subject(LEASES.name, config.lease.name, config.lease.namespace, "", LEASES.api_version)
    return Note(lease, reason, text, once_per=clock.text(now))


def _count(state: plan.State) -> None:
    counts = Counter((one.tier, one.phase.value) for one in state.sessions.values())
    metrics.SESSIONS.clear()
    for labels, count in counts.items():
        metrics.SESSIONS.labels(*labels).set(count)
