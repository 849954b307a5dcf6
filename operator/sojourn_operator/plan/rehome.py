"""Moves that let a request in: others go to new homes first, all of them or none.

Works on the ledger and leaves it as it was; who may be moved is the caller's question. Few and
small moves first, as each one is a pause.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sojourn_operator.plan.index import tie_of
from sojourn_operator.plan.need import Need
from sojourn_operator.plan.placer import Placer, place_at
from sojourn_operator.plan.room import Room
from sojourn_operator.plan.state import Place, Request
from sojourn_operator.plan.take import WHOLE, Take

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
    if limit < 1:
        return None
    need_on = placer.index.needs(request, shards)
    options: list[tuple[int, int, int, tuple[int, ...], tuple[Holding, ...], str]] = []
    for name, room in placer.rooms.items():
        need = need_on(room) if room.usable else None
        if need is None or not _could(room, need):
            continue
        for gpus, out in _on_node(room, need, movable(name), limit):
            size = sum(
                (room.node.gpus[i].slices and s) or p for m in out for i, s, p in m.what.gpus
            )
            options.append((len(out), size, tie_of(name), gpus, out, name))
    options.sort(key=lambda one: one[:4])
    for *_, gpus, out, name in options[:TRIALS]:
        room = placer.rooms[name]
        need = need_on(room)
        if need is None:
            continue
        found = _try(placer, place_at(room.node, gpus, need), request, out)
        if found is not None:
            return found
    return None


def _could(room: Room, need: Need) -> bool:
    """Whether the node could serve the need if it were empty, by a look at its numbers."""
    node, gpu = room.node, need.gpu
    if node.cpu_milli < need.cpu_milli or node.memory_bytes < need.memory_bytes:
        return False
    return sum(0 <= parts <= WHOLE for parts in gpu.parts) >= gpu.shards


def _on_node(
    room: Room, need: Need, holdings: Sequence[Holding], limit: int
) -> Iterator[tuple[tuple[int, ...], tuple[Holding, ...]]]:
    """GPUs of one node with those who must leave for them: one way per link group, or per GPU."""
    if not holdings:
        return
    by_gpu: dict[int, list[Holding]] = {}
    for one in holdings:
        for index, _, _ in one.what.gpus:
            by_gpu.setdefault(index, []).append(one)
    shards = need.gpu.shards
    alone = tuple((index,) for index in range(len(room.left)))
    for group in room.groups if shards > 1 else alone if shards else ((),):
        found = _clear(room, need, group, by_gpu, limit)
        if found is None:
            continue
        gpus, out = found
        if _beside(room, need, holdings, out, limit) and out:
            yield gpus, tuple(out.values())


def _clear(
    room: Room,
    need: Need,
    group: tuple[int, ...],
    by_gpu: Mapping[int, Sequence[Holding]],
    limit: int,
) -> tuple[tuple[int, ...], dict[str, Holding]] | None:
    """Clear as many of a group's GPUs as are needed: again and again the one that takes least."""
    out: dict[str, Holding] = {}
    gpus: list[int] = []
    rest = [index for index in group if 0 <= need.gpu.parts[index] <= WHOLE]
    while len(gpus) < need.gpu.shards:
        lacking = need.gpu.shards - len(gpus)
        if len(rest) < lacking:
            return None
        ways = [
            (*_effort(more, lacking), index, more)
            for index in rest
            if (more := _fewest(room, need, index, by_gpu.get(index, ()), out)) is not None
        ]
        if not ways:
            return None
        *_, index, more = min(ways, key=lambda way: way[:4])
        out.update((one.key, one) for one in more)
        if len(out) > limit:
            return None
        gpus.append(index)
        rest.remove(index)
    return tuple(sorted(gpus)), out


