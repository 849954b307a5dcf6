"""Hands a model's tensors to the kernels as pointers, and keeps alive what they point to."""

from sojourn_runtime.model import native, rope
from sojourn_runtime.model.weights import Weights


class BoundModel:
    """`struct` is valid while this object lives."""

    def __init__(self, weights: Weights) -> None:
        config, tensors = weights.config, weights.tensors
        self._weights = weights
        self._frequencies = rope.frequencies(config)
        self._layers = (native.LayerStruct * config.layers)()
        for number, layer in enumerate(self._layers):
            for part in native.LAYER_TENSORS:
                setattr(layer, part, native.address(tensors.get(f"{number}.{part}")))
        self.struct = native.ModelStruct(
            layer_count=config.layers,
            hidden=config.hidden,
            heads=config.heads,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            inner=config.inner,
            vocab=config.vocab_size,
            epsilon=config.rms_epsilon,
            score_scale=1 / config.head_dim**0.5,
            rope_frequencies=native.address(self._frequencies),
            embedding=native.address(tensors["embedding"]),
            head=native.address(tensors.get("head", tensors["embedding"])),
            final_norm=native.address(tensors["final_norm"]),
            layers=self._layers,
        )
