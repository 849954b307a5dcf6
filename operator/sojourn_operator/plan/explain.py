"""Why a session is not on each node and GPU: one line for each, with numbers.

Reads a state as the plan does; decides nothing.
"""

from dataclasses import dataclass

from sojourn_api.quantity import size

from sojourn_operator.plan.actions import Action
from sojourn_operator.plan.board import HOLDING, Board
from sojourn_operator.plan.need import Need, node_refusal
from sojourn_operator.plan.placer import Placer
from sojourn_operator.plan.planner import Planner
from sojourn_operator.plan.rank import may_pause
from sojourn_operator.plan.room import Room
from sojourn_operator.plan.state import Gpu, Session, State
from sojourn_operator.plan.take import WHOLE
from sojourn_operator.plan.words import asked, at, counted, node_state


@dataclass(frozen=True, slots=True)
class Line:
    """One place and why not; an empty `why` means that the session fits there.

    `here`: what it holds now is there.
    """

    where: str
    why: str
    here: bool = False


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a session asks for, what the plan does with it now, and every place looked at."""

    session: str
    asks: str
    now: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class _Sight:
    state: State
    board: Board
    session: Session


def explain(state: State, key: str) -> Explanation:
    """Explain one session of the state; raises KeyError for one that is not in it.

    What the session holds itself is in nobody's way: each place is judged as if it were given back.
    """
    session = state.sessions[key]
    board = Board(Placer())
    board.update(state)
    if (held := board.held.get(key)) is not None:
        board.placer.give(held)
    actions = [one for one in Planner().plan(state).actions if one.session == key]
    sight = _Sight(state, board, session)
    lines: list[Line] = []
    for name in sorted(board.placer.rooms):
        lines += _node(sight, board.placer.rooms[name])
    return Explanation(key, asked(session.request), _now(session, actions), tuple(lines))


def _now(session: Session, actions: list[Action]) -> str:
    if actions:
        return "; ".join(f"{one.reason}: {one.message}" for one in actions)
    where = f" on {at(session.place)}" if session.place is not None else ""
    return f"stays {session.phase}{where}"


def _node(sight: _Sight, room: Room) -> list[Line]:
    session = sight.session
    name, request = room.node.name, session.request
    problem = node_state(room) or node_refusal(room.node, request)
    if not problem and name in session.avoid:
        problem = "refused the session lately"
    need = sight.board.placer.index.need(room, request, request.shards)
    held = session.place if session.phase in HOLDING else None
    used = () if held is None or held.node != name else tuple(use.ordinal for use in held.gpus)
    if problem or need is None:
        return [Line(name, problem, here=bool(used))]
    if room.cpu < need.cpu_milli:
        problem = f"{max(room.cpu, 0)} mCPU free, needs {need.cpu_milli}"
    elif room.memory < need.memory_bytes:
        problem = f"{size(max(room.memory, 0))} of memory free, needs {size(need.memory_bytes)}"
    elif room.pods < 1:
        problem = "no more pods"
    if problem:
        return [Line(name, problem, here=bool(used))]
    return [
        Line(f"{name} gpu-{gpu.ordinal}", _gpu(sight, room, need, index), here=gpu.ordinal in used)
        for index, gpu in enumerate(room.node.gpus)
    ]


def _gpu(sight: _Sight, room: Room, need: Need, index: int) -> str:
    gpu, parts = room.node.gpus[index], need.gpu.parts[index]
    if never := _never(gpu, need, parts):
        return never
    lacks = []
    if need.gpu.slices > room.slices[index]:
        lacks.append(
            f"{counted(max(room.slices[index], 0), 'slice')} free, needs {need.gpu.slices}"
        )
    if parts > room.parts[index] and gpu.speed is not None:
        capacity = gpu.speed.capacity(sight.session.request.decode_fraction)
        free = max(room.parts[index], 0) * capacity // WHOLE
        lacks.append(f"share of {free} free, needs {need.gpu.share}")
    if not lacks:
        return ""
    return ", ".join(lacks) + _in_the_way(sight, room.node.name, index)


def _never(gpu: Gpu, need: Need, parts: int) -> str:
    """Why the GPU could not serve even when empty, empty if it could."""
    if not gpu.healthy:
        return "unhealthy"
    if gpu.mig:
        return "in MIG mode: it has no slices, and sessions are not placed on MIG instances"
    if need.gpu.share and gpu.speed is None:
        return f"the speed of {gpu.model} is unknown: set gpuSpeeds of the operator"
    if parts < 0:
        return f"model {gpu.model} is not wished for"
    if parts > WHOLE or need.gpu.slices > gpu.slices:
        return f"too small even when empty: {gpu.model} with {counted(gpu.slices, 'slice')}"
    return ""


def _in_the_way(sight: _Sight, node: str, index: int) -> str:
    """Who holds the GPU, and whether the session may send them away."""
    state, session = sight.state, sight.session
    told = []
    for key, what in sorted(sight.board.holders.get(node, {}).items()):
        if key == session.key or all(index != used for used, _, _ in what.gpus):
            continue
        verdict = may_pause(state, session, state.sessions[key])
        if verdict.pausable:
            told.append(f"{key} may be paused")
        elif verdict.after is not None:
            told.append(f"{key} in {verdict.after - state.now:.0f} s")
        else:
            told.append(f"{key} may not be paused")
    return f" ({', '.join(told)})" if told else ""
