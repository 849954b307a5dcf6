"""Who holds what on which node: the State's sessions counted into a `Placer`, by differences.

A session or node that is the same object (or equal) as last time costs nothing. What a plan books
while it is being made goes through `book` and `unbook`, and is undone before the next update.
"""

from collections import Counter

from sojourn_operator.plan.need import take_of
from sojourn_operator.plan.placer import Placer
from sojourn_operator.plan.state import Mix, Node, Phase, Session, State
from sojourn_operator.plan.take import Take

HOLDING = frozenset({Phase.STARTING, Phase.RUNNING, Phase.PAUSING})


class Board:
    """The ledger. `holders` has each node's sessions with devices, `held` where and what each
    holds.
    """

    def __init__(self, placer: Placer) -> None:
        self.placer = placer
        self.holders: dict[str, dict[str, Take]] = {}
        self.held: dict[str, Take] = {}
        self._sessions: dict[str, Session] = {}
        self._nodes: dict[str, Node] = {}
        self._booked: dict[str, Take] = {}
        self._mix = Mix()
        self._supply: Counter[tuple[object, ...]] = Counter()

    def update(self, state: State) -> None:
        """Take over a new state."""
        for key in tuple(self._booked):
            self.unbook(key)
        moved = self._update_nodes(state)
        self._update_mix(state.mix)
        before, self._sessions = self._sessions, dict(state.sessions)
        for key in before.keys() - state.sessions.keys():
            self._release(key)
        for key, session in state.sessions.items():
            old = before.get(key)
            if old is not session and (old is None or _holding_differs(old, session)):
                self._release(key)
                self._hold(session)
        for key in moved:
            if key not in self.held and (again := state.sessions.get(key)) is not None:
                self._hold(again)

    def book(self, key: str, what: Take) -> None:
        """Count room for a session that this plan places or nominates."""
        self.unbook(key)
        self._booked[key] = what
        self.placer.take(what)

    def unbook(self, key: str) -> None:
        """Take a booking back, if there is one."""
        what = self._booked.pop(key, None)
        if what is not None and what.node in self.placer.rooms:
            self.placer.give(what)

    def _update_mix(self, mix: Mix) -> None:
        """Retune when the mix or the kinds of GPUs have changed: scores follow the state alone."""
        supply: Counter[tuple[object, ...]] = Counter(
            (gpu.model, gpu.slices, gpu.speed) for node in self._nodes.values() for gpu in node.gpus
        )
        if (mix, supply) != (self._mix, self._supply):
            self._mix, self._supply = mix, supply
            self.placer.retune(mix)

    def _update_nodes(self, state: State) -> list[str]:
        """Replace what changed; returns the sessions that lost their room and are to be counted
        again.
        """
        before, self._nodes = self._nodes, dict(state.nodes)
        displaced: list[str] = []
        for name in before.keys() - state.nodes.keys():
            displaced += self._displace(name)
            self.placer.drop_node(name)
        for name, node in state.nodes.items():
            old = before.get(name)
            if old is not node and old != node:
                displaced += self._displace(name)
                self.placer.put_node(node)
        # A session may have been waiting for its node to be known.
        known = state.nodes.keys() - before.keys()
        if known:
            displaced += [
                key
                for key, one in state.sessions.items()
                if key not in self.held and one.place is not None and one.place.node in known
            ]
        return displaced

    def _displace(self, name: str) -> list[str]:
        keys = list(self.holders.pop(name, ()))
        for key in keys:
            del self.held[key]
        return keys

    def _hold(self, session: Session) -> None:
        place = session.place
        if session.phase not in HOLDING or place is None:
            return
        room = self.placer.rooms.get(place.node)
        if room is None:
            return
        what = take_of(session, room.node)
        self.held[session.key] = what
        self.holders.setdefault(place.node, {})[session.key] = what
        self.placer.take(what)

    def _release(self, key: str) -> None:
        what = self.held.pop(key, None)
        if what is not None:
            del self.holders[what.node][key]
            self.placer.give(what)


def _holding_differs(old: Session, new: Session) -> bool:
    return (
        (old.phase in HOLDING) != (new.phase in HOLDING)
        or old.place != new.place
        or old.request != new.request
    )
