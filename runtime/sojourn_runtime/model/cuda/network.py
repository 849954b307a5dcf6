"""One pass of a Llama-family model, in the kernels of `ops`."""

from collections.abc import Mapping

import torch
from torch.nn import functional

from sojourn_runtime.model import rope
from sojourn_runtime.model.config import ModelConfig
from sojourn_runtime.model.cuda import ops
from sojourn_runtime.model.cuda.ops import Given
from sojourn_runtime.model.cuda.part import own_heads, widths
from sojourn_runtime.model.shards.split import Shard


class Network:
    """`tensors`: matrices [outputs, inputs] in bf16, gate and up as one, vectors in fp32. `pool`:
    [blocks][layers][2][kv_heads][64][head_dim] in bf16.
    """

    def __init__(
        self,
        config: ModelConfig,
        tensors: Mapping[str, torch.Tensor],
        pool: torch.Tensor,
        shard: Shard | None = None,
    ) -> None:
        """As a `shard`, `tensors` and `pool` are its part of the model (see `part`)."""
        self.config = config if shard is None else own_heads(config, shard)
        self._shard = shard
        self._widths = {} if shard is None else widths(config, shard)
        self._tensors = tensors
        self._pool = pool
        self._frequencies = torch.from_numpy(rope.frequencies(config)).to(pool.device)
        self._head = "head" if "head" in tensors else "embedding"

    def begin(self, given: Given) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """The residual stream before the first layer, and the rotations."""
        x = functional.embedding(given["tokens"], self._tensors["embedding"]).float()
        x = self._joined(x, "hidden")
        return x, ops.rotation(given["positions"], self._frequencies)

    def layer(
        self, layer: int, x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor], given: Given
    ) -> torch.Tensor:
        """The residual stream behind the layer, whose KV is written."""
        config, tensors = self.config, self._tensors
        qkv = ops.linear(
            self._norm(x, f"{layer}.attention_norm"),
            tensors[f"{layer}.qkv"],
            bias=tensors.get(f"{layer}.qkv_bias"),
        )
        norms = tensors.get(f"{layer}.q_norm"), tensors.get(f"{layer}.k_norm")
        q = ops.place(
            qkv,
            self._pool,
            layer=layer,
            slots=given["slots"],
            turn=turn,
            norms=norms,
            config=config,
        )
        mixed = ops.attend(q, self._pool, given, layer=layer, config=config)
        x = self._onto(
            x,
            self._joined(mixed, "heads"),
            f"{layer}.attention_out",
            bias=tensors.get(f"{layer}.attention_out_bias"),
        )
        gate_up = ops.linear(self._norm(x, f"{layer}.mlp_norm"), tensors[f"{layer}.gate_up"])
        return self._onto(x, self._joined(ops.gated(gate_up), "inner"), f"{layer}.down")

    def head(self, x: torch.Tensor, given: Given) -> torch.Tensor:
        """fp32 logits of the wanted rows."""
        wanted = self._norm(x[given["wanted"]], "final_norm")
        return self._joined(ops.linear(wanted, self._tensors[self._head], floats=True), "vocab")

    def whole(self, given: Given) -> torch.Tensor:
        """All of a pass without a look at anything else."""
        x, turn = self.begin(given)
        for layer in range(self.config.layers):
            x = self.layer(layer, x, turn, given)
        return self.head(x, given)

    def _onto(
        self, x: torch.Tensor, y: torch.Tensor, name: str, *, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The residual stream with a linear of `y` added."""
        if self._shard is not None:
            mine = self._shard.split.hidden[self._shard.number]
            x = x[:, mine.start : mine.stop].contiguous()
        return self._joined(ops.linear(y, self._tensors[name], bias=bias, residual=x), "hidden")

    def _joined(self, mine: torch.Tensor, kind: str) -> torch.Tensor:
        """The columns of all shards."""
        if self._shard is None:
            return mine
        sizes = self._widths[kind]
        padded = functional.pad(mine, (0, max(sizes) - mine.shape[1]))
        found = self._shard.group.gathered(padded.contiguous())
        return torch.cat([part[:, :size] for part, size in zip(found, sizes, strict=True)], dim=1)

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return ops.norm(x, self._tensors[name], epsilon=self.config.rms_epsilon)
