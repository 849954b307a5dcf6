"""How full and how fragmented the nodes are, from the ledger: slices, shares, scatter, stranded
room.

Three figures that are never mixed with those of MIG or of an allocator. Nothing here decides.
"""

from dataclasses import dataclass

from sojourn_operator.plan.placer import Placer
from sojourn_operator.plan.room import Room
from sojourn_operator.plan.state import Mix, Request
from sojourn_operator.plan.take import WHOLE


@dataclass(frozen=True, slots=True)
class Fill:
    """Percentages over all healthy GPUs.

    `scatter` is the part of the nodes' free slices that is not on their emptiest GPU, and
    `stranded` the part of free GPU that the mix expects to be of no use (the fragment measure of
    FGD).
    """

    slices: float
    share: float
    scatter: float
    stranded: float


def fill_of(placer: Placer, mix: Mix) -> Fill:
    """The figures of all nodes together."""
    rooms = list(placer.rooms.values())
    total = sum(gpu.slices for room in rooms for gpu in room.node.gpus if gpu.healthy)
    gpus = sum(gpu.healthy for room in rooms for gpu in room.node.gpus)
    free = sum(max(left, 0) for room in rooms for left in room.slices)
    parts = sum(max(left, 0) for room in rooms for left in room.parts)
    beside = sum(_beside(room) for room in rooms)
    lost = sum(fragment_of(room, placer, mix) for room in rooms)
    return Fill(
        slices=_percent(total - free, total),
        share=_percent(gpus * WHOLE - parts, gpus * WHOLE),
        scatter=_percent(beside, free),
        stranded=_percent(lost, sum(room.free for room in rooms)),
    )


def _percent(part: float, whole: float) -> float:
    return 100 * part / whole if whole else 0.0


def _beside(room: Room) -> int:
    left = [max(slices, 0) for slices in room.slices]
    return sum(left) - max(left, default=0)


def fragment_of(room: Room, placer: Placer, mix: Mix) -> float:
    """Expected thousandths of free GPU on a node that a request of the mix cannot use."""
    if not mix.total or not room.free:
        return 0.0
    lost = sum(count * _useless(room, placer, request) for request, count in mix.counts)
    return lost / mix.total


def _useless(room: Room, placer: Placer, request: Request) -> int:
    """All that is free if the request does not fit, else what is free on GPUs too full for it."""
    need = placer.index.need(room, request, request.shards)
    if need is None or not room.usable or not request.shards:
        return room.free
    if placer.policy.choose(room, need) is None:
        return room.free
    return sum(
        left
        for left, parts, time, slices in zip(
            room.left, need.gpu.parts, room.parts, room.slices, strict=True
        )
        if not 0 <= parts <= time or need.gpu.slices > slices
    )
