"""What an action means for a session's status: placed, nominated, told to pause or to wait.

Pure. The status is written before the action is carried out, so that a restart goes on from there.
"""

import dataclasses

from sojourn_api.names import CONTEXT_SAVED, PAUSED, PLACED
from sojourn_api.objects import Nomination, Session, SessionPlacement, SessionStatus

from sojourn_operator import clock, reasons
from sojourn_operator.act import services
from sojourn_operator.act import status as conditions
from sojourn_operator.act.status import FALSE, TRUE, Verdict
from sojourn_operator.plan import actions
from sojourn_operator.session import ending, pacing
from sojourn_operator.session.life import where
from sojourn_operator.session.note import Note, Subject
from sojourn_operator.session.remedies import filled, not_ready, remedied

FOR_ROOM = frozenset({actions.NO_ROOM, actions.NODES_OUT, actions.ROOM_IS_FREED})
"""Reasons of the plan that a user knows as waiting for room."""
FOR_SOMEONE = frozenset({actions.NO_GPU, actions.QUOTA})
"""Reasons of the plan to wait until somebody changes something."""
_NOTHING_STORED = Verdict(
    CONTEXT_SAVED, FALSE, reasons.NOT_STARTED, "no start has run yet, so there is no context"
)
"""Of a first start; until a container runs, the store has nothing of the session to be removed."""
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
        not_ready(reasons.STARTING, f"the pod starts on {placement.node}"),
        Verdict(PLACED, TRUE, reasons.PLACING, f"on {place}; {message}" if message else place),
        Verdict(PAUSED, FALSE, reasons.RUNNING, "no pause is under way"),
        *(_no_context(status) if session.status.epoch or after else [_NOTHING_STORED]),
        ending.NO_TRAFFIC,
        generation=session.meta.generation,
        now=now,
    )


def _no_context(status: SessionStatus) -> list[Verdict]:
    """What is said of the context of a session that never had one; else what is said stays."""
    if conditions.of(status, CONTEXT_SAVED).reason != conditions.PENDING:
        return []
    return [ending.NO_CONTEXT]


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
        not_ready(reasons.PAUSING, message),
        Verdict(PAUSED, FALSE, reason, message),
        generation=session.meta.generation,
        now=now,
    )


def preempted(session: Session, pause: actions.Pause) -> Note:
    """The event of a pause that begins for another: with what is then still to be saved."""
    text = "; ".join(filter(None, (pause.message, pause.to_save)))
    subject, once = Subject.of("LLMSession", session.meta), str(session.status.epoch)
    event = reasons.EVENT_PREEMPTED
    return Note(subject, event, text, once_per=once, warning=True, same=pause.message)


def shown(reason: str) -> str:
    """A reason of the plan as the Ready condition has it."""
    return reasons.WAITING_FOR_ROOM if reason in FOR_ROOM else reason


def waiting(
    session: Session, *, reason: str, message: str, now: float, system: str
) -> SessionStatus:
    """Why it has no place, in the plan's words; a failed session tells of its failure first.

    `system` is the operator's own namespace.
    """
    if reason == actions.BACK_OFF and session.status.failure is not None:
        return session.status
    paused = conditions.of(session.status, PAUSED)
    if paused.status == TRUE:
        message = f"paused ({paused.reason}); {message}"
    ready = not_ready(shown(reason), message, cause=reason)
    ready = filled(ready, session.meta, system=system)
    verdicts = [
        ready,
        ending.NO_TRAFFIC,
        Verdict(PLACED, FALSE, reason, ready.message),
    ]
    if paused.reason == conditions.PENDING:
        verdicts.append(Verdict(PAUSED, FALSE, reasons.NOT_STARTED, "it was not started yet"))
    verdicts += _no_context(session.status)
    return conditions.judged(session.status, *verdicts, generation=session.meta.generation, now=now)


def begins_to_wait(session: Session, *, reason: str, message: str) -> Note | None:
    """The event of a reason to wait: once for each start, whatever numbers change meanwhile."""
    if reason in FOR_SOMEONE:
        return rejected(session, reason=reason, message=message)
    if reason not in FOR_ROOM:
        return None
    subject, once = Subject.of("LLMSession", session.meta), str(session.status.epoch)
    return Note(subject, reasons.WAITING_FOR_ROOM, message, once_per=once, same="")


def rejected(session: Session, *, reason: str, message: str) -> Note:
    """What only a change by somebody ends: once for each spec and start."""
    subject = Subject.of("LLMSession", session.meta)
    once = f"{session.meta.generation}.{session.status.epoch}"
    text = f"{reason}: {remedied(reason, message)}"
    event = reasons.EVENT_REJECTED
    return Note(subject, event, text, once_per=once, warning=True, same=reason)


def unread_wake(session: Session) -> Note | None:
    """Once for each text that is no time: whoever wrote it waits for the session to come back."""
    said = pacing.wake_of(session)
    if conditions.of(session.status, PAUSED).reason != reasons.IDLE:
        return None
    if not said or clock.seconds(said):
        return None
    subject, once = Subject.of("LLMSession", session.meta), str(session.status.epoch)
    text = pacing.wake_hint(session)
    return Note(subject, reasons.EVENT_NOT_WOKEN, text, once_per=once, warning=True, same=said)


def held_back(session: Session, *, now: float) -> SessionStatus:
    """A session that shall not run says so, and not that it waits for room."""
    paused = conditions.of(session.status, PAUSED)
    reason = paused.reason if paused.reason in HELD else reasons.SUSPENDED
    message = resting(session, reason)
    if reason == reasons.IDLE and session.status.paused_at:
        message += f", and rests since {session.status.paused_at}"
        if pacing.wake_of(session):
            message += f"; {pacing.wake_hint(session)}"
    return waiting(session, reason=reason, message=message, now=now, system="")


def resting(session: Session, reason: str) -> str:
    """By which wish it shall not run."""
    if reason == reasons.IDLE:
        return f"it had no requests for {session.spec.idle_after_seconds} s (spec.idle)"
    return "spec.suspend is true"
