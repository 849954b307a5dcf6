"""Nominations: room that is being freed for a claimant, kept from plan to plan until it expires.

A nomination is written before anyone is paused, so that a plan made again finishes what another
began.
"""

from sojourn_operator.plan.actions import NO_ROOM, ROOM_IS_FREED, Wait, Withdraw
from sojourn_operator.plan.makeroom import UP, send_away
from sojourn_operator.plan.placer import holds
from sojourn_operator.plan.rank import may_pause
from sojourn_operator.plan.room import Room
from sojourn_operator.plan.state import Nomination, Phase, Place, Session
from sojourn_operator.plan.turn import Turn
from sojourn_operator.plan.words import asked, at


def reserve(turn: Turn, session: Session) -> None:
    """Keep the room of a nomination that still holds for its claimant; withdraw any other."""
    nomination = session.nomination
    if nomination is None:
        return
    if problem := unsound(turn, session, nomination):
        turn.unsound.add(session.key)
        if session.phase is not Phase.PAUSING:
            turn.actions.append(Withdraw(session.key, reason=NO_ROOM, message=problem))
        return
    turn.look_again(nomination.expires)
    turn.board.book(session, nomination.place)
    for key in nomination.victims:
        victim = turn.state.sessions.get(key)
        if victim is not None and key in turn.board.held and key not in turn.leaving:
            turn.leave(victim)
            turn.paused_for[key] = session.key


def nominated_place(turn: Turn, session: Session) -> Place | None:
    """The nominated place if it is free now; the session's own booking does not count against
    it.
    """
    turn.board.unbook(session.key)
    nomination = session.nomination
    if nomination is None or session.key in turn.unsound:
        return None
    free = turn.board.placer.fits_at(nomination.place, session.request)
    return nomination.place if free else None


def keep_nomination(turn: Turn, session: Session) -> bool:
    """Go on with a nomination that `reserve` found sound: stop those victims that still run."""
    nomination = session.nomination
    if nomination is None or session.key in turn.unsound:
        return False
    victims = [
        victim
        for key in nomination.victims
        if turn.paused_for.get(key) == session.key
        and (victim := turn.state.sessions[key]).phase in UP
    ]
    send_away(turn, session, nomination.place, victims, options=0)
    if session.phase not in UP:
        message = f"needs {asked(session.request)}; {at(nomination.place)} is being freed"
        turn.actions.append(Wait(session.key, reason=ROOM_IS_FREED, message=message))
    return True


def unsound(turn: Turn, session: Session, nomination: Nomination) -> str:
    """Why a nomination does not hold any more, empty if it does."""
    if nomination.expires <= turn.state.now:
        return "its room was not freed in time"
    placer, place = turn.board.placer, nomination.place
    room = placer.rooms.get(place.node)
    if room is None or not room.usable or place.node in session.avoid:
        return f"{place.node} cannot be used now"
    emptied = room.copy()
    for what in turn.leaving_from(place.node):
        emptied.give(what)
    for key in nomination.victims:
        if problem := _give_victim(turn, session, emptied, key):
            return problem
    need = placer.index.need(room, session.request, len(place.gpus))
    if not holds(emptied, place, session.request, need):
        return f"{at(place)} does not become free"
    return ""


def _give_victim(turn: Turn, session: Session, emptied: Room, key: str) -> str:
    """Count one victim out of its room; why it may not be paused, empty if it may or is gone."""
    victim, held = turn.state.sessions.get(key), turn.board.held.get(key)
    if victim is None or held is None or key in turn.leaving:
        return ""
    if not may_pause(turn.state, session, victim).pausable:
        return f"{key} may not be paused now"
    if held.node == emptied.node.name:
        emptied.give(held)
    return ""
