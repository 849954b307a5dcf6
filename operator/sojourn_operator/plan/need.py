"""What a request means on one particular node: which GPUs may serve it, and how much of each it
takes.

Depends on the request and on what a node *is* (model, labels, taints), never on what is left of
it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from sojourn_api.gpus import same_model

from sojourn_operator.plan.room import WHOLE, Take
from sojourn_operator.plan.state import Gpu, Node, Place, Request, Session, Taint, Toleration


@dataclass(frozen=True, slots=True)
class Need:
    """`parts[i]` is what one shard takes of the time of the node's i-th GPU, -1 where it may not
    go.
    """

    request: Request
    shards: int
    slices: int
    share: int
    cpu_milli: int
    memory_bytes: int
    parts: tuple[int, ...]


def need_on(node: Node, request: Request, *, shards: int) -> Need | None:
    """The request on this node, None if the node itself is excluded (labels, taints)."""
    if node_refusal(node, request):
        return None
    slices, share = request.on_each(shards) if shards else (0, 0)
    allowed = gpu_filter(request)
    return Need(
        request=request,
        shards=shards,
        slices=slices,
        share=share,
        cpu_milli=request.cpu_milli,
        memory_bytes=request.memory_bytes,
        parts=tuple(
            parts_of(gpu, share=share, decode_fraction=request.decode_fraction)
            if gpu.healthy and allowed(gpu)
            else -1
            for gpu in node.gpus
        ),
    )


def parts_of(gpu: Gpu, *, share: int, decode_fraction: int) -> int:
    """How much of the GPU's time a share is, rounded down so that three thirds fit; -1 if
    unknown.
    """
    if share == 0:
        return 0
    if gpu.speed is None:
        return -1
    return share * WHOLE // gpu.speed.capacity(decode_fraction)


def gpu_filter(request: Request) -> Callable[[Gpu], bool]:
    """Whether a GPU's model is among those wished for."""
    wished = request.gpu_models
    if not wished:
        return lambda _gpu: True
    return lambda gpu: any(same_model(gpu.model, name) for name in wished)


def node_refusal(node: Node, request: Request) -> str:
    """Why the node as such cannot serve the request, empty if it can."""
    for key, value in request.node_selector:
        if node.labels.get(key) != value:
            return f"label {key}={value} is missing"
    for taint in node.taints:
        if taint.effect != "PreferNoSchedule" and not tolerated(taint, request.tolerations):
            return f"taint {taint.key}={taint.value}:{taint.effect} is not tolerated"
    return ""


def tolerated(taint: Taint, tolerations: tuple[Toleration, ...]) -> bool:
    """Whether any toleration covers the taint, by the rules of pods."""
    return any(
        (not one.effect or one.effect == taint.effect)
        and (one.key == taint.key or (not one.key and one.operator == "Exists"))
        and (one.operator == "Exists" or one.value == taint.value)
        for one in tolerations
    )


def take_of(session: Session, node: Node) -> Take:
    """What the session's pod holds on its node, GPUs that have vanished left out."""
    place = session.place
    uses = () if place is None else place.gpus
    return take_at(node, Place(node=node.name, gpus=uses), session.request)


def take_at(node: Node, place: Place, request: Request) -> Take:
    """What a request takes when it stands at a place."""
    index_of = {gpu.ordinal: index for index, gpu in enumerate(node.gpus)}
    held: list[tuple[int, int, int]] = []
    for use in place.gpus:
        index = index_of.get(use.ordinal)
        if index is None:
            continue
        gpu = node.gpus[index]
        parts = parts_of(gpu, share=use.share, decode_fraction=request.decode_fraction)
        held.append((index, use.slices, max(parts, 0)))
    return Take(node.name, tuple(held), request.cpu_milli, request.memory_bytes)
