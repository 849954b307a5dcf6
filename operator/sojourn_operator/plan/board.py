"""Who holds what on which node: the State's sessions counted into a `Placer`, by differences.

A session or node that is the same object (or equal) as last time costs nothing. What a plan books
while it is being made goes through `book` and `unbook`, and is undone before the next update.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import compress
from operator import is_not
from typing import TypeVar

from sojourn_operator.plan.books import Books
from sojourn_operator.plan.lacking import Lacks
from sojourn_operator.plan.need import take_of
from sojourn_operator.plan.placer import Placer
from sojourn_operator.plan.roster import Roster
from sojourn_operator.plan.state import Mix, Node, Phase, Place, Session, State
from sojourn_operator.plan.take import Take

T = TypeVar("T")
HOLDING = frozenset({Phase.STARTING, Phase.RUNNING, Phase.PAUSING})


def inside(sessions: Mapping[str, Session]) -> frozenset[str]:
    """Keys of the sessions that hold devices."""
    return frozenset(key for key, one in sessions.items() if one.phase in HOLDING)


@dataclass(slots=True)
class Board:
    """The ledger: `held` is what each session holds, `holders` the same by node.

    `pausing`, `unwanted`, `waiting` and `wishing` (with a `wish`) are the sessions that a plan has
    to look at; `save` is what a pause of each would have to write, in bytes.
    """

    placer: Placer
    holders: dict[str, dict[str, Take]] = field(default_factory=dict)
    held: dict[str, Take] = field(default_factory=dict)
    books: Books = field(default_factory=Books)
    roster: Roster = field(default_factory=Roster)
    pausing: set[str] = field(default_factory=set)
    unwanted: set[str] = field(default_factory=set)
    waiting: set[str] = field(default_factory=set)
    wishing: set[str] = field(default_factory=set)
    save: dict[str, int] = field(default_factory=dict)
    _sessions: dict[str, Session] = field(default_factory=dict)
    _nodes: dict[str, Node] = field(default_factory=dict)
    _counted: dict[str, Session] = field(default_factory=dict)
    _dismissed: dict[str, Session] = field(default_factory=dict)
    _booked: dict[str, tuple[Session, Take]] = field(default_factory=dict)
    _mix: Mix = field(default_factory=Mix)
    _nodes_changed: bool = False
    _supply: Counter[tuple[object, ...]] = field(default_factory=Counter)
    lacks: Lacks = field(init=False)

    def __post_init__(self) -> None:
        self.lacks = Lacks(self.placer.index, self.placer.rooms)

    def update(self, state: State) -> None:
        """Take over a new state."""
        for key in tuple(self._booked):
            self.unbook(key)
        for session in self._dismissed.values():
            self.books.add(session)
        self._dismissed.clear()
        moved = self._update_nodes(state)
        if self._nodes_changed or state.mix is not self._mix:
            self._update_mix(state.mix)
        before, self._sessions = self._sessions, dict(state.sessions)
        for key in before.keys() - self._sessions.keys():
            self._release(key)
            self._sort(key, None)
            del self.save[key]
        for key in renewed(before, self._sessions):
            self._renew(before.get(key), self._sessions[key])
        for key in moved:
            if key not in self.held and (again := state.sessions.get(key)) is not None:
                self._hold(again)

    def _renew(self, old: Session | None, session: Session) -> None:
        """Take over a session that is new or has changed."""
        key = session.key
        self._sort(key, session)
        if self.save.get(key) != session.to_save:
            self.save[key] = session.to_save
            if old is not None and (what := self.held.get(key)) is not None:
                self.roster.save_changed(old.tier, what)
        if old is None or _holding_differs(old, session):
            self._release(key)
            self._hold(session)

    def book(self, session: Session, place: Place) -> None:
        """Count room for a session that this plan places or nominates."""
        self.unbook(session.key)
        what = self.placer.take_at(place, session.request)
        self._booked[session.key] = (session, what)
        self.placer.take(what)
        if session.key not in self.held:
            self.books.add(session)

    def unbook(self, key: str) -> None:
        """Take a booking back, if there is one."""
        booked = self._booked.pop(key, None)
        if booked is None:
            return
        session, what = booked
        if what.node in self.placer.rooms:
            self.placer.give(what)
        if key not in self.held:
            self.books.add(session, -1)

    def dismiss(self, session: Session) -> None:
        """Its tenant's share is free from now on in this plan, though its devices are not yet."""
        if session.key in self.held and session.key not in self._dismissed:
            self._dismissed[session.key] = self._counted[session.key]
            self.books.add(self._counted[session.key], -1)

    def _sort(self, key: str, session: Session | None) -> None:
        """Keep the sets of sessions that every plan looks at."""
        for kind in (self.pausing, self.unwanted, self.waiting, self.wishing):
            kind.discard(key)
        if session is None:
            return
        resting = session.suspend or session.deleting
        if session.wish is not None:
            self.wishing.add(key)
        if session.phase is Phase.PAUSING:
            self.pausing.add(key)
            if session.nomination is not None and not resting:
                self.waiting.add(key)
        elif session.phase in HOLDING:
            if resting:
                self.unwanted.add(key)
        elif session.phase is not Phase.FAILED and not resting:
            self.waiting.add(key)

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
        self._nodes_changed = False
        displaced: list[str] = []
        for name in before.keys() - state.nodes.keys():
            self._nodes_changed = True
            displaced += self._displace(name)
            self.placer.drop_node(name)
        for name in renewed(before, self._nodes):
            node = self._nodes[name]
            if before.get(name) != node:
                self._nodes_changed = True
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
        displaced = self.holders.pop(name, {})
        keys = list(displaced)
        for key, what in displaced.items():
            del self.held[key]
            self._uncount(key, what)
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
        self._counted[session.key] = session
        self.books.add(session)
        self.roster.add(session, what)
        self.holders.setdefault(place.node, {})[session.key] = what
        self.placer.take(what)

    def _release(self, key: str) -> None:
        what = self.held.pop(key, None)
        if what is not None:
            del self.holders[what.node][key]
            self.placer.give(what)
            self._uncount(key, what)

    def _uncount(self, key: str, what: Take) -> None:
        session = self._counted.pop(key)
        self.books.add(session, -1)
        self.roster.remove(session, what)


def renewed(before: Mapping[str, T], after: Mapping[str, T]) -> list[str]:
    """Keys whose value is another object than before, or new.

    Thousands are compared for every plan: so it is written without a loop in Python.
    """
    return list(compress(after, map(is_not, map(before.get, after), after.values())))


def _holding_differs(old: Session, new: Session) -> bool:
    return (
        (old.phase in HOLDING) != (new.phase in HOLDING)
        or old.place != new.place
        or old.request != new.request
        or (old.tenant, old.tier) != (new.tenant, new.tier)
    )
