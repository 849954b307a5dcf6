"""What a request that finds no room lacks, over all nodes, in numbers.

Kept up by differences: only nodes that changed since a request was last asked about are looked
at again. Says what is missing; who has to leave for it is not decided here.
"""

from collections import Counter, OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from sojourn_operator.plan.index import Index
from sojourn_operator.plan.need import Need, gpu_filter, node_refusal
from sojourn_operator.plan.room import Room
from sojourn_operator.plan.state import Request
from sojourn_operator.plan.take import WHOLE
from sojourn_operator.plan.words import Missing, beside, node_state

MOST_KINDS: Final = 64
"""Kinds of request that are followed; of more, those asked about longest ago are made anew."""


@dataclass(frozen=True, slots=True)
class Standing:
    """One node: why it is left out (empty: it is not), and how many of its GPUs match and could
    serve the request when empty; `able_out` of those that could if the node were back.
    """

    refusal: str
    count: int = 0
    matching: int = 0
    able: int = 0
    able_out: int = 0


@dataclass(slots=True)
class Lack:
    """One request. `free` holds for each node that may serve it the slices (up to those wanted)
    and the time of its most free GPU, negated so that the least is the best, and the GPU's index.
    """

    seen: int = -1
    nodes: dict[str, Standing] = field(default_factory=dict)
    free: dict[str, tuple[int, int, str, int]] = field(default_factory=dict)
    short: set[str] = field(default_factory=set)
    """Nodes that lack CPU, memory or pods."""
    refusals: Counter[str] = field(default_factory=Counter)
    count: int = 0
    matching: int = 0
    able: int = 0
    able_out: int = 0
    told: Missing | None = None
    """What was said to a session that avoids no node; until anything changes."""

    def put(self, name: str, standing: Standing | None) -> None:
        """Replace what is known of a node; None if it is gone."""
        old = self.nodes.pop(name, None)
        if old is not None:
            self._add(old, -1)
        if standing is not None:
            self.nodes[name] = standing
            self._add(standing, 1)

    def _add(self, one: Standing, sign: int) -> None:
        self.count += sign * one.count
        self.matching += sign * one.matching
        self.able += sign * one.able
        self.able_out += sign * one.able_out
        if one.refusal:
            self.refusals[one.refusal] += sign


class Lacks:
    """Lacks by request, over the rooms of an index."""

    def __init__(self, index: Index, rooms: dict[str, Room]) -> None:
        self._index = index
        self._rooms = rooms
        self._of: OrderedDict[Request, Lack] = OrderedDict()

    def of(self, request: Request) -> Lack:
        """What is known of a request, brought up to date."""
        lack = self._of.get(request) or Lack()
        changed = self._index.since(lack.seen)
        if changed is None:
            lack, changed = Lack(), set(self._rooms)
        lack.seen = self._index.now
        self._of[request] = lack
        self._of.move_to_end(request)
        if len(self._of) > MOST_KINDS:
            self._of.popitem(last=False)
        need_on = self._index.needs(request, request.shards)
        if changed:
            lack.told = None
        for name in changed:
            room = self._rooms.get(name)
            lack.free.pop(name, None)
            lack.short.discard(name)
            if room is None:
                lack.put(name, None)
                continue
            if is_short(room, request):
                lack.short.add(name)
            need = need_on(room)
            if need is None or not room.usable:
                refusal = node_state(room) or node_refusal(room.node, request)
                lack.put(
                    name, Standing(refusal, able_out=0 if need is None else able_on(room, need))
                )
            else:
                lack.put(name, _look(lack, room, need))
        return lack

    def missing(self, request: Request, *, avoid: Collection[str] = ()) -> Missing:
        """What the request lacks; nodes in `avoid` refused its session lately."""
        lack = self.of(request)
        if lack.told is not None and not avoid:
            return lack.told
        left = lack.free
        if avoid:
            left = {name: best for name, best in left.items() if name not in avoid}
        best = min(left.values(), default=None)
        refusals = +lack.refusals
        refused = len(lack.free) - len(left)
        if refused:
            refusals["refused it lately"] = refused
        slices, share, where, why = 0, 0, "", ""
        if best is not None:
            room, index = self._rooms[best[2]], best[3]
            slices, share, where = free_at(room, index, request)
            why = beside(room, request) if is_short(room, request) else ""
        found = Missing(
            where=where,
            slices=slices,
            share=share,
            beside=why,
            count=lack.count,
            matching=lack.matching,
            able=lack.able,
            refusals=refusals,
            out=_out(lack, max(request.shards, 1)),
            most=(0, 0) if lack.able else self._most(lack, request),
        )
        if not avoid:
            lack.told = found
        return found

    def _most(self, lack: Lack, request: Request) -> tuple[int, int]:
        """Slices and share of the largest GPUs that match, empty."""
        allowed, fraction = gpu_filter(request), request.decode_fraction
        gpus = [
            gpu
            for name, one in lack.nodes.items()
            if one.matching
            for gpu in self._rooms[name].node.gpus
            if gpu.healthy and allowed(gpu)
        ]
        shares = [gpu.speed.capacity(fraction) for gpu in gpus if gpu.speed is not None]
        return max((gpu.slices for gpu in gpus), default=0), max(shares, default=0)


def _out(lack: Lack, shards: int) -> dict[str, str]:
    """Nodes that would have GPUs enough if they were back, where those in service have not."""
    if lack.able >= shards or lack.able + lack.able_out < shards:
        return {}
    return {name: one.refusal for name, one in lack.nodes.items() if one.able_out}


def is_short(room: Room, request: Request) -> bool:
    """Whether the node lacks what a request takes beside its GPUs."""
    return room.cpu < request.cpu_milli or room.memory < request.memory_bytes or room.pods < 1


def _look(lack: Lack, room: Room, need: Need) -> Standing:
    """One node's standing; notes its most free GPU."""
    slices, gpus, name = need.gpu.slices, room.node.gpus, room.node.name
    matching = 0
    best: tuple[int, int, str, int] | None = None
    for index, parts in enumerate(need.gpu.parts):
        if parts < 0:
            continue
        matching += 1
        free = max(room.slices[index], 0)
        rank = (-min(free, slices), -(room.parts[index] if parts else free), name, index)
        if best is None or rank < best:
            best = rank
    if best is not None:
        lack.free[name] = best
    return Standing("", len(gpus), matching, able_on(room, need))


def able_on(room: Room, need: Need) -> int:
    """How many of a node's GPUs could serve the request if they were empty."""
    return sum(
        0 <= parts <= WHOLE and gpu.slices >= need.gpu.slices
        for parts, gpu in zip(need.gpu.parts, room.node.gpus, strict=True)
    )


def free_at(room: Room, index: int, request: Request) -> tuple[int, int, str]:
    """Free slices and share of one GPU, and its name."""
    gpu = room.node.gpus[index]
    capacity = 0 if gpu.speed is None else gpu.speed.capacity(request.decode_fraction)
    share = max(room.parts[index], 0) * capacity // WHOLE
    return max(room.slices[index], 0), share, f"{room.node.name} gpu-{gpu.ordinal}"
