"""Sessions that have to leave their place whatever others want: suspended, deleted, on a
draining node.

A session on a draining node is moved when there is a free place, else room is made by its tier's
means while it runs on; only if there is none either is it paused and waits.
"""

from sojourn_operator.plan import claim
from sojourn_operator.plan.actions import DELETED, NODE_DRAINING, SUSPENDED, Move, Pause
from sojourn_operator.plan.rank import claim_order
from sojourn_operator.plan.state import Nomination, Phase, Session
from sojourn_operator.plan.turn import Turn
from sojourn_operator.plan.words import at

UP = frozenset({Phase.STARTING, Phase.RUNNING})


def stop_unwanted(turn: Turn) -> None:
    """Pause what shall not run."""
    for key in sorted(turn.board.held):
        session = turn.state.sessions[key]
        if session.phase not in UP or not (session.suspend or session.deleting):
            continue
        reason = DELETED if session.deleting else SUSPENDED
        text = "the session is deleted" if session.deleting else "the session shall not run now"
        turn.actions.append(Pause(key, by="", reason=reason, message=text))
        turn.leaving.add(key)


def drained(turn: Turn) -> list[Session]:
    """Sessions that run on draining nodes and are not leaving yet, in the order of claims."""
    state = turn.state
    found = [
        state.sessions[key]
        for name, node in state.nodes.items()
        if node.draining
        for key in turn.board.holders.get(name, ())
        if key not in turn.leaving
    ]
    return sorted(found, key=lambda session: claim_order(state, session))


def drain(turn: Turn, session: Session) -> None:
    """Take one session off its draining node."""
    home = claim.nominated_place(turn, session) or turn.free_place(session)
    if home is not None:
        turn.board.book(session.key, turn.board.placer.take_at(home, session.request))
        expires = turn.state.now + claim.PATIENCE + claim.saving_time([session])
        turn.actions.append(
            Move(
                session.key,
                nomination=Nomination(place=home, victims=(), expires=expires),
                reason=NODE_DRAINING,
                message=f"its node is drained; moves to {at(home)}",
            )
        )
        turn.leaving.add(session.key)
        return
    if claim.make_room(turn, session):
        return
    message = "its node is drained and no other place is free; it waits with its context saved"
    turn.actions.append(Pause(session.key, by="", reason=NODE_DRAINING, message=message))
    turn.leaving.add(session.key)
