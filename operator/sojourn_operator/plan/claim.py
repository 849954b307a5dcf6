"""One claimant's way to a place: its nomination, a free place, room made by pausing lower tiers,
or waiting.

Every step is simulated on the ledger before an action is written. What is promised is booked, so
that the claimants that follow in this plan see it as taken.
"""

from sojourn_operator.plan.actions import (
    BACK_OFF,
    MAKING_ROOM,
    NO_GPU,
    NO_ROOM,
    PLACED,
    PREEMPTED,
    RESUMED,
    ROOM_IS_FREED,
    Nominate,
    Pause,
    PlaceSession,
    Resume,
    Wait,
    Withdraw,
)
from sojourn_operator.plan.index import tie_of
from sojourn_operator.plan.need import Need
from sojourn_operator.plan.placer import holds
from sojourn_operator.plan.rank import may_pause, priority_of
from sojourn_operator.plan.room import Room
from sojourn_operator.plan.state import Nomination, Phase, Place, Session
from sojourn_operator.plan.turn import Turn
from sojourn_operator.plan.victims import Candidate, Claim, candidate, find_claim
from sojourn_operator.plan.words import asked, at, no_room, paused_for

PATIENCE = 60.0
"""Seconds that freed room is kept beyond the time that saving takes: a guess at a slow pod's
end.
"""
STORE_SPEED = 100e6
"""Bytes per second that a store surely takes: a guess, on the slow side of networked disks."""


def saving_time(sessions: list[Session] | tuple[Session, ...]) -> float:
    """Seconds in which all of them have surely saved."""
    return sum(session.save_bytes for session in sessions) / STORE_SPEED


def settle(turn: Turn, session: Session) -> None:
    """Find the claimant's fate in this plan."""
    now = turn.state.now
    if session.not_before > now:
        turn.look_again(session.not_before)
        message = f"tries again in {session.not_before - now:.0f} s after a failed start"
        turn.actions.append(Wait(session.key, reason=BACK_OFF, message=message))
        return
    own = nominated_place(turn, session)
    place = own or turn.free_place(session)
    if place is not None:
        start(turn, session, place)
    elif keep_nomination(turn, session) or make_room(turn, session):
        return
    else:
        wait(turn, session)


def nominated_place(turn: Turn, session: Session) -> Place | None:
    """The nominated place if it is free now; the session's own booking does not count against
    it.
    """
    turn.board.unbook(session.key)
    nomination = session.nomination
    if nomination is None or not turn.board.placer.fits_at(nomination.place, session.request):
        return None
    return nomination.place


def start(turn: Turn, session: Session, place: Place) -> None:
    """Place or resume the session."""
    turn.board.book(session.key, turn.board.placer.take_at(place, session.request))
    where = f"{asked(session.request)} on {at(place)}"
    if session.phase is not Phase.PAUSED:
        turn.actions.append(PlaceSession(session.key, place, reason=PLACED, message=where))
        return
    exact = turn.exact_at(session, place)
    if not exact:
        where += f"; recomputes, as its snapshot is of kernel class {session.kernel_class}"
    turn.actions.append(Resume(session.key, place, reason=RESUMED, message=where, exact=exact))


def reserve(turn: Turn, session: Session) -> None:
    """Keep the room of a nomination that still holds for its claimant; withdraw any other."""
    nomination = session.nomination
    if nomination is None:
        return
    if problem := unsound(turn, session, nomination):
        if session.phase is not Phase.PAUSING:
            turn.actions.append(Withdraw(session.key, reason=NO_ROOM, message=problem))
        return
    turn.look_again(nomination.expires)
    what = turn.board.placer.take_at(nomination.place, session.request)
    turn.board.book(session.key, what)
    for key in nomination.victims:
        victim = turn.state.sessions.get(key)
        if victim is not None and key in turn.board.held and key not in turn.leaving:
            turn.leaving.add(key)
            turn.paused_for[key] = session.key


def unsound(turn: Turn, session: Session, nomination: Nomination) -> str:
    """Why a nomination does not hold any more, empty if it does."""
    if nomination.expires <= turn.state.now:
        return "its room was not freed in time"
    if session.suspend or session.deleting:
        return "the session shall not run now"
    placer, place = turn.board.placer, nomination.place
    room = placer.rooms.get(place.node)
    if room is None or not room.usable or place.node in session.avoid:
        return f"{place.node} cannot be used now"
    emptied = room.copy()
    for what in turn.leaving_from(place.node):
        emptied.give(what)
    for key in nomination.victims:
        victim = turn.state.sessions.get(key)
        if victim is None or key in turn.leaving or key not in turn.board.held:
            continue
        if not may_pause(turn.state, session, victim).pausable:
            return f"{key} may not be paused now"
        if turn.board.held[key].node == place.node:
            emptied.give(turn.board.held[key])
    need = placer.index.need(room, session.request, len(place.gpus))
    if not holds(emptied, place, session.request, need):
        return f"{at(place)} does not become free"
    return ""


