"""What a request lacks for a place: room, nodes that are left out for now, or any such GPU.

Says so of those that wait, and of those that run and shall ask for something else when they start
next. Decides nothing.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from sojourn_operator.plan.actions import NO_GPU, NO_ROOM, NODES_OUT
from sojourn_operator.plan.board import Board
from sojourn_operator.plan.lacking import able_on
from sojourn_operator.plan.state import Place, Request, Session
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


def never(board: Board, sessions: Mapping[str, Session]) -> dict[str, str]:
    """Which of those that run could not start again as they are written now, and why."""
    found: dict[str, str] = {}
    known: dict[Request, tuple[str, str]] = {}
    for key in sorted(board.wishing):
        place, wish = sessions[key].place, sessions[key].wish
        if place is None or wish is None or _would_do(board, place, wish):
            continue
        if wish not in known:
            known[wish] = lacking(board, wish)
        reason, text = known[wish]
        if reason == NO_GPU:
            found[key] = text
    return found


def _would_do(board: Board, place: Place, wish: Request) -> bool:
    """Whether the node of a place could serve the wish on as many GPUs, if it were empty."""
    room = board.placer.rooms.get(place.node)
    if room is None:
        return False
    need = board.placer.index.need(room, wish, len(place.gpus))
    return need is not None and able_on(room, need) >= len(place.gpus)
