"""One claimant's way to a place: its nomination, a free place, room made for it, or waiting.

Every step is simulated on the ledger before an action is written. What is promised is booked, so
that the claimants that follow in this plan see it as taken.
"""

from sojourn_operator.plan import tenants
from sojourn_operator.plan.actions import (
    BACK_OFF,
    IMPOSSIBLE,
    NO_ROOM,
    PLACED,
    QUOTA,
    RESUMED,
    TIER_FORBIDDEN,
    UNKNOWN_TIER,
    PlaceSession,
    Reject,
    Resume,
    Wait,
)
from sojourn_operator.plan.aged import keep_room
from sojourn_operator.plan.findroom import kind_of
from sojourn_operator.plan.makeroom import make_room
from sojourn_operator.plan.nominate import keep_nomination, nominated_place
from sojourn_operator.plan.prospects import lacking
from sojourn_operator.plan.rank import AGING, has_aged
from sojourn_operator.plan.state import Phase, Place, Session
from sojourn_operator.plan.turn import Turn
from sojourn_operator.plan.words import NAMED, asked, at


def settle(turn: Turn, session: Session) -> None:
    """Find the claimant's fate in this plan."""
    if refused(turn, session) or held_back(turn, session) or waits_alike(turn, session):
        return
    place = nominated_place(turn, session) or turn.free_place(session)
    if place is not None:
        start(turn, session, place)
    elif not (keep_nomination(turn, session) or make_room(turn, session)):
        wait(turn, session)


def refused(turn: Turn, session: Session) -> bool:
    """Reject what can never be placed as it is written."""
    reason, message = "", ""
    if session.tier not in turn.state.tiers:
        there = ", ".join(sorted(turn.state.tiers)[:NAMED]) or "none"
        reason, message = UNKNOWN_TIER, f"there is no QoSTier {session.tier}; there are: {there}"
    elif message := tenants.forbidden(turn.state, session):
        reason = TIER_FORBIDDEN
    elif not 0 <= session.request.shards <= max(session.request.max_shards, 1):
        most, shards = max(session.request.max_shards, 1), session.request.shards
        reason, message = IMPOSSIBLE, f"asks for {shards} shards; spec allows 0 to {most}"
    if reason:
        turn.actions.append(Reject(session.key, reason=reason, message=message))
    return bool(reason)


def held_back(turn: Turn, session: Session) -> bool:
    """Let wait what may not start now, whatever room there is."""
    now = turn.state.now
    if session.not_before > now:
        turn.look_again(session.not_before)
        message = f"tries again in {session.not_before - now:.0f} s after a failed start"
        turn.actions.append(Wait(session.key, reason=BACK_OFF, message=message))
        return True
    turn.board.unbook(session.key)
    message = tenants.over_quota(turn.state, turn.board.books, session)
    if message:
        turn.actions.append(Wait(session.key, reason=QUOTA, message=message))
    return bool(message)


def waits_alike(turn: Turn, session: Session) -> bool:
    """Let wait what asks for the same as one that has to, while no room has changed since.

    On a full cluster most claimants are such: a third of a plan's time went into asking again.
    """
    if session.nomination is not None or session.avoid:
        return False
    if turn.kept is None and has_aged(turn.state, session):
        return False
    found = turn.told.get(kind_of(turn, session))
    if found is None or found[0] != turn.board.placer.index.now:
        return False
    turn.actions.append(Wait(session.key, reason=found[1], message=found[2]))
    return True


def start(turn: Turn, session: Session, place: Place) -> None:
    """Place or resume the session."""
    turn.board.book(session, place)
    turn.starts += 1
    where = f"{asked(session.request)} on {at(place)}"
    if session.phase is not Phase.PAUSED:
        turn.actions.append(PlaceSession(session.key, place, reason=PLACED, message=where))
        return
    exact = turn.exact_at(session, place)
    if not exact:
        where += f"; recomputes, as its snapshot is of kernel class {session.kernel_class}"
    turn.actions.append(Resume(session.key, place, reason=RESUMED, message=where, exact=exact))


def wait(turn: Turn, session: Session) -> None:
    """Nothing can be done now: say what is missing, and keep room if it has waited too long."""
    reason, message = lacking(turn.board, session.request, avoid=session.avoid)
    kind = kind_of(turn, session)
    if kind in turn.hopeless and not session.avoid:
        turn.told[kind] = (turn.board.placer.index.now, reason, message)
    if reason == NO_ROOM and (place := keep_room(turn, session)) is not None:
        message += f"; after {AGING / 60:.0f} min of waiting, {at(place)} is kept for it"
    turn.actions.append(Wait(session.key, reason=reason, message=message))
