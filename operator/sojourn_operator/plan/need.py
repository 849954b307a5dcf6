"""What a request means on one particular node: which GPUs may serve it, and how much of each it
takes.

Depends on the request and on what a node *is* (model, labels, taints), never on what is left of
it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from sojourn_api.gpus import same_model

from sojourn_operator.plan.state import Gpu, Node, Place, Request, Session, Taint, Toleration
from sojourn_operator.plan.take import WHOLE, Take


@dataclass(frozen=True, slots=True, eq=False)
class GpuNeed:
    """What a request asks of GPUs like those of one node; one object per meaning, so that caches
    hit.

    `parts[i]` is what one shard takes of the time of the i-th GPU, -1 where it may not go, and
    `sizes[i]` the same in thousandths, or what its slices are of the memory, if that is more.
    `reference` is the whole share, which no choice of node changes.
    """

    shards: int
    slices: int
    share: int
    parts: tuple[int, ...]
    sizes: tuple[int, ...]
    reference: int
    spread: bool


@dataclass(frozen=True, slots=True)
class Need:
    """A request on one node."""

    gpu: GpuNeed
    cpu_milli: int
    memory_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Kinds:
    """The GPUs of nodes that are alike, without what makes each unique; one object for all of
    them.
    """

    gpus: tuple[Gpu, ...]


@lru_cache(maxsize=4096)
def _interned(gpus: tuple[Gpu, ...]) -> Kinds:
    return Kinds(gpus)


def kinds_of(node: Node) -> Kinds:
    """What GPUs this node has."""
    return _interned(
        tuple(
            Gpu(0, "", gpu.model, slices=gpu.slices, speed=gpu.speed, healthy=gpu.healthy)
            for gpu in node.gpus
        )
    )


class Needs:
    """Makes needs, one object per meaning."""

    def __init__(self) -> None:
        self._made: dict[tuple[object, ...], GpuNeed] = {}

    def on(self, kinds: Kinds, request: Request, *, shards: int) -> Need:
        """The request on nodes with such GPUs."""
        return Need(
            gpu=self._gpu(request, shards, kinds.gpus),
            cpu_milli=request.cpu_milli,
            memory_bytes=request.memory_bytes,
        )

    def _gpu(self, request: Request, shards: int, gpus: tuple[Gpu, ...]) -> GpuNeed:
        slices, share = request.on_each(shards) if shards else (0, 0)
        allowed = gpu_filter(request)
        fraction = request.decode_fraction
        parts = tuple(
            parts_of(gpu, share=share, decode_fraction=fraction)
            if gpu.healthy and allowed(gpu)
            else -1
            for gpu in gpus
        )
        sizes = tuple(
            max(part // 1000, slices * 1000 // gpu.slices if gpu.slices else 0)
            for part, gpu in zip(parts, gpus, strict=True)
        )
        key = (shards, slices, share, parts, sizes, request.spread)
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = GpuNeed(
                shards, slices, share, parts, sizes, reference=share * shards, spread=request.spread
            )
        return made


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
