"""The same model in eager torch, on CUDA or the CPU: simple, and a weaker kernel class by name.

Torch's own kernels choose their tiles by shape, so a position's bits may depend on the batch it
ran in. Used where there are no row-exact kernels (CUDA for now), and as a second opinion in
tests. Importing this imports torch.
"""

from collections.abc import Sequence
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from sojourn_runtime.model import rope
from sojourn_runtime.model.batch import Rows, flatten
from sojourn_runtime.model.config import BLOCK_TOKENS
from sojourn_runtime.model.errors import InvalidConfiguration
from sojourn_runtime.model.packing import unpack, unpack_gate_up
from sojourn_runtime.model.protocol import INTERRUPTED, Interrupted, Logits, Segment, StopFlag
from sojourn_runtime.model.weights import Weights

LAYERS_BETWEEN_STOPS = 4


class EagerRunner:
    """Implements `protocol.Runner`. KV blocks: [layers][key, value][kv_heads][64][head_dim]."""

    block_tokens = BLOCK_TOKENS

    def __init__(self, weights: Weights, *, num_blocks: int, device: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self.config = config = weights.config
        self.weights_digest = weights.digest
        self.block_bytes = config.block_bytes
        self._device = _device(device)
        self.kernel_class = _kernel_class(self._device)
        self._tensors = {
            name: torch.from_numpy(values).to(self._device, torch.bfloat16)
            for name, values in _matrices(weights)
        }
        self._frequencies = torch.from_numpy(rope.frequencies(config)).to(self._device)
        shape = (num_blocks, config.layers, 2, config.kv_heads, BLOCK_TOKENS, config.head_dim)
        self._cache = torch.zeros(shape, dtype=torch.bfloat16, device=self._device)
        self.kv = _bytes_of(self._cache)

    def forward(
        self, segments: Sequence[Segment], *, stop: StopFlag | None = None
    ) -> Logits | Interrupted:
        with torch.inference_mode():
            return self._forward(segments, stop)

    def _forward(self, segments: Sequence[Segment], stop: StopFlag | None) -> Logits | Interrupted:
        rows = flatten(segments, self.config, len(self.kv))
        x = functional.embedding(self._tensor(rows.tokens), self._tensors["embedding"])
        turn = self._rotation(rows)
        for layer in range(self.config.layers):
            if layer % LAYERS_BETWEEN_STOPS == 0 and stop is not None and stop.wanted():
                return INTERRUPTED
            x = x + self._attention(layer, self._norm(x, f"{layer}.attention_norm"), segments, turn)
            y = self._norm(x, f"{layer}.mlp_norm")
            gate, up = (self._linear(y, f"{layer}.{part}") for part in ("gate", "up"))
            x = x + self._linear(functional.silu(gate) * up, f"{layer}.down")
        wanted = self._norm(x[self._tensor(rows.wanted)], "final_norm")
        head = "head" if "head" in self._tensors else "embedding"
        logits: Logits = self._linear(wanted, head).float().cpu().numpy()
        return logits

    def close(self) -> None:
        self._tensors.clear()

    def _attention(
        self,
        layer: int,
        x: torch.Tensor,
        segments: Sequence[Segment],
        turn: tuple[torch.Tensor, torch.Tensor],
    ) -> torch.Tensor:
        config = self.config
        heads = (config.heads, config.kv_heads, config.kv_heads)
        fused = functional.linear(
            x, self._tensors[f"{layer}.qkv"], self._tensors.get(f"{layer}.qkv_bias")
        ).split([n * config.head_dim for n in heads], dim=-1)
        q, k, v = (t.unflatten(-1, (n, config.head_dim)) for t, n in zip(fused, heads, strict=True))
        if config.qk_norm:
            q, k = self._norm(q, f"{layer}.q_norm"), self._norm(k, f"{layer}.k_norm")
        q, k = (_rotate(t, *turn) for t in (q, k))
        mixed, first = [], 0
        for segment in segments:
            mine = slice(first, first + len(segment.tokens))
            mixed.append(self._attend(layer, segment, q[mine], k[mine], v[mine]))
            first = mine.stop
        return self._linear(torch.cat(mixed), f"{layer}.attention_out")

    def _attend(
        self, layer: int, segment: Segment, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
    ) -> torch.Tensor:
        """Write keys and values of one segment into its blocks, then attend to all up to its
        end.
        """
        end = segment.start + len(segment.tokens)
        positions = torch.arange(segment.start, end, device=self._device)
        blocks = torch.tensor(segment.blocks[: -(-end // BLOCK_TOKENS)], device=self._device)
        cache = self._cache[:, layer]
        cache[blocks[positions // BLOCK_TOKENS], 0, :, positions % BLOCK_TOKENS] = k
        cache[blocks[positions // BLOCK_TOKENS], 1, :, positions % BLOCK_TOKENS] = v
        keys, values = (
            cache[blocks, part].transpose(0, 1).flatten(1, 2)[:, :end] for part in (0, 1)
        )
        visible = torch.arange(end, device=self._device) <= positions[:, None]
        mixed = functional.scaled_dot_product_attention(
            q.transpose(0, 1), keys, values, attn_mask=visible, enable_gqa=True
        )
        return mixed.transpose(0, 1).flatten(1)

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.config.rms_epsilon)
        return (wide * scale).to(torch.bfloat16) * self._tensors[name]

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.linear(x, self._tensors[name])

    def _rotation(self, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        angles = torch.outer(self._tensor(rows.positions).double(), self._frequencies)
        return angles.cos()[:, None].float(), angles.sin()[:, None].float()

    def _tensor(self, values: npt.NDArray[np.int32]) -> torch.Tensor:
        return torch.from_numpy(values).to(self._device)


def _rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine], dim=-1).to(torch.bfloat16)


def _bytes_of(cache: torch.Tensor) -> npt.NDArray[np.uint8]:
    """The pool as bytes per block: a view on the CPU, and on a device what acts like one."""
    flat = cache.flatten(1).view(torch.uint8)
    return cast("npt.NDArray[np.uint8]", flat.numpy() if flat.is_cpu else BlockBytes(flat))


class BlockBytes:
    """A KV pool on a device as `kv[block]`: reading copies to the host, assigning copies back."""

    def __init__(self, flat: torch.Tensor) -> None:
        self._bytes = flat

    def __len__(self) -> int:
        return len(self._bytes)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self._bytes), self._bytes.shape[1]

    def __getitem__(self, block: int) -> npt.NDArray[np.uint8]:
        copied: npt.NDArray[np.uint8] = self._bytes[block].cpu().numpy().copy()
        copied.flags.writeable = False  # writing into a copy would be lost without a word
        return copied

    def __setitem__(self, block: int, value: npt.NDArray[np.uint8]) -> None:
        self._bytes[block] = torch.from_numpy(np.array(value, np.uint8)).to(self._bytes.device)


def _device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise InvalidConfiguration(
            "device cuda: torch sees no CUDA device; check the node or use cpu"
        )
    return torch.device("cuda" if name == "cuda" else "cpu")


def _kernel_class(device: torch.device) -> str:
    if device.type == "cpu":
        return "eager-torch-bf16-v1"
    major, minor = torch.cuda.get_device_capability(device)
    return f"eager-torch-bf16-sm{major}{minor}-v1"


def _matrices(weights: Weights) -> list[tuple[str, npt.NDArray[np.float32]]]:
    """All tensors with one row per output again."""
    config = weights.config
    hidden, mixed = config.hidden, config.heads * config.head_dim
    outputs = {
        "embedding": config.vocab_size,
        "head": config.vocab_size,
        "qkv": mixed + 2 * config.kv_heads * config.head_dim,
        "attention_out": hidden,
        "down": hidden,
    }
    found = []
    for name, values in weights.tensors.items():
        kind = name.rpartition(".")[2]
        if kind == "gate_up":
            layer = name.removesuffix("gate_up")
            gate, up = unpack_gate_up(values)
            found += [(layer + "gate", gate), (layer + "up", up)]
        elif kind in outputs:
            found.append((name, unpack(values, outputs[kind])))
        else:
            found.append((name, np.array(values)))
    return found
