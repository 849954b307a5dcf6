"""The cheapest GPUs to make room on for a claimant of one GPU, without simulating every node.

Tiers are added from the lowest up, and the first that give any GPU hold the best: whoever is
more important would be reprieved there. Numbers only; what is found here is simulated by
`victims` after.
"""

from bisect import insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sojourn_operator.plan.need import Need
from sojourn_operator.plan.room import Room
from sojourn_operator.plan.roster import Held, Roster, Spot
from sojourn_operator.plan.take import WHOLE, Take
from sojourn_operator.plan.victims import Candidate, Cost, beyond_budgets, cost_of

KEPT: Final = 8
"""So many of the cheapest are found exactly; a GPU that cannot be one of them is only counted."""


@dataclass(frozen=True, slots=True)
class Search:
    """What a claimant may look at: `need` None for nodes left out, `who` None for protected.

    `strict` leaves out GPUs whose victims together go beyond a disruption budget.
    `save` is the bytes that each session has to save, `over` how far the tenant of any session of
    a tier is above its guarantee at most, and `tiers` are priorities: bounds of what GPUs cost.
    """

    roster: Roster
    rooms: Mapping[str, Room]
    need: Callable[[Room], Need | None]
    going: Callable[[str], Sequence[Take]]
    who: Callable[[str], Candidate | None]
    save: Mapping[str, int]
    over: Callable[[str], float]
    tiers: Mapping[str, int]
    strict: bool


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

    def beyond(self, priority: int, over: float, save: int) -> bool:
        """Whether a GPU cannot be among the cheapest whose sessions all have this priority or
        more, are over their guarantee by this or less, and save these bytes or more.
        """
        # Nothing guaranteed and no budget violated is the least that stands before these figures.
        return len(self.best) >= KEPT and (False, 0, priority, -over, save) > self.best[-1][0]


def offers(search: Search, tiers: Sequence[str]) -> Iterator[Offers]:
    """For each tier from the lowest up: the GPUs that its sessions and lower ones can free."""
    for count, added in enumerate(tiers, start=1):
        maps = [(search.tiers[tier], search.roster.of[tier]) for tier in tiers[:count]]
        over = max(map(search.over, tiers[:count]))
        found = Offers()
        for spot in search.roster.of[added]:
            there = [(low, held) for low, spots in maps if (held := spots.get(spot)) is not None]
            least = min([_least(held, search.save) for _, held in there])
            if found.beyond(there[0][0], over, least):
                found.count += _can_be_freed(search, spot, there)
            elif (cost := _cost_at(search, spot, [held for _, held in there])) is not None:
                found.add(cost, spot)
        yield found


def _least(held: Held, save: Mapping[str, int]) -> int:
    """The fewest bytes that any session there has to save."""
    if held.least is None:
        held.least = min([save[key] for key in held])
    return held.least


def _can_be_freed(search: Search, spot: Spot, there: list[tuple[int, Held]]) -> bool:
    """Whether the sessions there are large enough, all together."""
    name, index = spot
    room = search.rooms[name]
    need = search.need(room)
    if need is None or need.gpu.parts[index] < 0:
        return False
    return room.slices[index] + sum([held.slices for _, held in there]) >= need.gpu.slices


def _cost_at(search: Search, spot: Spot, loads: list[Held]) -> Cost | None:
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
    if slices + sum(load.slices for load in loads) < 0:
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
    if search.strict and beyond_budgets(chosen):
        return None
    return cost_of(chosen, node=spot[0], ordinal=room.node.gpus[index].ordinal)
