"""Carries out the plan's actions: the order into the session's status first, then what follows.

No decisions and no passes over the cluster (see `loop`). An action that is done already changes
nothing; one whose session has meanwhile changed its mind is dropped, and the next plan sees why.
"""

from dataclasses import dataclass, replace
from typing import assert_never

from sojourn_api.names import READY
from sojourn_api.objects import Session

from sojourn_operator import plan, reasons, view
from sojourn_operator.act import status as conditions
from sojourn_operator.act.apply import Hands
from sojourn_operator.act.events import Teller
from sojourn_operator.plan import actions
from sojourn_operator.seen.world import World
from sojourn_operator.session import life, orders
from sojourn_operator.session.note import Note, Subject
from sojourn_operator.session.quiet import Quiet
from sojourn_operator.session.scene import Scene, Step


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a session cannot start whatever the plan says. `told`: its status says so already."""

    reason: str
    message: str
    told: bool = False


class Executor:
    """One action at a time, each on the session as it is now: `world` is read anew for each."""

    def __init__(self, hands: Hands, *, teller: Teller, system: str) -> None:
        """`system` is the operator's own namespace, for what users are told to run."""
        self._hands = hands
        self._system = system
        self._teller = teller
        self._quiet = Quiet()

    def held_until(self, action: plan.Action, session: Session, *, now: float) -> float | None:
        """When an action may be told that only brings new numbers; None: now."""
        if not isinstance(action, plan.Wait):
            return None
        if conditions.of(session.status, READY).reason != orders.shown(action.reason):
            return None
        return self._quiet.until(action.session, now=now)

    def do(self, world: World, action: plan.Action) -> bool:
        """Carry out one action; True if the session has to be looked at again."""
        session = world.sessions[action.session].session
        match action:
            case plan.PlaceSession() | plan.Resume():
                return self._place(world, session, action)
            case plan.Nominate():
                nomination = view.nomination(world, action.nomination)
                self._hands.write_status(session, orders.nominated(session, nomination))
            case plan.Withdraw():
                self._hands.write_status(session, orders.nominated(session, None))
            case plan.Pause():
                return self._pause(world, session, action)
            case plan.Move():
                return self._move(world, session, action)
            case plan.Wait():
                self._wait(session, reason=action.reason, message=action.message, now=world.now)
            case plan.Reject():
                self.reject(session, Trouble(action.reason, action.message), now=world.now)
            case _:
                assert_never(action)
        return False

    def step(self, world: World, scene: Scene, step: Step) -> None:
        """What a look at a session asks for, carried out."""
        namespace = scene.session.meta.namespace
        owner = world.owners.get(namespace) if step.create else None
        self._hands.carry_out(scene, step, tenant=owner.meta.name if owner else "")

    def reject(self, session: Session, trouble: Trouble, *, now: float) -> None:
        """Say what keeps a session from starting, unless it runs."""
        if orders.is_placed(session):
            return
        note = orders.rejected(session, reason=trouble.reason, message=trouble.message)
        self._teller.tell(note, now=now)
        status = orders.waiting(
            session,
            reason=trouble.reason,
            message=trouble.message,
            now=now,
            system=self._system,
        )
        self._hands.write_status(session, status)

    def hold_back(self, session: Session, *, now: float) -> None:
        """Say that a session rests because it shall."""
        if orders.is_placed(session):
            return
        if note := orders.unread_wake(session):
            self._teller.tell(note, now=now)
        self._hands.write_status(session, orders.held_back(session, now=now))

    def _place(
        self, world: World, session: Session, action: plan.PlaceSession | plan.Resume
    ) -> bool:
        if orders.is_placed(session) or session.meta.deleting:
            return False
        self._hands.hold(session)
        self._hands.create_early(session)
        placement = view.places(world, action.place)
        after = self._hands.retained_epoch(session)
        status = orders.placed(
            session, placement, message=action.message, now=world.now, after=after
        )
        self._hands.write_status(session, status)
        subject = Subject.of("LLMSession", session.meta)
        text = f"on {life.where(placement)}"
        note = Note(subject, reasons.PLACED, text, once_per=str(status.epoch))
        self._teller.tell(note, now=world.now)
        return True

    def _pause(self, world: World, session: Session, action: plan.Pause) -> bool:
        if not orders.is_placed(session):
            return False
        if action.by:
            self._tell_preemption(world, session, action)
        reason = _pause_word(world, session, action)
        wish = reason in orders.HELD
        text = orders.resting(session, reason) if wish else action.message
        status = orders.told_to_pause(
            session, by=action.by, reason=reason, message=text, now=world.now
        )
        self._hands.write_status(session, status)
        return True

    def _move(self, world: World, session: Session, action: plan.Move) -> bool:
        if not orders.is_placed(session):
            return False
        status = orders.told_to_pause(
            session, by="", reason=action.reason, message=action.message, now=world.now
        )
        nomination = view.nomination(world, action.nomination)
        self._hands.write_status(session, replace(status, nomination=nomination))
        return True

    def _tell_preemption(self, world: World, session: Session, action: plan.Pause) -> None:
        epoch = str(session.status.epoch)
        self._teller.tell(orders.preempted(session, action), now=world.now)
        claimant = world.sessions.get(action.by)
        if claimant is not None:
            subject = Subject.of("LLMSession", claimant.session.meta)
            text = f"pauses {action.session} (start {epoch}) for its room"
            once = f"{session.meta.uid}/{epoch}"
            note = Note(subject, reasons.EVENT_PREEMPTING, text, once_per=once)
            self._teller.tell(note, now=world.now)

    def _wait(self, session: Session, *, reason: str, message: str, now: float) -> None:
        if orders.is_placed(session):
            return
        if note := orders.begins_to_wait(session, reason=reason, message=message):
            self._teller.tell(note, now=now)
        status = orders.waiting(
            session, reason=reason, message=message, now=now, system=self._system
        )
        if self._hands.write_status(session, status):
            self._quiet.spoke(f"{session.meta.namespace}/{session.meta.name}", now=now)


def _pause_word(world: World, session: Session, action: plan.Pause) -> str:
    """The reason of Paused: who needed the room, or which wish it was."""
    claimant = world.sessions.get(action.by)
    if claimant is not None and action.reason == actions.PREEMPTED:
        return reasons.preempted_by(claimant.session.spec.tier)
    if action.reason == actions.SUSPENDED and not session.spec.suspend:
        return reasons.IDLE
    return action.reason
