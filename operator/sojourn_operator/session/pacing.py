"""When a session may start: after a failure, an idle pause, a node's refusal.

Pure; the times are all in the session's status, so that a restart of the operator forgets none.
"""

import math
from typing import Final

from sojourn_api.names import ANNOTATION_WAKE, PAUSED
from sojourn_api.objects import (
    IdleAction,
    Session,
)

from sojourn_operator import clock, reasons
from sojourn_operator.act import status as conditions
from sojourn_operator.act.status import TRUE
from sojourn_operator.session import ending
from sojourn_operator.session.scene import Runtime

REFUSALS: Final = frozenset(
    {
        reasons.UNSCHEDULABLE,
        reasons.NOT_PREPARED,
        reasons.NODE_PRESSURE,
        "UnexpectedAdmissionError",
        "NodeAffinity",
        "ErrImageNeverPull",
    }
)
AVOID_SECONDS: Final = 60.0
"""So long is a node left out that refused a start: its ledger needs a while to be true."""


def blocked_by_failure(session: Session, *, model_generation: int) -> bool:
    """Whether the last start failed in a way that only a change can mend, and nothing changed."""
    failure = session.status.failure
    return (
        failure is not None
        and not failure.retry
        and failure.generation == session.meta.generation
        and failure.model_generation == model_generation
    )


def not_before(session: Session) -> float:
    """The end of the back-off after a failed start; a changed spec is tried at once."""
    failure = session.status.failure
    if failure is None or not failure.retry or failure.generation != session.meta.generation:
        return 0.0
    return clock.seconds(failure.at) + ending.back_off(session.status.failures)


def idle(session: Session, runtime: Runtime | None) -> bool:
    """Whether the idle policy wants the session paused, or keeps it so until it is woken."""
    if session.spec.idle_action is not IdleAction.PAUSE:
        return False
    paused = conditions.of(session.status, PAUSED)
    if paused.reason != reasons.IDLE:
        return runtime is not None and runtime.idle
    woken = clock.seconds(wake_of(session))
    since = clock.seconds(session.status.paused_at) if paused.status == TRUE else math.inf
    return woken < since


def wake_of(session: Session) -> str:
    """The annotation that wakes it, as it was written; empty without one."""
    return session.meta.annotations.get(ANNOTATION_WAKE, "")


def wake_hint(session: Session) -> str:
    """How an idle session is woken, and why what its annotation says does not."""
    said = wake_of(session)
    if not said:
        return f"the annotation {ANNOTATION_WAKE} wakes it"
    fault = "is earlier than the pause" if clock.seconds(said) else "is no time"
    return (
        f"the annotation {ANNOTATION_WAKE} is {said[:64]!r}, which {fault}; an RFC 3339 time from "
        f"{session.status.paused_at} on wakes it"
    )


def avoided_until(session: Session) -> float:
    """Until when the node of the last start is left out; 0 if it did not refuse it."""
    failure = session.status.failure
    if failure is None or failure.reason not in REFUSALS:
        return 0.0
    return clock.seconds(failure.at) + AVOID_SECONDS


def avoid(session: Session, *, now: float) -> tuple[str, ...]:
    placement = session.status.placement
    return (placement.node,) if placement is not None and now < avoided_until(session) else ()
