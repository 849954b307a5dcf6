"""What a request lacks for a place: room, nodes that are left out for now, or any such GPU.

Says so of those that wait, and of those that run and shall ask for something else when they start
next. Decides nothing.
"""

from collections.abc import Collection
from dataclasses import replace

from sojourn_operator.plan.actions import NO_GPU, NO_ROOM, NODES_OUT
from sojourn_operator.plan.board import Board
from sojourn_operator.plan.lacking import able_on
from sojourn_operator.plan.state import Request, Session
from sojourn_operator.plan.words import no_room


def lacking(board: Board, request: Request, *, avoid: Collection[str] = ()) -> tuple[str, str]:
    """The reason to wait and its sentence: `NO_GPU` only where no number of shards would do."""
    found: list[tuple[str, str]] = []
    for shards in range(request.shards, max(request.max_shards, request.shards) + 1):
        tried = replace(request, shards=shards)
        missing = board.lacks.missing(tried, avoid=avoid)
        if missing.able >= max(shards, 1):
            return NO_ROOM, no_room(tried, missing)
        reason = NODES_OUT if missing.out else NO_GPU
        found.append((reason, no_room(tried, missing)))
    return next((one for one in found if one[0] == NODES_OUT), found[0])


def never(board: Board, session: Session) -> str:
    """Why a session that runs could not start again as it is written now; empty if it could."""
    place, wish = session.place, session.wish
    if place is None or wish is None:
        return ""
    room = board.placer.rooms.get(place.node)
    if room is not None:
        need = board.placer.index.need(room, wish, len(place.gpus))
        if need is not None and able_on(room, need) >= len(place.gpus):
            return ""
    reason, text = lacking(board, wish)
    return text if reason == NO_GPU else ""
