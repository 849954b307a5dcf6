"""Whom to pause so that a claimant fits: simulate, remove all candidates, reprieve the most
important.

Works on copies of rooms. On one GPU each GPU is its own candidate, so that the cheapest of a
node is found; over several GPUs the node is. What is leaving anyway counts as free, and costs
nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest

from sojourn_operator.plan.index import tie_of
from sojourn_operator.plan.need import Need
from sojourn_operator.plan.placer import Placer
from sojourn_operator.plan.room import Room
from sojourn_operator.plan.state import Place, Session
from sojourn_operator.plan.take import Take


@dataclass(frozen=True, slots=True)
class Candidate:
    """A session that may be paused. `borrows`: its tenant keeps its guarantee without it.

    `budgets` are those that cover it, with how many more disruptions each allows.
    """

    session: Session
    what: Take
    priority: int
    over: int
    borrows: bool
    violates: bool
    budgets: tuple[tuple[str, int], ...]
    order: tuple[float | str, ...]
    """Smallest for whoever should go first."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A place that becomes free when the victims are gone; `options` is how many places were
    compared.
    """

    place: Place
    victims: tuple[Session, ...]
    options: int


Cost = tuple[float, ...]


def find_claims(
    placer: Placer,
    needs: Iterable[tuple[Room, Need]],
    *,
    leaving: Callable[[str], list[Take]],
    candidates: Callable[[str], list[Candidate]],
    count: int,
    options: int = 0,
) -> list[Claim]:
    """The `count` cheapest claims over all given nodes; none if pausing everyone is not enough."""
    found: list[tuple[Cost, Place, tuple[Candidate, ...]]] = []
    for room, need in needs:
        name = room.node.name
        going, pausable = leaving(name), candidates(name)
        if going or pausable:
            found += [
                (_cost(chosen, place), place, chosen)
                for place, chosen in claims_on(placer, room, need, going=going, pausable=pausable)
            ]
    return [
        Claim(
            place=place,
            victims=tuple(one.session for one in chosen),
            options=max(options, len(found)),
        )
        for _, place, chosen in nsmallest(count, found, key=lambda one: one[0])
    ]


def _cost(chosen: Sequence[Candidate], place: Place) -> Cost:
    ordinal = place.gpus[0].ordinal if place.gpus else 0
    return cost_of(chosen, node=place.node, ordinal=ordinal)


def claims_on(
    placer: Placer, room: Room, need: Need, *, going: list[Take], pausable: list[Candidate]
) -> Iterator[tuple[Place, tuple[Candidate, ...]]]:
    """Every way to make room on one node: a place and who has to go for it."""
    emptied = room.copy()
    for what in going:
        emptied.give(what)
    for one in pausable:
        emptied.give(one.what)
    if placer.policy.choose(emptied, need) is None:
        return
    for narrowed in narrowings(emptied, need):
        trial = emptied.copy()
        chosen = reprieve(placer, trial, narrowed, pausable)
        place = placer.place_on(trial, narrowed)
        if place is not None:
            yield place, chosen


def narrowings(room: Room, need: Need) -> Iterator[Need]:
    """The need on each GPU alone that could serve it, or as it is when it wants several."""
    gpu = need.gpu
    if gpu.shards != 1:
        yield need
        return
    for index, parts in enumerate(gpu.parts):
        if 0 <= parts <= room.parts[index] and gpu.slices <= room.slices[index]:
            only = tuple(p if i == index else -1 for i, p in enumerate(gpu.parts))
            yield replace(need, gpu=replace(gpu, parts=only))


def reprieve(
    placer: Placer, room: Room, need: Need, pausable: list[Candidate]
) -> tuple[Candidate, ...]:
    """Put back the most important first, as long as the need fits; returns who stays out."""
    out: list[Candidate] = []
    for one in sorted(pausable, key=lambda one: one.order, reverse=True):
        room.take(one.what)
        if placer.policy.choose(room, need) is None:
            room.give(one.what)
            out.append(one)
    return tuple(reversed(out))


def cost_of(chosen: Sequence[Candidate], *, node: str, ordinal: int) -> Cost:
    """Guaranteed use last; then fewest disruptions beyond budgets, lowest tier, most over
    guarantee, fewest bytes, fewest sessions, youngest.
    """
    if not chosen:
        return (-1.0, tie_of(node), ordinal)
    return (
        any(not one.borrows for one in chosen),
        beyond_budgets(chosen),
        max(one.priority for one in chosen),
        max(-one.over for one in chosen),
        sum(one.session.to_save for one in chosen),
        len(chosen),
        -max(one.session.since for one in chosen),
        tie_of(node),
        ordinal,
    )


def beyond_budgets(chosen: Sequence[Candidate]) -> int:
    """How many disruptions their budgets do not allow, if they all go."""
    used: dict[tuple[str, int], int] = {}
    for one in chosen:
        for budget in one.budgets:
            used[budget] = used.get(budget, 0) + 1
    return sum(max(count - max(left, 0), 0) for (_, left), count in used.items())


def candidate(
    session: Session,
    what: Take,
    *,
    priority: int,
    over: int,
    borrows: bool,
    budgets: Mapping[str, int],
) -> Candidate:
    """A session as a candidate; `over` is its tenant's use above its guarantee."""
    known = tuple((name, budgets[name]) for name in session.budgets if name in budgets)
    violates = any(left <= 0 for _, left in known)
    return Candidate(
        session,
        what,
        priority,
        over,
        borrows=borrows,
        violates=violates,
        budgets=known,
        order=(
            not borrows,
            violates,
            priority,
            -over,
            session.to_save,
            -session.since,
            session.key,
        ),
    )
