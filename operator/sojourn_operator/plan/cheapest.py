"""The cheapest GPUs to make room on for a claimant of one GPU, without simulating every node.

Tiers are added from the lowest up, and the first that give any GPU hold the best: whoever is
more important would be reprieved there. Numbers only; what is found here is simulated by
`victims` after.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sojourn_operator.plan.need import Need
from sojourn_operator.plan.room import Room
from sojourn_operator.plan.roster import Roster, Spot
from sojourn_operator.plan.take import Take
from sojourn_operator.plan.victims import Candidate, Cost, cost_of

Load = Mapping[str, tuple[int, int]]
NOBODY: Load = {}


@dataclass(frozen=True, slots=True)
class Search:
    """What a claimant may look at: `need` None for nodes left out, `who` None for protected."""

    roster: Roster
    rooms: Mapping[str, Room]
    need: Callable[[Room], Need | None]
    going: Callable[[str], Sequence[Take]]
    who: Callable[[str], Candidate | None]


def offers(search: Search, tiers: Sequence[str]) -> Iterator[list[tuple[Cost, Spot]]]:
    """For each tier from the lowest up: the GPUs that its sessions and lower ones can free."""
    for count, added in enumerate(tiers, start=1):
        maps = [search.roster.of[tier] for tier in tiers[:count]]
        found = [
            (cost, spot)
            for spot in search.roster.of[added]
            if (cost := _cost_at(search, spot, [loads.get(spot, NOBODY) for loads in maps]))
        ]
        found.sort()
        yield found


def _cost_at(search: Search, spot: Spot, loads: list[Load]) -> Cost | None:
    """What room on one GPU costs: all that may go, less the most important that fit again."""
    room, index = search.rooms[spot[0]], spot[1]
    need = search.need(room)
    if need is None or (parts := need.gpu.parts[index]) < 0:
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
