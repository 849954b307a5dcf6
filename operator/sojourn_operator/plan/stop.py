"""Sessions that have to leave their place whatever others want: suspended, deleted, drained.

A session on a draining node is moved when there is a free place, else room is made by its tier's
means while it runs on; only if there is none either is it paused and waits.
"""

from sojourn_operator.plan.actions import DELETED, NODE_DRAINING, SUSPENDED, Move, Pause
from sojourn_operator.plan.makeroom import UP, expiry, make_room
from sojourn_operator.plan.nominate import keep_nomination, nominated_place
from sojourn_operator.plan.state import Nomination, Session
from sojourn_operator.plan.turn import Turn
from sojourn_operator.plan.words import at


def stop_unwanted(turn: Turn) -> None:
    """Pause what shall not run."""
    for key in sorted(turn.board.unwanted):
        session = turn.state.sessions[key]
        reason = DELETED if session.deleting else SUSPENDED
        text = "the session is deleted" if session.deleting else "the session shall not run now"
        turn.actions.append(Pause(key, by="", reason=reason, message=text))
        if key in turn.board.held:
            turn.leave(session)


def drained(turn: Turn) -> list[Session]:
    """Sessions that run on draining nodes and are not leaving yet."""
    return [
        turn.state.sessions[key]
        for name, node in turn.state.nodes.items()
        if node.draining
        for key in turn.board.holders.get(name, ())
        if key not in turn.leaving and turn.state.sessions[key].phase in UP
    ]


def drain(turn: Turn, session: Session) -> None:
    """Take one session off its draining node."""
    home = nominated_place(turn, session) or turn.free_place(session)
    if home is not None:
        turn.board.book(session, home)
        turn.actions.append(
            Move(
                session.key,
                nomination=Nomination(place=home, victims=(), expires=expiry(turn, [session])),
                reason=NODE_DRAINING,
                message=f"its node is drained; moves to {at(home)}",
            )
        )
        turn.leave(session)
        return
    if keep_nomination(turn, session) or make_room(turn, session):
        return
    message = "its node is drained and no other place is free; it waits with its context saved"
    turn.actions.append(Pause(session.key, by="", reason=NODE_DRAINING, message=message))
    turn.leave(session)
