"""Room for a claimant by others' leave: moves to other places, reclaimed borrowings, pauses.

Of the cheapest ways to make room, one whose victims all find a home elsewhere comes first; then
those that take only what tenants use above their guarantee; then any of strictly lower tiers.
"""

from typing import Final

from sojourn_operator.plan import tenants
from sojourn_operator.plan.actions import (
    MAKING_ROOM,
    PREEMPTED,
    RECLAIMED,
    Move,
    Nominate,
    Pause,
)
from sojourn_operator.plan.findroom import RoomFinder, kind_of
from sojourn_operator.plan.state import Nomination, Phase, Place, Session
from sojourn_operator.plan.turn import SentAway, Turn
from sojourn_operator.plan.victims import Claim
from sojourn_operator.plan.words import asked, at, moved_for, paused_for, to_save

UP: Final = frozenset({Phase.STARTING, Phase.RUNNING})
PATIENCE: Final = 60.0
"""Seconds that freed room is kept beyond the time that saving takes: a guess at a slow pod's
end.
"""
STORE_SPEED: Final = 100e6
"""Bytes per second that a store surely takes: a guess, on the slow side of networked disks."""


def expiry(turn: Turn, leaving: list[Session]) -> float:
    """Until when room is kept that these sessions have to save for."""
    return turn.state.now + PATIENCE + sum(one.to_save for one in leaving) / STORE_SPEED


def make_room(turn: Turn, session: Session) -> bool:
    """Nominate a place and send away the cheapest of lower tiers there, if that is enough."""
    kind = kind_of(turn, session)
    if not session.avoid and kind in turn.hopeless:
        return False
    claims = RoomFinder(turn, session).find()
    if not claims:
        turn.hopeless.add(kind)
        return False
    claim = next((one for one in claims if homes(turn, session, one) is not None), claims[0])
    victims = list(claim.victims)
    nomination = Nomination(
        place=claim.place,
        victims=tuple(victim.key for victim in victims),
        expires=expiry(turn, victims),
    )
    names = ", ".join(nomination.victims) or "nobody, as its sessions are leaving"
    message = f"needs {asked(session.request)} on {at(claim.place)}; sends away {names}"
    turn.actions.append(Nominate(session.key, nomination, reason=MAKING_ROOM, message=message))
    for victim in victims:
        turn.leave(victim)
        turn.paused_for[victim.key] = session.key
    turn.look_again(nomination.expires)
    send_away(turn, session, claim.place, victims, options=claim.options)
    return True


def send_away(
    turn: Turn, claimant: Session, place: Place, victims: list[Session], *, options: int
) -> None:
    """Keep the place; what becomes of the victims, `house` decides."""
    turn.board.unbook(claimant.key)
    reclaimed = tenants.within_guarantee(turn.state, turn.board.books, claimant)
    turn.board.book(claimant, place)
    turn.sent_away += [
        SentAway(
            victim,
            claimant,
            options,
            reclaimed=reclaimed,
            beside=tuple(other.key for other in victims if other is not victim),
        )
        for victim in victims
    ]


def house(turn: Turn) -> None:
    """Move each victim to a free home, or pause it where there is none.

    After the claimants of a band are served: a victim's home must not stand in the way of one.
    """
    for one in turn.sent_away:
        victim, claimant = one.victim, one.claimant
        home = turn.free_place(victim)
        if home is None:
            turn.actions.append(
                Pause(
                    victim.key,
                    by=claimant.key,
                    reason=RECLAIMED if one.reclaimed else PREEMPTED,
                    message=paused_for(claimant, options=one.options, beside=one.beside),
                    to_save=to_save(victim),
                )
            )
            continue
        turn.board.book(victim, home)
        turn.actions.append(
            Move(
                victim.key,
                nomination=Nomination(place=home, victims=(), expires=expiry(turn, [victim])),
                reason=PREEMPTED,
                message=moved_for(claimant, home),
            )
        )
    turn.sent_away.clear()


def homes(turn: Turn, claimant: Session, claim: Claim) -> list[Place] | None:
    """A free home for every victim while the claimant has its place, None if one has none."""
    found: list[Place] = []
    turn.board.book(claimant, claim.place)
    for victim in claim.victims:
        home = turn.free_place(victim)
        if home is None:
            break
        found.append(home)
        turn.board.book(victim, home)
    for victim in claim.victims[: len(found)]:
        turn.board.unbook(victim.key)
    turn.board.unbook(claimant.key)
    return found if len(found) == len(claim.victims) else None
