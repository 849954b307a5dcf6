"""`plan`: from a state to the actions it calls for. The fixed order of steps, and nothing else.

A Planner keeps its ledger and scores between plans and gives the same plan as a new one would.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

from sojourn_operator.plan import claim, defrag, makeroom, nominate, prospects, stop, tenants
from sojourn_operator.plan.actions import NO_ROOM, PlaceSession, Plan, Resume, Wait
from sojourn_operator.plan.board import Board
from sojourn_operator.plan.placer import Placer
from sojourn_operator.plan.plugins import Plugins
from sojourn_operator.plan.rank import band_of, claim_order, has_aged
from sojourn_operator.plan.score import Policy
from sojourn_operator.plan.state import Phase, Session, State
from sojourn_operator.plan.turn import Turn


class Planner:
    """Plans one state after another of the same cluster.

    A plan ends after about `most` starts, and is then due to be made again at once. Starts that a
    plugin holds back do not count: they would keep those behind them from their turn for ever.
    """

    def __init__(
        self,
        policy: Policy | None = None,
        plugins: Plugins | None = None,
        *,
        most: int | None = None,
    ) -> None:
        self.board = Board(Placer(policy))
        self._plugins = plugins or Plugins()
        self._most = math.inf if most is None else most

    def plan(self, state: State) -> Plan:
        """The actions for this state; a function of the state alone."""
        most = self._most
        while True:
            found, cut = self._plan(state, most)
            if not cut:
                return found
            if starts(found) >= self._most:
                return replace(found, next_deadline=state.now)
            most *= 2

    def _plan(self, state: State, most: float) -> tuple[Plan, bool]:
        """The plan up to `most` starts, less what plugins hold back; whether it was cut there."""
        self.board.update(state)
        turn = Turn(state=state, board=self.board)
        stop.stop_unwanted(turn)
        moving = {session.key: session for session in stop.drained(turn)}
        waiting = (state.sessions[key] for key in self.board.waiting)
        everyone = sorted(
            [*moving.values(), *waiting], key=lambda session: claim_order(state, session)
        )
        for _, band in groupby(everyone, key=lambda session: band_of(state, session)):
            members = list(band)
            for session in members:
                nominate.reserve(turn, session)
            for session in in_turn(turn, self._plugins.order(state, members)):
                if turn.starts >= most:
                    break
                if session.key in moving:
                    stop.drain(turn, session)
                elif session.phase is not Phase.PAUSING:
                    claim.settle(turn, session)
            makeroom.house(turn)
            if turn.starts >= most:
                break
        else:
            defrag.defragment(turn, short_of_room(turn))
        found = Plan(
            tuple(turn.actions),
            next_deadline=min(turn.deadlines, default=None),
            notes=tuple(turn.notes),
            never=prospects.never(self.board, state.sessions),
        )
        trimmed = self._plugins.trim(state, found) if self._plugins.post else found
        return trimmed, turn.starts >= most


def starts(plan: Plan) -> int:
    """Sessions that it places or resumes."""
    return sum(isinstance(one, PlaceSession | Resume) for one in plan.actions)


def short_of_room(turn: Turn) -> list[Session]:
    """Claimants that found no room in this plan, in the order in which they were served."""
    return [
        turn.state.sessions[one.session]
        for one in turn.actions
        if isinstance(one, Wait) and one.reason == NO_ROOM
    ]


def in_turn(turn: Turn, members: list[Session]) -> Iterator[Session]:
    """Claimants of one band: those that waited too long, then tenants by use per weight.

    Read one by one: each sees what the ones before it were given.
    """
    state = turn.state
    queues: dict[str, list[Session]] = {}
    for session in members:
        if has_aged(state, session):
            yield session
        else:
            owner = session.tenant if session.tenant in state.tenants else ""
            queues.setdefault(owner, []).append(session)
    if len(queues) == 1:
        yield from queues.popitem()[1]
    for queue in queues.values():
        queue.reverse()
    while queues:
        owner = min(
            queues,
            key=lambda name: tenants.turn_order(state, turn.board.books, queues[name][-1]),
        )
        yield queues[owner].pop()
        if not queues[owner]:
            del queues[owner]


def plan(state: State) -> Plan:
    """Plan one state without any memory."""
    return Planner().plan(state)