def _effort(out: Sequence[Holding], lacking: int) -> tuple[int, int, int]:
    """What moving them counts: few moves, of those equal one that clears more GPUs, then small."""
    freed = min(len(out[0].what.gpus), lacking) if len(out) == 1 else 1
    return len(out), -freed, sum(s + p for one in out for _, s, p in one.what.gpus)


def _fewest(
    room: Room, need: Need, index: int, held: Sequence[Holding], out: Mapping[str, Holding]
) -> tuple[Holding, ...] | None:
    """Whom to move off one GPU beside those in `out`: the smallest that is enough, else the
    largest few; None if all of them are not enough.
    """
    slices = need.gpu.slices - room.slices[index]
    time = need.gpu.parts[index] - room.parts[index]
    stay: list[tuple[int, int, str, Holding]] = []
    for one in held:
        mine = next((s, p) for i, s, p in one.what.gpus if i == index)
        if one.key in out:
            slices, time = slices - mine[0], time - mine[1]
        else:
            stay.append((*mine, one.key, one))
    if slices <= 0 and time <= 0:
        return ()
    stay.sort(key=lambda item: item[:3])
    more: list[Holding] = []
    for freed, freed_time, _, one in stay:
        if freed >= slices and freed_time >= time:
            return (one,)
    for freed, freed_time, _, one in reversed(stay):
        more.append(one)
        slices, time = slices - freed, time - freed_time
        if slices <= 0 and time <= 0:
            return tuple(more)
    return None


def _beside(
    room: Room,
    need: Need,
    holdings: Sequence[Holding],
    out: dict[str, Holding],
    limit: int,
) -> bool:
    """Add to `out` those with most CPU, then memory, until the node has enough beside its GPUs."""
    gone = out.values()
    cpu = need.cpu_milli - room.cpu - sum(one.what.cpu_milli for one in gone)
    memory = need.memory_bytes - room.memory - sum(one.what.memory_bytes for one in gone)
    pods = 1 - room.pods - len(out)
    rest = [one for one in holdings if one.key not in out]
    while (cpu > 0 or memory > 0 or pods > 0) and rest and len(out) < limit:
        one = max(rest, key=lambda one: _relief(one, cpu, memory))
        rest.remove(one)
        out[one.key] = one
        cpu, memory = cpu - one.what.cpu_milli, memory - one.what.memory_bytes
        pods -= 1
    return cpu <= 0 and memory <= 0 and pods <= 0


def _relief(one: Holding, cpu: int, memory: int) -> tuple[float, int, str]:
    """How much of what lacks its leave brings, then how little GPU has to move with it."""
    part = (min(one.what.cpu_milli / cpu, 1.0) if cpu > 0 else 0.0) + (
        min(one.what.memory_bytes / memory, 1.0) if memory > 0 else 0.0
    )
    return part, -sum(s + p for _, s, p in one.what.gpus), one.key


def _try(
    placer: Placer, place: Place, request: Request, moved: tuple[Holding, ...]
) -> LetIn | None:
    """Simulate: everyone out, the request in, a home for each; then undo. Who fits again where
    it was does not move.
    """
    done: list[Take] = [placer.take_at(place, request)]
    for one in moved:
        placer.give(one.what)
    placer.take(done[0])
    homes: list[tuple[Holding, Place]] = []
    stay = 0
    for one in sorted(moved, key=_bulk, reverse=True):
        home = placer.find(one.request, max(len(one.what.gpus), one.request.shards))
        if home is None:
            break
        done.append(placer.take_at(home, one.request))
        placer.take(done[-1])
        if done[-1] == one.what:
            stay += 1
        else:
            homes.append((one, home))
    for what in done:
        placer.give(what)
    for one in moved:
        placer.take(one.what)
    return LetIn(place, tuple(homes)) if len(homes) + stay == len(moved) else None


def _bulk(one: Holding) -> tuple[int, int, str]:
    """The hardest to house first."""
    gpus = one.what.gpus
    return len(gpus), sum(s + p for _, s, p in gpus), one.key
