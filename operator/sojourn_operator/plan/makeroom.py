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
from sojourn_operator.plan.index import tie_of
from sojourn_operator.plan.rank import Verdict, may_pause, priority_of
from sojourn_operator.plan.state import Nomination, Phase, Place, Session
from sojourn_operator.plan.turn import Turn
from sojourn_operator.plan.victims import Candidate, Claim, candidate, find_claims
from sojourn_operator.plan.words import asked, at, moved_for, paused_for

UP: Final = frozenset({Phase.STARTING, Phase.RUNNING})
PATIENCE: Final = 60.0
"""Seconds that freed room is kept beyond the time that saving takes: a guess at a slow pod's
end.
"""
STORE_SPEED: Final = 100e6
"""Bytes per second that a store surely takes: a guess, on the slow side of networked disks."""
CLOSE_CALLS: Final = 4
"""Claims that are looked at for homes of their victims: a guess; each home costs a decision."""


def expiry(turn: Turn, leaving: list[Session]) -> float:
    """Until when room is kept that these sessions have to save for."""
    return turn.state.now + PATIENCE + sum(one.save_bytes for one in leaving) / STORE_SPEED


def make_room(turn: Turn, session: Session) -> bool:
    """Nominate a place and send away the cheapest of lower tiers there, if that is enough."""
    kind = (session.request, session.tier, session.tenant)
    if not session.avoid and kind in turn.hopeless:
        return False
    claims = find(turn, session)
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
    """Keep the place, and move each victim to a free home or pause it where there is none."""
    turn.board.unbook(claimant.key)
    reclaimed = tenants.within_guarantee(turn.state, turn.board.books, claimant)
    turn.board.book(claimant, place)
    for victim in victims:
        home = turn.free_place(victim)
        if home is None:
            turn.actions.append(
                Pause(
                    victim.key,
                    by=claimant.key,
                    reason=RECLAIMED if reclaimed else PREEMPTED,
                    message=paused_for(claimant, victim, options=options),
                )
            )
            continue
        turn.board.book(victim, home)
        turn.actions.append(
            Move(
                victim.key,
                nomination=Nomination(place=home, victims=(), expires=expiry(turn, [victim])),
                reason=PREEMPTED,
                message=moved_for(claimant, victim, home),
            )
        )


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


def find(turn: Turn, session: Session) -> list[Claim]:
    """The cheapest ways to make room, over the fewest GPUs that give any; cheapest first."""
    placer, request = turn.board.placer, session.request
    accept = turn.accepts(session)
    cooling = is_cooling(turn, session)
    for shards in range(request.shards, max(request.max_shards, request.shards) + 1):
        needs = [
            (room, need)
            for name, room in placer.rooms.items()
            if room.usable
            and (accept is None or accept(name))
            and (need := placer.index.need(room, request, shards)) is not None
        ]
        claims = find_claims(
            placer,
            needs,
            leaving=turn.leaving_from,
            candidates=(lambda _: []) if cooling else lambda node: on_node(turn, session, node),
            count=CLOSE_CALLS,
        )
        if claims:
            return claims
    return []


def is_cooling(turn: Turn, session: Session) -> bool:
    """Whether it was paused so lately that it may not pause others to come back."""
    tier = turn.state.tiers.get(session.tier)
    if tier is None or session.phase is not Phase.PAUSED:
        return False
    until = session.since + tier.cool_down
    turn.look_again(until)
    return turn.state.now < until


def on_node(turn: Turn, session: Session, node: str) -> list[Candidate]:
    """Sessions on a node that the claimant may send away."""
    found: list[Candidate] = []
    for key, what in turn.board.holders.get(node, {}).items():
        if key in turn.leaving:
            continue
        victim = turn.state.sessions[key]
        verdict = may_claim(turn, session, victim)
        if verdict.after is not None:
            turn.look_again(verdict.after)
        if verdict.pausable:
            found.append(
                candidate(
                    victim,
                    what,
                    priority=priority_of(turn.state, victim),
                    over=tenants.over(turn.state, turn.board.books, victim),
                    borrows=tenants.borrows(turn.state, turn.board.books, victim),
                    budgets=turn.state.budgets,
                )
            )
    return sorted(found, key=lambda one: (one.rank, tie_of(one.session.key)))


def may_claim(turn: Turn, claimant: Session, victim: Session) -> Verdict:
    """Tiers decide; and a tenant above its guarantee takes nothing that is guaranteed to
    another.
    """
    verdict = may_pause(turn.state, claimant, victim)
    state, books = turn.state, turn.board.books
    if (
        verdict.pausable
        and claimant.tenant in state.tenants
        and victim.tenant in state.tenants
        and not tenants.within_guarantee(state, books, claimant)
        and not tenants.borrows(state, books, victim)
    ):
        return Verdict(pausable=False)
    return verdict
