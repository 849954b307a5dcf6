"""`plan`: from a state to the actions it calls for. The fixed order of steps, and nothing else.

A Planner keeps its ledger and scores between plans and gives the same plan as a new one would.
"""

from itertools import groupby

from sojourn_operator.plan import claim, stop
from sojourn_operator.plan.actions import UNKNOWN_TIER, Plan, Reject
from sojourn_operator.plan.board import Board
from sojourn_operator.plan.placer import Placer
from sojourn_operator.plan.rank import claim_order, priority_of
from sojourn_operator.plan.score import Policy
from sojourn_operator.plan.state import Phase, Session, State
from sojourn_operator.plan.turn import Turn


class Planner:
    """Plans one state after another of the same cluster."""

    def __init__(self, policy: Policy | None = None) -> None:
        self._board = Board(Placer(policy))

    def plan(self, state: State) -> Plan:
        """The actions for this state; a function of the state alone."""
        self._board.update(state)
        turn = Turn(state=state, board=self._board)
        stop.stop_unwanted(turn)
        moving = stop.drained(turn)
        waiting = claimants(turn)
        everyone = sorted([*moving, *waiting], key=lambda one: claim_order(state, one))
        leaving_home = {session.key for session in moving}
        for _, band in groupby(everyone, key=lambda one: priority_of(state, one)):
            members = list(band)
            for session in members:
                claim.reserve(turn, session)
            for session in members:
                if session.key in leaving_home:
                    stop.drain(turn, session)
                elif session.tier not in state.tiers:
                    message = f"tier {session.tier} does not exist"
                    turn.actions.append(Reject(session.key, reason=UNKNOWN_TIER, message=message))
                elif session.phase is not Phase.PAUSING:
                    claim.settle(turn, session)
        return Plan(
            actions=tuple(turn.actions),
            next_deadline=min(turn.deadlines, default=None),
        )


def claimants(turn: Turn) -> list[Session]:
    """Sessions without a place that shall have one, and those on their way to a nominated one."""
    return [
        session
        for session in turn.state.sessions.values()
        if not session.suspend
        and not session.deleting
        and (
            session.phase in (Phase.WAITING, Phase.PAUSED)
            or (session.phase is Phase.PAUSING and session.nomination is not None)
        )
    ]


def plan(state: State) -> Plan:
    """Plan one state without any memory."""
    return Planner().plan(state)
