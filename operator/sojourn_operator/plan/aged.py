"""Room kept for who has waited too long: where it will fit, so that those who ask for less do not
take what comes free there, piece by piece and for ever.

One session at a time, the first in line: so no more than one place stands idle for it (what batch
schedulers call backfilling around a reservation; Lifka, "The ANL/IBM SP scheduling system", 1995).
"""

from collections.abc import Iterator
from heapq import nsmallest
from typing import Final

from sojourn_operator.plan.need import Need
from sojourn_operator.plan.placer import place_at
from sojourn_operator.plan.rank import has_aged
from sojourn_operator.plan.room import Room
from sojourn_operator.plan.state import Place, Session
from sojourn_operator.plan.take import WHOLE
from sojourn_operator.plan.turn import Turn

LOOKED_AT: Final = 16
"""Nodes: which of them is the best matters less than that a plan over thousands stays quick."""


def keep_room(turn: Turn, session: Session) -> Place | None:
    """Book the place that lacks the least, for a session that found no room and has waited so long;
    None if it has not, or if an earlier one's is kept.
    """
    if turn.kept is not None or not has_aged(turn.state, session):
        return None
    best = min(_places(turn, session), key=lambda one: one[:3], default=None)
    if best is None:
        return None
    _, name, gpus, need = best
    place = place_at(turn.board.placer.rooms[name].node, gpus, need)
    turn.board.book(session, place)
    turn.kept = (session, place)
    return place


def _places(turn: Turn, session: Session) -> Iterator[tuple[int, str, tuple[int, ...], Need]]:
    """Of nodes that could serve it when empty, those with the most free GPUs: what is missing, and
    on which GPUs.
    """
    request, placer = session.request, turn.board.placer
    need_on = placer.index.needs(request, request.shards)
    lack = turn.board.lacks.of(request)
    count = max(request.shards, 1)
    able = (
        best
        for name, best in lack.free.items()
        if lack.nodes[name].able >= count and name not in session.avoid
    )
    for _, _, name, _ in nsmallest(LOOKED_AT, able):
        room = placer.rooms[name]
        need, node = need_on(room), room.node
        if need is None or node.cpu_milli < request.cpu_milli:
            continue
        if node.memory_bytes < request.memory_bytes:
            continue
        for group in room.groups:
            found = _least(room, need, group)
            if found is not None:
                missing, gpus = found
                yield missing, name, gpus, need


def _least(room: Room, need: Need, group: tuple[int, ...]) -> tuple[int, tuple[int, ...]] | None:
    """The linked GPUs that lack the least, in thousandths of a GPU; None if they would not do."""
    able = [
        (_missing(room, need, index), index)
        for index in group
        if 0 <= need.gpu.parts[index] <= WHOLE
        and room.node.gpus[index].slices >= max(need.gpu.slices, 1)
    ]
    count = max(need.gpu.shards, 1)
    chosen = sorted(able)[:count]
    if len(chosen) < count:
        return None
    return sum(missing for missing, _ in chosen), tuple(sorted(index for _, index in chosen))


def _missing(room: Room, need: Need, index: int) -> int:
    slices = (need.gpu.slices - room.slices[index]) * 1000 // room.node.gpus[index].slices
    parts = (need.gpu.parts[index] - room.parts[index]) * 1000 // WHOLE
    return max(slices, parts, 0)
