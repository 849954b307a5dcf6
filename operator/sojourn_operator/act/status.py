"""Conditions, merged: a transition time moves only with the status, and all five are always sent.

Pure. What the conditions shall say is decided in `life`; who writes them is `act.apply`.
"""

import dataclasses
from collections.abc import Iterable
from typing import Final

from sojourn_api.names import READY, SESSION_CONDITIONS
from sojourn_api.objects import Condition, SessionStatus
from sojourn_api.render import NEVER

from sojourn_operator import clock

TRUE: Final = "True"
FALSE: Final = "False"
UNKNOWN: Final = "Unknown"
PENDING: Final = "Pending"


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What one condition shall say now."""

    type: str
    status: str
    reason: str
    message: str


def of(status: SessionStatus, kind: str) -> Verdict:
    """What one condition says; Unknown where nobody has judged it yet."""
    for condition in status.conditions:
        if condition.type == kind:
            return Verdict(kind, condition.status, condition.reason or PENDING, condition.message)
    return Verdict(kind, UNKNOWN, PENDING, "not judged yet")


def since(status: SessionStatus, kind: str) -> float:
    """When this condition's status last changed, in seconds since 1970; 0 if never."""
    times = (entry.last_transition for entry in status.conditions if entry.type == kind)
    return clock.seconds(next(times, ""))


def judged(status: SessionStatus, *verdicts: Verdict, generation: int, now: float) -> SessionStatus:
    """The status with these verdicts; the other conditions stay as they are."""
    news = {verdict.type: verdict for verdict in verdicts}
    conditions = tuple(
        _condition(status, news.get(kind) or of(status, kind), generation=generation, now=now)
        for kind in SESSION_CONDITIONS
    )
    return dataclasses.replace(status, conditions=conditions)


def ready_condition(
    old: Iterable[Condition], verdict: Verdict, *, generation: int, now: float
) -> Condition:
    """The Ready condition of the kinds that have no other."""
    holder = SessionStatus(conditions=tuple(entry for entry in old if entry.type == READY))
    return _condition(holder, verdict, generation=generation, now=now)


def _condition(
    status: SessionStatus, verdict: Verdict, *, generation: int, now: float
) -> Condition:
    old = next((entry for entry in status.conditions if entry.type == verdict.type), None)
    same = (
        old is not None
        and old.status == verdict.status
        and old.last_transition not in ("", NEVER)  # the CRD's default: nobody had judged yet
    )
    return Condition(
        type=verdict.type,
        status=verdict.status,
        reason=verdict.reason,
        message=verdict.message,
        observed_generation=generation,
        last_transition=old.last_transition if old is not None and same else clock.text(now),
    )
