"""What an action means for a session's status: placed, nominated, told to pause or to wait.

Pure. The status is written before the action is carried out, so that a restart goes on from there.
"""

import dataclasses

from sojourn_api.names import ANNOTATION_WAKE, CONTEXT_SAVED, PAUSED, PLACED, READY
from sojourn_api.objects import Nomination, Session, SessionPlacement, SessionStatus

from sojourn_operator import reasons
from sojourn_operator.act import services
from sojourn_operator.act import status as conditions
from sojourn_operator.act.status import FALSE, TRUE, Verdict
from sojourn_operator.life import where
from sojourn_operator.plan import actions

FOR_ROOM = frozenset({actions.NO_ROOM, actions.ROOM_IS_FREED})
"""Reasons of the plan that a user knows as waiting for room."""
HELD = frozenset({reasons.SUSPENDED, reasons.IDLE})
"""Pauses that end by a wish, not by free room."""


def is_placed(session: Session) -> bool:
    """Whether a start of it is under way or serves."""
    return conditions.of(session.status, PLACED).status == TRUE


def placed(
    session: Session, placement: SessionPlacement, *, message: str, now: float, after: int = 0
) -> SessionStatus:
    """A new start: the epoch and the place, before the pod.

    `after` is the last epoch that a retained snapshot of this name knows: the store refuses an
    older one, and a session created anew goes on with what was kept for it.
    """
    status = dataclasses.replace(
        session.status,
        epoch=max(session.status.epoch, after) + 1,
        placement=placement,
        nomination=None,
        preempted_by="",
        started_at="",
        endpoint=services.endpoint(session),
    )
    place = where(placement)
    return conditions.judged(
        status,
        Verdict(READY, FALSE, reasons.STARTING, f"the pod starts on {placement.node}"),
        Verdict(PLACED, TRUE, reasons.PLACING, f"on {place}; {message}" if message else place),
        Verdict(PAUSED, FALSE, reasons.RUNNING, "no pause is under way"),
        conditions.of(status, CONTEXT_SAVED),
        generation=session.meta.generation,
        now=now,
    )


def nominated(session: Session, nomination: Nomination | None) -> SessionStatus:
    """Room that is being freed for it, or no more."""
    return dataclasses.replace(session.status, nomination=nomination)


def told_to_pause(
    session: Session,
    *,
    by: str,
    reason: str,
    message: str,
    now: float,
) -> SessionStatus:
    """The pause and who asked for it, before the pod is told to end."""
    status = dataclasses.replace(session.status, preempted_by=by)
    return conditions.judged(
        status,
        Verdict(READY, FALSE, reasons.PAUSING, message),
        Verdict(PAUSED, FALSE, reason, message),
        generation=session.meta.generation,
        now=now,
    )


def shown(reason: str) -> str:
    """A reason of the plan as the Ready condition has it."""
    return reasons.WAITING_FOR_ROOM if reason in FOR_ROOM else reason


def waiting(session: Session, *, reason: str, message: str, now: float) -> SessionStatus:
    """Why it has no place, in the plan's words; a failed session tells of its failure first."""
    if reason == actions.BACK_OFF and session.status.failure is not None:
        return session.status
    paused = conditions.of(session.status, PAUSED)
    if paused.status == TRUE:
        message = f"paused ({paused.reason}); {message}"
    verdicts = [
        Verdict(READY, FALSE, shown(reason), message),
        Verdict(PLACED, FALSE, reason, message),
    ]
    if paused.reason == conditions.PENDING:
        verdicts.append(Verdict(PAUSED, FALSE, reasons.NOT_STARTED, "it was not started yet"))
        text = "there is no context yet"
        verdicts.append(Verdict(CONTEXT_SAVED, FALSE, reasons.EMPTY, text))
    return conditions.judged(session.status, *verdicts, generation=session.meta.generation, now=now)


def held_back(session: Session, *, now: float) -> SessionStatus:
    """A session that shall not run says so, and not that it waits for room."""
    paused = conditions.of(session.status, PAUSED)
    reason = paused.reason if paused.reason in HELD else reasons.SUSPENDED
    hint = {
        reasons.SUSPENDED: "spec.suspend is true; set it to false to bring the session back",
        reasons.IDLE: f"it had no requests for long; the annotation {ANNOTATION_WAKE} wakes it",
    }
    return waiting(session, reason=reason, message=hint[reason], now=now)
