"""The sentences of the plan: what a session asks for, what is free, why someone is paused.

Text only. Numbers come with their unit, places as `node-b gpu-1`.
"""

from collections.abc import Iterable

from sojourn_operator.plan.need import Need, node_refusal
from sojourn_operator.plan.room import Most, Room
from sojourn_operator.plan.state import Place, Request, Session
from sojourn_operator.plan.take import WHOLE


def asked(request: Request) -> str:
    """`12 slices on one GPU and a share of 500`."""
    slices, share = request.on_each(max(request.shards, 1))
    where = "on one GPU" if request.shards <= 1 else f"on each of {request.shards} GPUs"
    text = f"{slices} slice{'' if slices == 1 else 's'} {where}"
    return f"{text} and a share of {share}" if share else text


def at(place: Place) -> str:
    """`node-b gpu-1`, with all GPUs of several shards."""
    return " ".join([place.node, *(f"gpu-{use.ordinal}" for use in place.gpus)])


def size(count: int) -> str:
    """Bytes for people."""
    for unit, width in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= width:
            return f"{count / width:.3g} {unit}"
    return f"{count} bytes"


def paused_for(claimant: Session, victim: Session, *, options: int) -> str:
    """Why this victim; without `options` it was chosen in an earlier plan."""
    others = f"cheapest of {options} candidates, " if options > 1 else ""
    others = "the only candidate, " if options == 1 else others
    return (
        f"paused for {claimant.key}: needs {asked(claimant.request)}; "
        f"{others}{size(victim.save_bytes)} to save"
    )


def moved_for(claimant: Session, victim: Session, home: Place) -> str:
    """Why this one moves, and where to."""
    return (
        f"moved to {at(home)} for {claimant.key}, which needs {asked(claimant.request)}; "
        f"{size(victim.save_bytes)} to save"
    )


def no_room(rooms: Iterable[tuple[Room, Need | None]], request: Request) -> tuple[bool, str]:
    """Whether any GPU could ever serve the request, and in numbers what is missing now.

    Each room comes with the request's need there, None where the node itself is excluded.
    """
    count = matching = able = 0
    most: tuple[tuple[int, int], Room, int] | None = None
    left_out: dict[str, int] = {}
    for room, need in rooms:
        if need is None or not room.usable:
            refusal = node_state(room) or node_refusal(room.node, request)
            left_out[refusal] = left_out.get(refusal, 0) + 1
            continue
        count += len(need.gpu.parts)
        here = room.most.get(need.gpu)
        if here is None:
            here = room.most[need.gpu] = _most_free(room, need)
        rank, index, matches, serves = here
        matching, able = matching + matches, able + serves
        if matches and (most is None or rank > most[0]):
            most = (rank, room, index)
    found = None if most is None else _free_at(most[1], most[2], request)
    return able >= max(request.shards, 1), _sentence(
        request, most=found, count=count, matching=matching, able=able, refusals=left_out
    )


def _most_free(room: Room, need: Need) -> Most:
    """The GPU of a node that comes closest to what is needed."""
    slices, gpus = need.gpu.slices, room.node.gpus
    best, at, matching, able = (-1, -1), -1, 0, 0
    for index, parts in enumerate(need.gpu.parts):
        if parts < 0:
            continue
        matching += 1
        able += parts <= WHOLE and gpus[index].slices >= slices
        free = max(room.slices[index], 0)
        rank = (min(free, slices), room.parts[index] if parts else free)
        if rank > best:
            best, at = rank, index
    return best, at, matching, able


def _free_at(room: Room, index: int, request: Request) -> tuple[int, int, str]:
    """Free slices and share of one GPU, and its name."""
    gpu = room.node.gpus[index]
    capacity = 0 if gpu.speed is None else gpu.speed.capacity(request.decode_fraction)
    share = max(room.parts[index], 0) * capacity // WHOLE
    return max(room.slices[index], 0), share, f"{room.node.name} gpu-{gpu.ordinal}"


def node_state(room: Room) -> str:
    """Why nothing may start on a node now, empty if it may."""
    node = room.node
    if not node.ready:
        return "not ready"
    if node.draining:
        return "draining"
    return "" if node.schedulable else "cordoned"


def _sentence(
    request: Request,
    *,
    most: tuple[int, int, str] | None,
    count: int,
    matching: int,
    able: int,
    refusals: dict[str, int],
) -> str:
    slices, share = request.on_each(max(request.shards, 1))
    text = f"needs {asked(request)}; "
    if most is None:
        wished = " or ".join(request.gpu_models)
        text += f"no healthy GPU of model {wished}" if wished else "no healthy GPU"
        text += f" among {count}"
    elif most[0] < slices:
        text += f"the most free is {most[0]} on {most[2]}"
    elif most[1] < share:
        text += f"the most free share is {most[1]}, with {most[0]} slices, on {most[2]}"
    elif request.shards > 1:
        text += f"no node has {request.shards} linked GPUs with that; {matching} GPUs match"
    else:
        text += (
            f"{most[2]} has that, but its node lacks {request.cpu_milli} mCPU or "
            f"{size(request.memory_bytes)} of memory"
        )
    if most is not None and not able:
        text += "; no GPU is large enough even when empty"
    for reason, nodes in sorted(refusals.items()):
        text += f"; {nodes} node{'' if nodes == 1 else 's'} left out ({reason})"
    return text
