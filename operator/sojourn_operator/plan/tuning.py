"""What a mix of requests means for packing on given GPUs: worths, scarcity, balance.

Computed once per mix, not per decision. Everything is a plain table or number for `score`.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from sojourn_api.gpus import same_model

from sojourn_operator.plan.need import gpu_filter, parts_of
from sojourn_operator.plan.prices import GPU, prices, worths
from sojourn_operator.plan.state import Gpu, Mix, Node, Request

GpuKind = tuple[str, int]
"""Model and slices: GPUs of one kind are priced alike."""
ANY_MIX: Final = tuple(left * left / GPU for left in range(GPU + 1))
"""Worth before a mix is known: large remainders count more than in proportion, as in best fit."""
WIDEST: Final = 16
"""GPUs of the largest node that exists; a wider one counts as that."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """Tables for `score`.

    `worth[kind][left]` is in thousandths of a GPU. `price[model]` is demand over supply of those
    who accept few models. `cpu` is the thousandths of a core that go with a thousandth of a GPU,
    and `split[n]` what n free GPUs of one node lose for those who ask for several.
    """

    worth: Mapping[GpuKind, tuple[float, ...]] = field(default_factory=dict)
    price: Mapping[str, float] = field(default_factory=dict)
    cpu: float = 0.0
    split: tuple[float, ...] = (0.0,) * (WIDEST + 1)


def tune(mix: Mix, nodes: Iterable[Node]) -> Tuning:
    """The tuning for a mix on these nodes; without a mix, one that packs by best fit."""
    gpus = [gpu for node in nodes for gpu in node.gpus]
    kinds = {(gpu.model, gpu.slices): gpu for gpu in gpus}
    if not mix.counts:
        return Tuning()
    asked = gpu_demand(mix, kinds)
    return Tuning(
        worth={kind: worth_on(gpu, mix) for kind, gpu in kinds.items()},
        price=scarcity(mix, gpus, asked),
        cpu=cpu_beside(mix, asked),
        split=split_losses(mix, asked),
    )


def size_on(gpu: Gpu, request: Request, shards: int) -> int:
    """Thousandths of this GPU that one shard takes, by slices or time; above 1000 it does not
    fit.
    """
    slices, share = request.on_each(shards)
    parts = parts_of(gpu, share=share, decode_fraction=request.decode_fraction)
    memory = slices * GPU // gpu.slices if gpu.slices else 0
    return max(parts // 1000, memory) if parts >= 0 else GPU + 1


def worth_on(gpu: Gpu, mix: Mix) -> tuple[float, ...]:
    """What remainders of this kind of GPU are worth, by the sizes that the mix has there."""
    sizes: dict[int, float] = defaultdict(float)
    for request, count in mix.counts:
        size = size_on(gpu, request, max(request.shards, 1))
        if request.shards and 0 < size < GPU:
            sizes[size] += count * request.shards
    if not sizes:
        return ANY_MIX
    table = [GPU * worth for worth in worths(prices(sizes).of)]
    return (*table[:GPU], float(GPU))


def gpu_demand(mix: Mix, kinds: Mapping[GpuKind, Gpu]) -> dict[Request, float]:
    """Thousandths of a GPU that each request takes, on average over the kinds that it accepts."""
    asked: dict[Request, float] = {}
    for request, _ in mix.counts:
        allowed = gpu_filter(request)
        shards = max(request.shards, 1)
        sizes = [size_on(gpu, request, shards) for gpu in kinds.values() if allowed(gpu)]
        fitting = [size for size in sizes if size <= GPU] if request.shards else []
        asked[request] = shards * sum(fitting) / len(fitting) if fitting else 0.0
    return asked


def scarcity(mix: Mix, gpus: list[Gpu], asked: Mapping[Request, float]) -> dict[str, float]:
    """Per model, how much of it those would take who accept certain models only, over its supply.

    The mix stands for what would fill the cluster once.
    """
    total = sum(count * asked[request] for request, count in mix.counts)
    supply = Counter(gpu.model for gpu in gpus)
    price: dict[str, float] = dict.fromkeys(supply, 0.0)
    if not total:
        return price
    scale = len(gpus) / total
    for request, count in mix.counts:
        if not request.gpu_models:
            continue
        models = [one for one in supply if any(same_model(one, m) for m in request.gpu_models)]
        reach = sum(supply[model] for model in models)
        for model in models:
            price[model] += scale * count * asked[request] / reach
    return price


def cpu_beside(mix: Mix, asked: Mapping[Request, float]) -> float:
    """Thousandths of a core per thousandth of a GPU, over requests that take GPUs."""
    taking = [(request, count) for request, count in mix.counts if asked[request] > 0]
    gpu = sum(count * asked[request] for request, count in taking)
    return sum(count * request.cpu_milli for request, count in taking) / gpu if gpu else 0.0


def split_losses(mix: Mix, asked: Mapping[Request, float]) -> tuple[float, ...]:
    """For n free GPUs of a node: what is left over by those who ask for several, in thousandths."""
    total = sum(count * asked[request] for request, count in mix.counts)
    weight: dict[int, float] = defaultdict(float)
    for request, count in mix.counts:
        if total and request.shards > 1:
            weight[request.shards] += count * asked[request] / total
    return tuple(
        sum(GPU * part * (free % shards) for shards, part in sorted(weight.items()))
        for free in range(WIDEST + 1)
    )
