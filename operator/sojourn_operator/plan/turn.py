"""One plan in the making: the state, the ledger, the actions so far, and the times to look again.

Holds what the steps share; decides nothing. The steps run in the order that `planner` gives.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from sojourn_operator.plan.actions import Action
from sojourn_operator.plan.board import HOLDING, Board
from sojourn_operator.plan.state import Place, Request, Session, State
from sojourn_operator.plan.take import Take

Kind = tuple[Request, str, str, bool]
"""Request, tier and tenant of a claimant, and whether it was paused too lately to pause others."""


@dataclass(frozen=True, slots=True)
class SentAway:
    """A victim, its claimant, and how many ways to make room there were.

    `beside` are the others whose leave the same room takes.
    """

    victim: Session
    claimant: Session
    options: int
    reclaimed: bool
    beside: tuple[str, ...]


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
    hopeless: set[Kind] = field(default_factory=set)
    """Kinds that found no victims: the next of a kind need not look."""
    kept: tuple[Session, Place] | None = None
    """Who has waited so long that a place is kept for it while it comes free, and which."""
    told: dict[Kind, tuple[int, str, str]] = field(default_factory=dict)
    """Of those kinds: why the last one waits, and the index's count of changes at that moment."""
    starts: int = 0
    """Sessions that it places or resumes so far."""
    sent_away: list[SentAway] = field(default_factory=list)
    """Victims whose home or pause is decided when all claimants of the band are served."""
    budgets: dict[str, int] = field(default_factory=dict)
    """How many more disruptions each budget allows, less those of this plan."""
    _leaving_at: dict[str, list[Take]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.budgets.update(self.state.budgets)
        self.leaving.update(self.board.pausing)
        for key in self.leaving:
            self._note_leaving(key)

    def leave(self, session: Session) -> None:
        """Count a session as leaving, so that its room and its tenant's share come free."""
        if session.key not in self.leaving:
            self.leaving.add(session.key)
            self._note_leaving(session.key)
            for name in session.budgets:
                if name in self.budgets:
                    self.budgets[name] -= 1
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
        """The best free place, if there is one in the kernel class of its snapshot, fast enough for
        its tier's target, and on the node that it was on last if that costs little.
        """
        request = session.request
        for shards in range(request.shards, max(request.max_shards, request.shards) + 1):
            for accept in self._wishes(session, shards):
                place = self._find(session, shards, accept)
                if place is not None:
                    return place
        return None

    def _wishes(self, session: Session, shards: int) -> Iterator[Callable[[str], bool] | None]:
        """Which nodes to look at first, and then: exact text counts more than a quick one."""
        accept = self.accepts(session)
        alike = self._same_class(session.kernel_class, accept) if session.kernel_class else None
        least = session.request.bandwidth / max(shards, 1) / 1000
        if least and alike is not None:
            yield self._as_fast(least, alike)
        if alike is not None:
            yield alike
        if least:
            yield self._as_fast(least, accept)
        yield accept

    def _as_fast(self, tbps: float, accept: Callable[[str], bool] | None) -> Callable[[str], bool]:
        """Nodes whose GPUs all have this memory bandwidth in TB/s."""
        rooms = self.board.placer.rooms

        def fast(name: str) -> bool:
            if accept is not None and not accept(name):
                return False
            gpus = rooms[name].node.gpus
            return all(gpu.speed is not None and gpu.speed.tbps >= tbps for gpu in gpus)

        return fast

    def _find(
        self, session: Session, shards: int, accept: Callable[[str], bool] | None
    ) -> Place | None:
        placer, last = self.board.placer, session.place
        place = placer.find(session.request, shards, accept=accept)
        if place is None or last is None or last.node == place.node or session.phase in HOLDING:
            return place
        if last.node not in placer.rooms or (accept is not None and not accept(last.node)):
            return place
        return placer.find_near(session.request, shards, near=last.node, than=place)

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
