"""The same model in eager torch, on CUDA or the CPU: simple, and a weaker kernel class by name.

Torch's own kernels choose their tiles by shape, so a position's bits may depend on the batch it
ran in. Used where the row-exact kernels do not compile, and as a second opinion in tests.
Importing this imports torch.
"""

from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from sojourn_runtime.model import rope
from sojourn_runtime.model.batch import Rows, flatten
from sojourn_runtime.model.config import BLOCK_TOKENS, Experts
from sojourn_runtime.model.errors import InvalidConfiguration
from sojourn_runtime.model.packing import unpack, unpack_gate_up
from sojourn_runtime.model.protocol import INTERRUPTED, Interrupted, Logits, Segment, StopFlag
from sojourn_runtime.model.weights import Weights

LAYERS_BETWEEN_STOPS = 4


class EagerRunner:
    """Implements `protocol.Runner`. KV blocks: [layers][key, value][kv_heads][64][head_dim]."""

    row_exact = False
    block_tokens = BLOCK_TOKENS

    def __init__(
        self,
        weights: Weights,
        *,
        num_blocks: int,
        device: str,
        threads: int,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        """`dtype`: torch.float32 compares with other implementations; sessions run in bf16."""
        torch.set_num_threads(threads)
        self.config = config = weights.config
        self.weights_digest = weights.digest
        self._dtype = dtype
        self._device = _device(device)
        self.kernel_class = _kernel_class(self._device, dtype)
        self._tensors = {
            name: torch.from_numpy(values).to(self._device, dtype)
            for name, values in matrices(weights)
        }
        self._frequencies = torch.from_numpy(rope.frequencies(config)).to(self._device)
        shape = (num_blocks, config.layers, 2, config.kv_heads, BLOCK_TOKENS, config.head_dim)
        self._cache = torch.zeros(shape, dtype=dtype, device=self._device)
        self.block_bytes = config.block_bytes * dtype.itemsize // 2
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
            x = x + self._mlp(layer, y)
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
            q, k = self._norm_heads(q, f"{layer}.q_norm"), self._norm_heads(k, f"{layer}.k_norm")
        q, k = (_rotate(t, *turn) for t in (q, k))
        mixed, first = [], 0
        for segment in segments:
            mine = slice(first, first + len(segment.tokens))
            mixed.append(self._attend(layer, segment, q[mine], k[mine], v[mine]))
            first = mine.stop
        name = f"{layer}.attention_out"
        bias = self._tensors.get(f"{name}_bias")
        return functional.linear(torch.cat(mixed), self._tensors[name], bias)

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
        ago = positions[:, None] - torch.arange(end, device=self._device)
        mixed = functional.scaled_dot_product_attention(
            q.transpose(0, 1),
            keys,
            values,
            attn_mask=(ago >= 0) & (ago < self.config.window(layer)),
            enable_gqa=True,
            scale=self.config.score_scale,
        )
        return mixed.transpose(0, 1).flatten(1)

    def _mlp(self, layer: int, x: torch.Tensor) -> torch.Tensor:
        if self.config.experts:
            return self._experts(layer, x, self.config.experts)
        return _swiglu(x, *(self._tensors[f"{layer}.{part}"] for part in ("gate", "up", "down")))

    def _experts(self, layer: int, x: torch.Tensor, experts: Experts) -> torch.Tensor:
        scores = self._linear(x, f"{layer}.router").float()
        weights, chosen = scores[:, : experts.count].softmax(-1).topk(experts.used)
        if experts.normalised:
            weights = weights / weights.sum(-1, keepdim=True)
        total = torch.zeros_like(x, dtype=torch.float32)
        for number in chosen.unique().tolist():
            rows, rank = torch.where(chosen == number)
            parts = (self._tensors[f"{layer}.{part}"][number] for part in ("gate", "up", "down"))
            total.index_add_(0, rows, _swiglu(x[rows], *parts).float() * weights[rows, rank, None])
        if experts.shared_inner:
            parts = (self._tensors[f"{layer}.shared_{part}"] for part in ("gate", "up", "down"))
            total += _swiglu(x, *parts).float() * scores[:, experts.count :].sigmoid()
        return total.to(x.dtype)

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.config.rms_epsilon)
        return (wide * scale).to(self._dtype) * self._tensors[name]

    def _norm_heads(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """Each head for itself, or all as one vector."""
        if self.config.qk_norm_whole:
            return self._norm(x.flatten(-2), name).view_as(x)
        return self._norm(x, name)

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.linear(x, self._tensors[name])

    def _rotation(self, rows: Rows) -> tuple[torch.Tensor, torch.Tensor]:
        angles = torch.outer(self._tensor(rows.positions).double(), self._frequencies)
        return angles.cos()[:, None].float(), angles.sin()[:, None].float()

    def _tensor(self, values: npt.NDArray[np.int32]) -> torch.Tensor:
        return torch.from_numpy(values).to(self._device)


def _swiglu(
    x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    inner = functional.silu(functional.linear(x, gate)) * functional.linear(x, up)
    return functional.linear(inner, down)


def _rotate(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat([a * cosine - b * sine, b * cosine + a * sine], dim=-1).to(x.dtype)


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
    if name == "cuda-eager" and not torch.cuda.is_available():
        raise InvalidConfiguration(
            "device cuda-eager: torch sees no CUDA device; check the node or use cpu"
        )
    return torch.device("cuda" if name == "cuda-eager" else "cpu")


def _kernel_class(device: torch.device, dtype: torch.dtype) -> str:
    name = "bf16" if dtype is torch.bfloat16 else "fp32"
    if device.type == "cpu":
        return f"eager-torch-{name}-v1"
    major, minor = torch.cuda.get_device_capability(device)
    return f"eager-torch-{name}-sm{major}{minor}-v1"


def matrices(weights: Weights) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    """All tensors with one row per output again; the experts' are stacked.

    One after the other, since they are twice as large as the weights.
    """
    config = weights.config
    hidden, mixed = config.hidden, config.heads * config.head_dim
    experts = config.experts
    outputs = {
        "embedding": config.vocab_size,
        "head": config.vocab_size,
        "qkv": mixed + 2 * config.kv_heads * config.head_dim,
        "attention_out": hidden,
        "down": hidden,
        "shared_down": hidden,
        "router": experts.count + bool(experts.shared_inner) if experts else 0,
    }
    for name, values in weights.tensors.items():
        kind = name.rpartition(".")[2]
        stacked = experts is not None and kind in {"gate_up", "down"}
        if kind.endswith("gate_up"):
            gate, up = unpack_gate_up(values)
            if stacked:
                gate, up = (each.reshape(-1, config.inner, hidden) for each in (gate, up))
            start = name.removesuffix("gate_up")
            yield start + "gate", gate
            yield start + "up", up
        elif experts and stacked:
            each = np.split(values, experts.count)
            yield name, np.stack([unpack(one, hidden) for one in each])
        elif kind in outputs:
            yield name, unpack(values, outputs[kind])
        else:
            yield name, np.array(values)
