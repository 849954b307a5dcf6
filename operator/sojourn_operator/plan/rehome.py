"""Moves that let a request in: others go to new homes first, all of them or none.

Works on the ledger and leaves it as it was; who may be moved is the caller's question. Few and
small moves first, as each one is a pause.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from sojourn_operator.plan.need import Need
from sojourn_operator.plan.placer import Placer, place_at
from sojourn_operator.plan.room import Room
from sojourn_operator.plan.state import Place, Request
from sojourn_operator.plan.take import Take

TRIALS: Final = 16
"""Places that are simulated at most, in the order of what would have to move: a guess."""


@dataclass(frozen=True, slots=True)
class Holding:
    """Something movable: whose it is, what it takes, and what it asks for."""

    key: str
    what: Take
    request: Request


@dataclass(frozen=True, slots=True)
class LetIn:
    """Where the request goes once everyone in `moves` has gone to the home named there."""

    place: Place
    moves: tuple[tuple[Holding, Place], ...]


Movable = Callable[[str], Sequence[Holding]]


def let_in(
    placer: Placer, request: Request, *, shards: int, movable: Movable, limit: int
) -> LetIn | None:
    """The cheapest moves (at most `limit`) that make room for the request, None if there are
    none.
    """
    if limit < 1 or not shards:
        return None
    need_on = placer.index.needs(request, shards)
    options: list[tuple[int, int, str, tuple[int, ...], tuple[Holding, ...]]] = []
    for name, room in placer.rooms.items():
        need = need_on(room) if room.usable else None
        if need is None or not any(parts >= 0 for parts in need.gpu.parts):
            continue
        for gpus, moved in _on_node(room, need, movable(name), limit):
            size = sum(
                (room.node.gpus[i].slices and s) or p for m in moved for i, s, p in m.what.gpus
            )
            options.append((len(moved), size, name, gpus, moved))
    options.sort(key=lambda one: one[:4])
    for _, _, name, gpus, moved in options[:TRIALS]:
        room = placer.rooms[name]
        need = need_on(room)
        if need is None:
            continue
        found = _try(placer, place_at(room.node, gpus, need), request, moved)
        if found is not None:
            return found
    return None


def _on_node(
    room: Room, need: Need, holdings: Sequence[Holding], limit: int
) -> Iterator[tuple[tuple[int, ...], tuple[Holding, ...]]]:
    """GPUs of one node that few moves would free: per link group those with least to move."""
    if not holdings:
        return
    by_gpu: dict[int, list[Holding]] = {}
    for one in holdings:
        if len(one.what.gpus) == 1:
            by_gpu.setdefault(one.what.gpus[0][0], []).append(one)
    groups = room.groups if need.gpu.shards > 1 else tuple((i,) for i in range(len(room.left)))
    for group in groups:
        ways = [
            (len(moved), sum(m.what.gpus[0][2] + m.what.gpus[0][1] for m in moved), index, moved)
            for index in group
            if (moved := _fewest(room, need, index, by_gpu.get(index, []), limit)) is not None
        ]
        if len(ways) < need.gpu.shards:
            continue
        ways.sort(key=lambda way: way[:3])
        chosen = ways[: need.gpu.shards]
        out = tuple(one for way in chosen for one in way[3])
        cpu = room.cpu + sum(one.what.cpu_milli for one in out)
        memory = room.memory + sum(one.what.memory_bytes for one in out)
        if 0 < len(out) <= limit and cpu >= need.cpu_milli and memory >= need.memory_bytes:
            yield tuple(sorted(way[2] for way in chosen)), out


def _fewest(
    room: Room, need: Need, index: int, holdings: list[Holding], limit: int
) -> tuple[Holding, ...] | None:
    """Whom to move off one GPU: the smallest one that is enough, else the largest few."""
    parts = need.gpu.parts[index]
    if parts < 0:
        return None
    slices, time = need.gpu.slices - room.slices[index], parts - room.parts[index]
    if slices <= 0 and time <= 0:
        return ()
    if not holdings:
        return None
    ordered = sorted(holdings, key=lambda one: (one.what.gpus[0][1:], one.key))
    for one in ordered:
        if one.what.gpus[0][1] >= slices and one.what.gpus[0][2] >= time:
            return (one,)
    out: list[Holding] = []
    for one in reversed(ordered[-limit:]):
        out.append(one)
        slices, time = slices - one.what.gpus[0][1], time - one.what.gpus[0][2]
        if slices <= 0 and time <= 0:
            return tuple(out)
    return None


def _try(
    placer: Placer, place: Place, request: Request, moved: tuple[Holding, ...]
) -> LetIn | None:
    """Simulate: everyone out, the request in, a home for each; then undo."""
    done: list[Take] = [placer.take_at(place, request)]
    for one in moved:
        placer.give(one.what)
    placer.take(done[0])
    homes: list[tuple[Holding, Place]] = []
    for one in moved:
        home = placer.find(one.request, max(len(one.what.gpus), one.request.shards))
        if home is None:
            break
        homes.append((one, home))
        done.append(placer.take_at(home, one.request))
        placer.take(done[-1])
    for what in done:
        placer.give(what)
    for one in moved:
        placer.take(one.what)
    return LetIn(place, tuple(homes)) if len(homes) == len(moved) else None
