"""The sentences of the plan: what a session asks for, what is free, why someone is paused.

Text only. Numbers come with their unit, places as `node-b gpu-1`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sojourn_api.quantity import size

from sojourn_operator.plan.room import Room
from sojourn_operator.plan.state import Place, Request, Session

NAMED: Final = 3
"""So many sessions a sentence names; the rest it counts."""

CORDONED: Final = "cordoned"


def counted(count: int, noun: str) -> str:
    """`1 slice`, `2 slices`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def asked(request: Request) -> str:
    """`12 slices on one GPU and a share of 500`."""
    slices, share = request.on_each(max(request.shards, 1))
    where = "on one GPU" if request.shards <= 1 else f"on each of {request.shards} GPUs"
    text = f"{counted(slices, 'slice')} {where}"
    return f"{text} and a share of {share}" if share else text


def at(place: Place) -> str:
    """`node-b gpu-1`, with all GPUs of several shards."""
    return " ".join([place.node, *(f"gpu-{use.ordinal}" for use in place.gpus)])


def paused_for(claimant: Session, *, options: int, beside: Sequence[str] = ()) -> str:
    """Why this victim, and who makes the room with it.

    `options` counts the places that were compared; without it the choice is an earlier plan's.
    """
    text = f"paused for {claimant.key}: needs {asked(claimant.request)}"
    if beside:
        text += f", made free with {', '.join(beside[:NAMED])}{_more(len(beside))}"
    if options == 1:
        text += "; no pause as cheap as this makes room elsewhere"
    elif options > 1:
        text += f"; the cheapest of {options} places to make room"
    return text


def to_save(victim: Session) -> str:
    """What its pause has yet to save of its context; empty where no poll has told."""
    if victim.save_bytes is None:
        return ""
    saved, rest = size(victim.saved_bytes), size(victim.save_bytes)
    return f"{rest} of its context are still to be saved, {saved} are saved already"


def moved_for(claimant: Session, home: Place) -> str:
    """Why this one moves, and where to."""
    return f"moved to {at(home)} for {claimant.key}, which needs {asked(claimant.request)}"


@dataclass(frozen=True, slots=True)
class Missing:
    """What a request lacks. `where` is the most free GPU that it might use (empty: there is none),
    with its free `slices` and `share`; `beside` what its node lacks else.

    Of `count` GPUs `matching` may serve it, `able` if they were empty; `refusals` counts nodes.
    `out` are nodes that would have enough of them if they were back, with why they are left out;
    `most` is slices and share of the largest GPUs that match, where none is able.
    """

    where: str
    slices: int
    share: int
    beside: str
    count: int
    matching: int
    able: int
    refusals: Mapping[str, int]
    out: Mapping[str, str]
    most: tuple[int, int]


def node_state(room: Room) -> str:
    """Why nothing may start on a node now, empty if it may."""
    node = room.node
    if not node.ready:
        return "not ready"
    if not node.heard:
        return "its device plugin is gone"
    if node.draining:
        return "draining"
    return "" if node.schedulable else CORDONED


def beside(room: Room, request: Request) -> str:
    """What a node lacks beside its GPUs, in numbers: `has 500 mCPU free and 4000 are needed`."""
    lacks = []
    if room.cpu < request.cpu_milli:
        lacks.append(f"has {max(room.cpu, 0)} mCPU free and {request.cpu_milli} are needed")
    if room.memory < request.memory_bytes:
        free, needed = size(max(room.memory, 0)), size(request.memory_bytes)
        lacks.append(f"has {free} of memory free and {needed} are needed")
    if room.pods < 1:
        lacks.append("takes no more pods")
    return " and ".join(lacks)


def no_room(request: Request, missing: Missing) -> str:
    """One sentence on what a request lacks."""
    slices, share = request.on_each(max(request.shards, 1))
    text = f"needs {asked(request)}; "
    if missing.out:
        return text + _left_out(missing.out)
    if not missing.where:
        wished = " or ".join(request.gpu_models)
        text += f"no healthy GPU of model {wished}" if wished else "no healthy GPU"
        text += f" among {missing.count}"
    elif not missing.able:
        text += _too_small(slices, share, missing.most)
    elif missing.slices < slices:
        text += f"the most free is {missing.slices} on {missing.where}"
    elif missing.share < share:
        text += (
            f"the most free share is {missing.share}, with {counted(missing.slices, 'slice')}, "
            f"on {missing.where}"
        )
    elif missing.beside:
        text += f"{missing.where} has that, but its node {missing.beside}"
    elif request.shards > 1:
        text += f"no node has {request.shards} linked GPUs with that; {missing.matching} GPUs match"
    else:
        text += f"{missing.where} has that and is kept for another"
    for reason, nodes in sorted(missing.refusals.items()):
        text += f"; {counted(nodes, 'node')} left out ({reason})"
    return text


def _too_small(slices: int, share: int, most: tuple[int, int]) -> str:
    """Why no GPU that matches would do even when empty."""
    if slices > most[0]:
        return f"no GPU has {counted(slices, 'slice')} (the most is {most[0]})"
    if share > most[1]:
        return f"no GPU has a share of {share} (the most is {most[1]})"
    return "no GPU has both, even when empty"


def _left_out(out: Mapping[str, str]) -> str:
    """On which nodes the GPUs are that would do, and how those come back."""
    where = ", ".join(f"{name} ({out[name]})" for name in sorted(out)[:NAMED])
    text = f"the GPUs that could serve it are on {where}{_more(len(out))}"
    cordoned = sorted(name for name, state in out.items() if state == CORDONED)
    if cordoned:
        text += f"; kubectl uncordon {' '.join(cordoned[:NAMED])}{_more(len(cordoned))}"
    return text


def _more(count: int) -> str:
    return f" and {count - NAMED} more" if count > NAMED else ""
