"""Whom to pause so that a claimant fits: simulate, remove all candidates, reprieve the most
important.

Works on copies of rooms. On one GPU each GPU is its own candidate, so that the cheapest of a
node is found; over several GPUs the node is. What is leaving anyway counts as free, and costs
nothing.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from sojourn_operator.plan.index import tie_of
from sojourn_operator.plan.need import Need
from sojourn_operator.plan.placer import Placer
from sojourn_operator.plan.room import Room
from sojourn_operator.plan.state import Place, Session
from sojourn_operator.plan.take import Take


@dataclass(frozen=True, slots=True)
class Candidate:
    """A session that may be paused. `rank` is smallest for whoever should go first."""

    session: Session
    what: Take
    violates: bool
    rank: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Claim:
    """A place that becomes free when the victims are gone; `options` is how many others there
    were.
    """

    place: Place
    victims: tuple[Session, ...]
    options: int


Cost = tuple[object, ...]


def find_claim(
    placer: Placer,
    needs: Iterator[tuple[Room, Need]],
    *,
    leaving: Callable[[str], list[Take]],
    candidates: Callable[[str], list[Candidate]],
) -> Claim | None:
    """The cheapest claim over all given nodes, None if pausing everyone allowed is not enough."""
    best: tuple[Cost, Place, tuple[Candidate, ...]] | None = None
    options = 0
    for room, need in needs:
        name = room.node.name
        going, pausable = leaving(name), candidates(name)
        if not going and not pausable:
            continue
        for place, chosen in claims_on(placer, room, need, going=going, pausable=pausable):
            options += 1
            cost = cost_of(chosen, name)
            if best is None or cost < best[0]:
                best = (cost, place, chosen)
    if best is None:
        return None
    victims = tuple(one.session for one in best[2])
    return Claim(place=best[1], victims=victims, options=options)


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
    for one in sorted(pausable, key=lambda one: one.rank, reverse=True):
        room.take(one.what)
        if placer.policy.choose(room, need) is None:
            room.give(one.what)
            out.append(one)
    return tuple(reversed(out))


def cost_of(chosen: tuple[Candidate, ...], node: str) -> Cost:
    """Fewest violated budgets, lowest tier, most over guarantee, fewest bytes, fewest, youngest."""
    if not chosen:
        return (0,)
    return (
        sum(one.violates for one in chosen),
        max(one.rank[1] for one in chosen),
        max(one.rank[2] for one in chosen),
        sum(one.session.save_bytes for one in chosen),
        len(chosen),
        -max(one.session.since for one in chosen),
        tie_of(node),
    )


def candidate(
    session: Session, what: Take, *, priority: int, over: int, budgets: Mapping[str, int]
) -> Candidate:
    """A session as a candidate; `over` is its tenant's use above its guarantee."""
    violates = any(budgets.get(name, 1) <= 0 for name in session.budgets)
    rank = (float(violates), priority, -over, session.save_bytes, -session.since)
    return Candidate(session=session, what=what, violates=violates, rank=rank)
