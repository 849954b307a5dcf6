"""The one loop: what was seen -> what each session needs -> the plan -> its actions. Level-triggered.

A pass depends on the cache and the clock alone and may be repeated at any time. One session's error
never stops the others: it is counted, and the next pass tries again.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, assert_never

from sojourn_api.objects import Session

from sojourn_operator import life, metrics, orders, plan, reasons, upkeep, view
from sojourn_operator.act.api import Api, ApiError
from sojourn_operator.act.apply import Hands
from sojourn_operator.act.events import Teller
from sojourn_operator.act.pods import template_problem
from sojourn_operator.cache import Cache
from sojourn_operator.config import Config
from sojourn_operator.leader import NotLeaderError
from sojourn_operator.note import Note, Subject
from sojourn_operator.plan import actions
from sojourn_operator.scene import Runtime, Scene
from sojourn_operator.view import World

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


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a session cannot start whatever the plan says. `told`: its status says so already."""

    reason: str
    message: str
    told: bool = False


@dataclass(slots=True)
class _Pass:
    """What one pass learns on its way."""

    now: float
    deadlines: list[float] = field(default_factory=list)
    failed: set[str] = field(default_factory=set)
    """Sessions of which a step went wrong: nothing more is done for them in this pass."""


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
        self._upkeep = upkeep.Upkeep(api, cache=cache)
        self._planner = plan.Planner()
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
            if now >= relist_at:
                relist_at = now + (self._config.relist_seconds if self._relist() else ERROR_SECONDS)
            wake_at = min(self._turn(), relist_at)
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

    def _turn(self) -> float:
        """One pass, if it is ours to make; when the next one is due at the latest."""
        now = time.time()
        if not self._cache.synced.is_set() or not self._leads():
            return now + LONGEST_SECONDS
        try:
            deadline = self.run_once(now)
        except NotLeaderError as error:
            log.info("a pass ends early: %s", error)
            return now + LONGEST_SECONDS
        except Exception:
            # A fault of ours must not end the operator: it is told, and tried again later.
            metrics.ERRORS.labels("pass").inc()
            log.exception("a pass failed")
            return now + MAX_ERROR_SECONDS
        return deadline

    def run_once(self, now: float) -> float:
        """One pass over everything; when the clock alone makes the next one due."""
        this = _Pass(now)
        world = self._world(now)
        self._try(this, "", "upkeep", lambda: self._upkeep.before(world))
        self._look(this, world)
        world = self._world(now)
        troubles = {key: trouble for key in world.sessions if (trouble := _trouble(world, key))}
        with metrics.DECISION_SECONDS.time():
            state = view.state(world, blocked=frozenset(troubles))
            found = self._planner.plan(state)
        _count(state)
        for action in found.actions:
            self._act(this, world, action, troubles=troubles)
        self._hold_back(this, world, state, troubles=troubles)
        self._try(this, "", "upkeep", lambda: self._upkeep.after(self._world(now), state))
        this.deadlines += [] if found.next_deadline is None else [found.next_deadline]
        this.deadlines += world.silent_until()
        this.deadlines += [
            until
            for seen in world.sessions.values()
            if (until := view.avoided_until(seen.session)) > now
        ]
        return self._next(this)

    def _next(self, this: _Pass) -> float:
        self._errors = self._errors + 1 if this.failed else 0
        if this.failed:
            wait = min(ERROR_SECONDS * 2.0 ** (self._errors - 1), MAX_ERROR_SECONDS)
            this.deadlines.append(this.now + wait)
        # A deadline that is due and that nothing was done about waits its second, not a busy loop.
        return max(min(this.deadlines, default=this.now + LONGEST_SECONDS), this.now + 0.2)

    def _world(self, now: float) -> World:
        cache = self._cache
        return World(
            now=now,
            sessions=cache.sessions.values(),
            models=cache.models.values(),
            tiers=cache.tiers.values(),
            tenants=cache.tenants.values(),
            gpu_nodes=cache.gpu_nodes.values(),
            nodes=cache.nodes.values(),
            pods=cache.pods.values(),
            runtimes=self._runtimes(),
            lost_node_seconds=self._config.lost_node_seconds,
            pending_seconds=self._config.pending_seconds,
        )

    def _look(self, this: _Pass, world: World) -> None:
        """Bring each session's status and pods in line with what is."""
        pods = world.pods_by_session()
        lost = world.lost_nodes()
        for key in world.sessions:
            scene = view.scene(world, key, pods=pods.get(key, ()), lost_nodes=lost)
            self._step(this, key, scene)
        for pod in world.pods.values():
            seen = world.sessions.get(pod.key)
            orphan = seen is None or seen.session.meta.uid != pod.owner_uid
            if orphan and pod.held and pod.ended(this.now):
                self._try(this, pod.key, "orphan", lambda pod=pod: self._hands.release_orphan(pod))

    def _step(self, this: _Pass, key: str, scene: Scene) -> None:
        step = life.look(scene)
        if step.deadline is not None:
            this.deadlines.append(step.deadline)
        self._try(this, key, "step", lambda: self._hands.carry_out(scene, step))

    def _try(self, this: _Pass, key: str, what: str, work: Callable[[], None]) -> None:
        try:
            work()
        except ApiError as error:
            this.failed.add(key)
            metrics.ERRORS.labels(what).inc()
            log.warning("%s: %s; tried again", key, error)

    def _act(
        self, this: _Pass, world: World, action: plan.Action, *, troubles: dict[str, Trouble]
    ) -> None:
        """Carry out one action, unless something it builds upon went wrong."""
        by = action.by if isinstance(action, plan.Pause) else ""
        if this.failed & {action.session, by} or action.session in troubles:
            return
        seen = self._cache.sessions.get(action.session)
        if seen is None:
            return
        metrics.ACTIONS.labels(type(action).__name__).inc()
        scene = view.scene(
            self._world(this.now),
            action.session,
            pods=world.pods_by_session().get(action.session, ()),
            lost_nodes=world.lost_nodes(),
        )
        self._try(this, action.session, "action", lambda: self._order(this, world, scene, action))

    def _order(self, this: _Pass, world: World, scene: Scene, action: plan.Action) -> None:
        session, now = scene.session, scene.now
        match action:
            case plan.PlaceSession() | plan.Resume():
                self._place(this, world, scene, action)
            case plan.Nominate():
                status = orders.nominated(session, view.nomination(world, action.nomination))
                self._hands.write_status(session, status)
            case plan.Withdraw():
                self._hands.write_status(session, orders.nominated(session, None))
            case plan.Pause():
                self._pause(this, world, scene, action)
            case plan.Move():
                nomination = view.nomination(world, action.nomination)
                status = orders.told_to_pause(
                    session,
                    by="",
                    reason=action.reason,
                    message=action.message,
                    now=now,
                    nomination=nomination,
                )
                self._hands.write_status(session, status)
                self._again(this, action.session)
            case plan.Wait():
                self._wait(scene, reason=action.reason, message=action.message)
            case plan.Reject():
                self._reject(scene, Trouble(action.reason, action.message))
            case _:
                assert_never(action)

    def _place(
        self, this: _Pass, world: World, scene: Scene, action: plan.PlaceSession | plan.Resume
    ) -> None:
        if orders.is_placed(scene.session) or scene.session.meta.deleting:
            return
        self._hands.hold(scene.session)
        session = self._now(action.session, scene)
        placement = view.places(world, action.place)
        status = orders.placed(session, placement, message=action.message, now=scene.now)
        self._hands.write_status(session, status)
        text = f"on {life.where(placement)}"
        subject = Subject.of("LLMSession", session.meta)
        note = Note(subject, reasons.PLACED, text, once_per=str(status.epoch))
        self._teller.tell(note, now=scene.now)
        self._again(this, action.session)

    def _pause(self, this: _Pass, world: World, scene: Scene, action: plan.Pause) -> None:
        session = scene.session
        if not orders.is_placed(session):
            return
        reason = _pause_word(world, session, action)
        if action.by:
            self._tell_preemption(world, scene, action)
        status = orders.told_to_pause(
            session, by=action.by, reason=reason, message=action.message, now=scene.now
        )
        self._hands.write_status(session, status)
        self._again(this, action.session)

    def _tell_preemption(self, world: World, scene: Scene, action: plan.Pause) -> None:
        meta = scene.session.meta
        epoch = str(scene.status.epoch)
        victim = Subject.of("LLMSession", meta)
        note = Note(victim, reasons.EVENT_PREEMPTED, action.message, once_per=epoch, warning=True)
        self._teller.tell(note, now=scene.now)
        claimant = world.sessions.get(action.by)
        if claimant is not None:
            subject = Subject.of("LLMSession", claimant.session.meta)
            text = f"pauses {action.session} (start {epoch}) for its room"
            note = Note(subject, reasons.EVENT_PREEMPTING, text, once_per=f"{meta.uid}/{epoch}")
            self._teller.tell(note, now=scene.now)

    def _wait(self, scene: Scene, *, reason: str, message: str) -> None:
        session = scene.session
        if orders.is_placed(session):
            return
        status = orders.waiting(session, reason=reason, message=message, now=scene.now)
        if reason in orders.FOR_ROOM:
            subject = Subject.of("LLMSession", session.meta)
            once = str(scene.status.epoch)
            note = Note(subject, reasons.WAITING_FOR_ROOM, message, once_per=once, same="")
            self._teller.tell(note, now=scene.now)
        self._hands.write_status(session, status)

    def _reject(self, scene: Scene, trouble: Trouble) -> None:
        session = scene.session
        if orders.is_placed(session):
            return
        subject = Subject.of("LLMSession", session.meta)
        once = str(session.meta.generation)
        text = f"{trouble.reason}: {trouble.message}"
        note = Note(subject, reasons.EVENT_REJECTED, text, once_per=once, warning=True)
        self._teller.tell(note, now=scene.now)
        status = orders.waiting(
            session, reason=trouble.reason, message=trouble.message, now=scene.now
        )
        self._hands.write_status(session, status)

    def _hold_back(
        self, this: _Pass, world: World, state: plan.State, *, troubles: dict[str, Trouble]
    ) -> None:
        """Sessions that the plan says nothing of: those with a fault, and those that shall rest."""
        for key, wanted in state.sessions.items():
            seen = self._cache.sessions.get(key)
            if seen is None or key in this.failed or orders.is_placed(seen.session):
                continue
            scene = Scene(seen.session, now=this.now)
            trouble = troubles.get(key)
            if seen.session.meta.deleting:
                continue
            if trouble is not None and not trouble.told:
                self._try(this, key, "reject", lambda s=scene, t=trouble: self._reject(s, t))
            elif wanted.suspend and trouble is None:
                status = orders.held_back(seen.session, now=this.now)
                self._try(
                    this,
                    key,
                    "hold_back",
                    lambda s=seen.session, t=status: self._hands.write_status(s, t),
                )

    def _again(self, this: _Pass, key: str) -> None:
        """Look at a session whose status was just written: its pod is created or told to end."""
        world = self._world(this.now)
        if key not in world.sessions:
            return
        pods = world.pods_by_session().get(key, ())
        scene = view.scene(world, key, pods=pods, lost_nodes=world.lost_nodes())
        tenant = view.tenants_by_namespace(world.tenants.values()).get(scene.session.meta.namespace)
        self._hands.carry_out(scene, life.look(scene), tenant=tenant.meta.name if tenant else "")

    def _now(self, key: str, scene: Scene) -> Session:
        seen = self._cache.sessions.get(key)
        return seen.session if seen is not None else scene.session


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
    if view.blocked_by_failure(session, model_generation=model.meta.generation):
        failure = session.status.failure
        return Trouble(failure.reason if failure else "", "", told=True)
    return None


def _pause_word(world: World, session: Session, action: plan.Pause) -> str:
    """The reason of Paused: who needed the room, or which wish it was."""
    claimant = world.sessions.get(action.by)
    if claimant is not None and action.reason == actions.PREEMPTED:
        return reasons.preempted_by(claimant.session.spec.tier)
    if action.reason == actions.SUSPENDED and not session.spec.suspend:
        return reasons.IDLE
    return action.reason


def _count(state: plan.State) -> None:
    metrics.SESSIONS.clear()
    for session in state.sessions.values():
        metrics.SESSIONS.labels(session.tier, session.phase.value).inc()
