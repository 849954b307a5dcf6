"""The cheapest GPUs to make room on for a claimant of one GPU, without simulating every node.

Tiers are added from the lowest up, and the first that give any GPU hold the best: whoever is
more important would be reprieved there. Numbers only; what is found here is simulated by
`victims` after.
"""

from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sojourn_operator.plan.need import Need
from sojourn_operator.plan.room import Room
from sojourn_operator.plan.roster import Roster, Spot
from sojourn_operator.plan.take import WHOLE, Take
from sojourn_operator.plan.victims import Candidate, Cost, cost_of

Load = Mapping[str, tuple[int, int]]
NOBODY: Load = {}


KEPT: Final = 8
"""So many of the cheapest are found exactly; a GPU that cannot be one of them is only counted."""


@dataclass(frozen=True, slots=True)
class Search:
    """What a claimant may look at: `need` None for nodes left out, `who` None for protected.

    `least` is what a session costs at least (priority, use above guarantee, bytes), None where
    that takes as long as the cost itself.
    """

    roster: Roster
    rooms: Mapping[str, Room]
    need: Callable[[Room], Need | None]
    going: Callable[[str], Sequence[Take]]
    who: Callable[[str], Candidate | None]
    least: Callable[[str], tuple[float, float, float]] | None


@dataclass(slots=True)
class Offers:
    """The cheapest GPUs found, cheapest first, and how many could be freed in all."""

    best: list[tuple[Cost, Spot]] = field(default_factory=list)
    count: int = 0

    def add(self, cost: Cost, spot: Spot) -> None:
        """Keep it if it is among the cheapest."""
        self.count += 1
        insort(self.best, (cost, spot))
        del self.best[KEPT:]

    def beyond(self, least: Iterable[tuple[float, float, float]]) -> bool:
        """Whether sessions that cost at least this cannot be among the cheapest."""
        if len(self.best) < KEPT:
            return False
        bound = tuple(map(min, zip(*least, strict=True)))
        # Nothing guaranteed and no budget violated is the least that stands before these figures.
        return (False, 0, *bound) > self.best[-1][0]


def offers(search: Search, tiers: Sequence[str]) -> Iterator[Offers]:
    """For each tier from the lowest up: the GPUs that its sessions and lower ones can free."""
    for count, added in enumerate(tiers, start=1):
        maps = [search.roster.of[tier] for tier in tiers[:count]]
        found = Offers()
        for spot in search.roster.of[added]:
            loads = [loads.get(spot, NOBODY) for loads in maps]
            if search.least is not None and found.beyond(
                search.least(key) for load in loads for key in load
            ):
                found.count += _can_be_freed(search, spot, loads)
            elif (cost := _cost_at(search, spot, loads)) is not None:
                found.add(cost, spot)
        yield found


def _can_be_freed(search: Search, spot: Spot, loads: list[Load]) -> bool:
    """Whether the sessions there are large enough, all together."""
    room = search.rooms[spot[0]]
    need = search.need(room)
    if need is None or need.gpu.parts[spot[1]] < 0:
        return False
    held = sum(slices for load in loads for slices, _ in load.values())
    return room.slices[spot[1]] + held >= need.gpu.slices


def _cost_at(search: Search, spot: Spot, loads: list[Load]) -> Cost | None:
    """What room on one GPU costs: all that may go, less the most important that fit again."""
    room, index = search.rooms[spot[0]], spot[1]
    need = search.need(room)
    if need is None or not 0 <= (parts := need.gpu.parts[index]) <= WHOLE:
        return None
    slices, time = room.slices[index] - need.gpu.slices, room.parts[index] - parts
    for what in search.going(spot[0]):
        for other, freed, freed_time in what.gpus:
            if other == index:
                slices, time = slices + freed, time + freed_time
    if slices + sum(s for load in loads for s, _ in load.values()) < 0:
        return None
    able = [
        (one, held)
        for load in loads
        for key, held in load.items()
        if (one := search.who(key)) is not None
    ]
    slices += sum(held[0] for _, held in able)
    time += sum(held[1] for _, held in able)
    if slices < 0 or time < 0:
        return None
    able.sort(key=lambda item: item[0].order, reverse=True)
    chosen: list[Candidate] = []
    for one, held in able:
        if held[0] <= slices and held[1] <= time:
            slices, time = slices - held[0], time - held[1]
        else:
            chosen.append(one)
    return cost_of(chosen, node=spot[0], ordinal=room.node.gpus[index].ordinal)
