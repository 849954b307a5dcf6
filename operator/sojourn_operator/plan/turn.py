"""One plan in the making: the state, the ledger, the actions so far, and the times to look again.

Holds what the steps share; decides nothing. The steps run in the order that `planner` gives.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from sojourn_operator.plan.actions import Action
from sojourn_operator.plan.board import Board
from sojourn_operator.plan.state import Place, Request, Session, State
from sojourn_operator.plan.take import Take


@dataclass(slots=True)
class Turn:
    """`leaving` are sessions whose devices become free without a further decision."""

    state: State
    board: Board
    actions: list[Action] = field(default_factory=list)
    leaving: set[str] = field(default_factory=set)
    deadlines: list[float] = field(default_factory=list)
    paused_for: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    unsound: set[str] = field(default_factory=set)
    """Claimants whose nomination does not hold any more."""
    hopeless: set[tuple[Request, str, str]] = field(default_factory=set)
    """Requests of tier and tenant that found no victims: the next of a kind need not look."""
    _leaving_at: dict[str, list[Take]] = field(default_factory=dict)
    missing: dict[Request, tuple[bool, str]] = field(default_factory=dict)
    """What was said to a request that found no room, for the next of its kind."""

    def __post_init__(self) -> None:
        self.leaving.update(self.board.pausing)
        for key in self.leaving:
            self._note_leaving(key)

    def leave(self, session: Session) -> None:
        """Count a session as leaving, so that its room and its tenant's share come free."""
        if session.key not in self.leaving:
            self.leaving.add(session.key)
            self._note_leaving(session.key)
        self.board.dismiss(session)

    def look_again(self, when: float) -> None:
        """The plan may differ from this time on."""
        if when > self.state.now:
            self.deadlines.append(when)

    def leaving_from(self, node: str) -> list[Take]:
        """What becomes free on a node by itself."""
        return self._leaving_at.get(node, [])

    def leaving_nodes(self) -> list[str]:
        """Nodes on which something becomes free."""
        return list(self._leaving_at)

    def _note_leaving(self, key: str) -> None:
        what = self.board.held.get(key)
        if what is not None:
            self._leaving_at.setdefault(what.node, []).append(what)

    def accepts(self, session: Session) -> Callable[[str], bool] | None:
        """Nodes that the session may go to now: not those that refused it lately."""
        avoid = session.avoid
        return None if not avoid else lambda node: node not in avoid

    def free_place(self, session: Session) -> Place | None:
        """The best free place, in the kernel class of its snapshot if there is one."""
        request = session.request
        placer = self.board.placer
        accept = self.accepts(session)
        wish = session.kernel_class
        for shards in range(request.shards, max(request.max_shards, request.shards) + 1):
            if wish:
                alike = self._same_class(wish, accept)
                place = placer.find(request, shards, accept=alike)
                if place is not None:
                    return place
            place = placer.find(request, shards, accept=accept)
            if place is not None:
                return place
        return None

    def exact_at(self, session: Session, place: Place) -> bool:
        """Whether the place computes in the class of the session's snapshot, as far as known."""
        node = self.board.placer.rooms[place.node].node
        used = {use.ordinal for use in place.gpus}
        classes = {gpu.kernel_class for gpu in node.gpus if gpu.ordinal in used}
        return not session.kernel_class or classes <= {session.kernel_class, ""}

    def _same_class(self, wish: str, accept: Callable[[str], bool] | None) -> Callable[[str], bool]:
        rooms = self.board.placer.rooms

        def alike(name: str) -> bool:
            if accept is not None and not accept(name):
                return False
            return all(gpu.kernel_class in (wish, "") for gpu in rooms[name].node.gpus)

        return alike