def keep_nomination(turn: Turn, session: Session) -> bool:
    """Go on with a nomination that `reserve` found sound: pause those victims that still run."""
    nomination = session.nomination
    if nomination is None or unsound(turn, session, nomination):
        return False
    turn.board.book(session.key, turn.board.placer.take_at(nomination.place, session.request))
    running = []
    for key in nomination.victims:
        victim = turn.state.sessions.get(key)
        if victim is None or victim.phase not in (Phase.STARTING, Phase.RUNNING):
            continue
        if turn.paused_for.get(key) == session.key:
            running.append(victim)
    for victim in running:
        message = paused_for(session, victim, options=0)
        turn.actions.append(Pause(victim.key, by=session.key, reason=PREEMPTED, message=message))
    message = f"needs {asked(session.request)}; {at(nomination.place)} is being freed"
    turn.actions.append(Wait(session.key, reason=ROOM_IS_FREED, message=message))
    return True


def make_room(turn: Turn, session: Session) -> bool:
    """Nominate a place and pause the cheapest of lower tiers there, if that is enough."""
    kind = (session.request, session.tier)
    if not session.avoid and kind in turn.hopeless:
        return False
    claim = find(turn, session)
    if claim is None:
        turn.hopeless.add(kind)
        return False
    expires = turn.state.now + PATIENCE + saving_time(claim.victims)
    nomination = Nomination(
        place=claim.place, victims=tuple(v.key for v in claim.victims), expires=expires
    )
    names = ", ".join(nomination.victims) or "nobody; its sessions are leaving"
    message = f"needs {asked(session.request)} on {at(claim.place)}; pauses {names}"
    turn.actions.append(Nominate(session.key, nomination, reason=MAKING_ROOM, message=message))
    for victim in claim.victims:
        turn.actions.append(
            Pause(
                victim.key,
                by=session.key,
                reason=PREEMPTED,
                message=paused_for(session, victim, options=claim.options),
            )
        )
        turn.leaving.add(victim.key)
        turn.paused_for[victim.key] = session.key
    turn.board.book(session.key, turn.board.placer.take_at(claim.place, session.request))
    turn.look_again(expires)
    return True


def find(turn: Turn, session: Session) -> Claim | None:
    """The cheapest room that pausing can make, over the fewest GPUs that give any."""
    placer, request = turn.board.placer, session.request
    cooling = is_cooling(turn, session)
    accept = turn.accepts(session)
    for shards in range(request.shards, max(request.max_shards, request.shards) + 1):

        def needs(count: int = shards) -> list[tuple[Room, Need]]:
            return [
                (room, need)
                for name, room in placer.rooms.items()
                if room.usable
                and (accept is None or accept(name))
                and (need := placer.index.need(room, request, count)) is not None
            ]

        claim = find_claim(
            placer,
            iter(needs()),
            leaving=turn.leaving_from,
            candidates=(lambda _node: []) if cooling else lambda node: on_node(turn, session, node),
        )
        if claim is not None:
            return claim
    return None


def is_cooling(turn: Turn, session: Session) -> bool:
    """Whether it was paused so lately that it may not pause others to come back."""
    tier = turn.state.tiers.get(session.tier)
    if tier is None or session.phase is not Phase.PAUSED:
        return False
    until = session.since + tier.cool_down
    turn.look_again(until)
    return turn.state.now < until


def on_node(turn: Turn, session: Session, node: str) -> list[Candidate]:
    """Sessions on a node that the claimant may pause."""
    found: list[Candidate] = []
    for key, what in turn.board.holders.get(node, {}).items():
        victim = turn.state.sessions[key]
        if key in turn.leaving:
            continue
        verdict = may_pause(turn.state, session, victim)
        if verdict.after is not None:
            turn.look_again(verdict.after)
        if verdict.pausable:
            found.append(
                candidate(
                    victim,
                    what,
                    priority=priority_of(turn.state, victim),
                    over=0,
                    budgets=turn.state.budgets,
                )
            )
    return sorted(found, key=lambda one: (one.rank, tie_of(one.session.key)))


def wait(turn: Turn, session: Session) -> None:
    """Nothing can be done now: say what is missing."""
    possible, message = no_room(turn.board.placer.rooms.values(), session.request)
    reason = NO_ROOM if possible else NO_GPU
    turn.actions.append(Wait(session.key, reason=reason, message=message))
