"""Hands a model's tensors to the kernels as pointers, and keeps alive what they point to."""

from sojourn_runtime.model import native, rope
from sojourn_runtime.model.config import Experts, ModelConfig
from sojourn_runtime.model.layout import Array
from sojourn_runtime.model.packing import PANEL, kind_of
from sojourn_runtime.model.quantization import HEAD
from sojourn_runtime.model.shards.split import Shard, split
from sojourn_runtime.model.weights import Weights


class BoundModel:
    """`struct` is valid while this object lives."""

    def __init__(self, weights: Weights, shard: Shard | None = None) -> None:
        """`shard`: whose part is computed; without one it is all."""
        config, tensors = weights.config, weights.tensors
        self._weights = weights
        self._frequencies = rope.frequencies(config)
        self._layers = (native.LayerStruct * config.layers)()
        for number, layer in enumerate(self._layers):
            for part in native.LAYER_TENSORS:
                tensor = tensors.get(f"{number}.{part}")
                linear = part in native.LINEARS
                value = _linear(tensor) if linear else native.address(tensor)
                setattr(layer, part, value)
            layer.window = config.window(number)
        experts = config.experts or Experts(count=0, used=0, normalised=False)
        self.struct = native.ModelStruct(
            layer_count=config.layers,
            hidden=config.hidden,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            inner=config.inner,
            vocab=config.vocab_size,
            experts=experts.count,
            experts_used=experts.used,
            normalised=experts.normalised,
            shared_inner=experts.shared_inner,
            whole_norms=config.qk_norm_whole,
            epsilon=config.rms_epsilon,
            score_scale=config.score_scale,
            rope_frequencies=native.address(self._frequencies),
            embedding=_linear(tensors["embedding"]),
            head=_linear(weights.linear(HEAD)),
            final_norm=native.address(tensors["final_norm"]),
            layers=self._layers,
            part=_part(config, shard),
        )


def _part(config: ModelConfig, shard: Shard | None) -> native.PartStruct:
    whole = split(config, 1)
    found, number = (whole, 0) if shard is None else (shard.split, shard.number)
    part = native.PartStruct()
    for name in native.PARTS:
        mine: range = getattr(found, name)[number]
        # outputs of a panel; of one with gates beside them, half as many
        size = {"kv_heads": 1, "inner": PANEL // 2, "shared": PANEL // 2}.get(name, PANEL)
        setattr(part, name, native.RangeStruct(mine.start // size, -(-mine.stop // size)))
    return part


def _linear(packed: Array | None) -> native.LinearStruct:
    if packed is None:
        return native.LinearStruct()
    return native.LinearStruct(native.address(packed), native.KINDS[kind_of(packed)])
