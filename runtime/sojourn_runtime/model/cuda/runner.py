"""The runner over the row-exact CUDA kernels."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Self, cast

import numpy as np
import numpy.typing as npt
import torch
import triton

from sojourn_runtime.model.config import BLOCK_TOKENS, ModelConfig
from sojourn_runtime.model.cuda import ops
from sojourn_runtime.model.cuda.attention import SPLIT_TOKENS
from sojourn_runtime.model.cuda.graphs import Steps, pinned, recordable
from sojourn_runtime.model.cuda.inputs import gather
from sojourn_runtime.model.cuda.kernels import INTERPRETED
from sojourn_runtime.model.cuda.launches import LAYERS_BETWEEN_STOPS, Launches
from sojourn_runtime.model.cuda.network import Network
from sojourn_runtime.model.cuda.ops import Given
from sojourn_runtime.model.cuda.part import own_heads, part
from sojourn_runtime.model.cuda.pool import DevicePool
from sojourn_runtime.model.cuda.steady import BLOCKS_TRIED, steady
from sojourn_runtime.model.eager import matrices
from sojourn_runtime.model.errors import InvalidConfiguration, UnsupportedModel
from sojourn_runtime.model.protocol import INTERRUPTED, Interrupted, Logits, Segment, StopFlag
from sojourn_runtime.model.shards.split import Shard
from sojourn_runtime.model.weights import Weights


class CudaRunner:
    """Implements `protocol.Runner`. KV blocks: [layers][key, value][kv_heads][64][head_dim].

    With TRITON_INTERPRET=1 set before this is imported, it computes on the CPU, slowly, and is a
    class of its own.
    """

    block_tokens = BLOCK_TOKENS

    def __init__(
        self,
        config: ModelConfig,
        tensors: Mapping[str, torch.Tensor],
        *,
        weights_digest: str,
        num_blocks: int,
        shard: Shard | None = None,
    ) -> None:
        """`tensors` as `Network` wants them, on `device()`; of a `shard`, its part (see `part`)."""
        self.config = config
        self.weights_digest = weights_digest
        self._shard = shard
        own = config if shard is None else own_heads(config, shard)
        self.block_bytes = own.block_bytes
        self._device = device()
        self.kernel_class = _kernel_class(self._device)
        self.tensors = dict(tensors)
        shape = (num_blocks + 1, own.layers, 2, own.kv_heads, BLOCK_TOKENS, own.head_dim)
        pool = torch.zeros(shape, dtype=torch.bfloat16, device=self._device)
        self.pool = DevicePool(pool, num_blocks)
        self._network = Network(config, self.tensors, pool, shard)
        self._steps = Steps(self._network, num_blocks=num_blocks, device=self._device)
        self.row_exact = True
        if self._device.type == "cuda":  # also compiles the kernels, before anybody waits
            self.row_exact = num_blocks >= BLOCKS_TRIED and steady(self, range(BLOCKS_TRIED))

    @classmethod
    def of(cls, weights: Weights, *, num_blocks: int, shard: Shard | None = None) -> Self:
        """Over converted weights, copied to the device."""
        _check(weights.config)
        return cls(
            weights.config,
            _tensors(weights, shard),
            weights_digest=weights.digest,
            num_blocks=num_blocks,
            shard=shard,
        )

    @property
    def kv(self) -> npt.NDArray[np.uint8]:
        """Acts like an array of blocks; see `protocol.Runner`."""
        return cast("npt.NDArray[np.uint8]", self.pool)

    def forward(
        self, segments: Sequence[Segment], *, stop: StopFlag | None = None
    ) -> Logits | Interrupted:
        with torch.inference_mode():
            if recordable(segments):
                if self._shard is None and stop is not None and stop.wanted():
                    return INTERRUPTED  # shards carry it out: asking one another takes as long
                return _to_host(self._steps.run(segments))
            return self._forward(segments, stop)

    def _forward(self, segments: Sequence[Segment], stop: StopFlag | None) -> Logits | Interrupted:
        inputs = gather(
            segments,
            self.config,
            len(self.pool),
            tile_rows=ops.tile_rows(self.config),
            split_tokens=SPLIT_TOKENS,
            group_rows=ops.group_rows(self._network.config),
        )
        buffer = pinned(inputs, self._device).to(self._device, non_blocking=True)
        given = Given.of(inputs, buffer, splits=inputs.splits)
        launches = Launches(self._device)
        x, turn = self._network.begin(given)
        for layer in range(self.config.layers):
            if layer % LAYERS_BETWEEN_STOPS == 0:
                launches.boundary()
                if self._asked(stop):
                    launches.finish()
                    return INTERRUPTED
            x = self._network.layer(layer, x, turn, given)
        if not inputs.shape.wanted:
            launches.finish()
            return np.empty((0, self.config.vocab_size), np.float32)
        return _to_host(self._network.head(x, given))

    def _asked(self, stop: StopFlag | None) -> bool:
        """Whether to stop now, all shards alike."""
        asked = stop is not None and stop.wanted()
        return asked if self._shard is None else self._shard.group.agree(asked)

    def close(self) -> None:
        self._steps.clear()
        self.tensors.clear()


def device() -> torch.device:
    """Where the kernels run; InvalidConfiguration if there is no such place."""
    if INTERPRETED:
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise InvalidConfiguration(
            "device cuda: torch sees no CUDA device; check the node or use cpu"
        )
    return torch.device("cuda")


def _check(config: ModelConfig) -> None:
    missing = {
        "experts": config.experts is not None,
        "a sliding window": bool(config.windows),
        "a norm over all heads at once": config.qk_norm_whole,
    }
    for what, wanted in missing.items():
        if wanted:
            raise UnsupportedModel(
                f"{config.architecture} with {what}: the CUDA kernels cannot compute it; "
                "use device cuda-eager, or cpu"
            )


def _kernel_class(where: torch.device) -> str:
    """The compiler chooses instructions by architecture and version, so both are named."""
    if where.type == "cpu":
        return "cuda-triton-bf16-interpreted-v1"
    major, minor = torch.cuda.get_device_capability(where)
    compiler = ".".join(triton.__version__.split(".")[:2])
    return f"cuda-triton{compiler}-bf16-sm{major}{minor}-v1"


def _to_host(logits: torch.Tensor) -> Logits:
    """Waits for the pass, and for all copies queued before it."""
    if not logits.is_cuda:
        return cast("Logits", logits.numpy())
    host = torch.empty(logits.shape, dtype=logits.dtype, pin_memory=True)
    host.copy_(logits, non_blocking=True)
    torch.cuda.current_stream(logits.device).synchronize()
    return cast("Logits", host.numpy())


def _tensors(weights: Weights, shard: Shard | None) -> dict[str, torch.Tensor]:
    """Cut and copied to the device one by one: the host never holds all of them."""
    where, found = device(), {}
    for name, tensor in _whole(weights, head=shard is not None):
        mine = tensor if shard is None else part(name, tensor, weights.config, shard)
        found[name] = mine.to(where)
    return found


def _whole(weights: Weights, *, head: bool) -> Iterator[tuple[str, torch.Tensor]]:
    """As `Network` wants them of a whole model; with a `head` even if it is the embedding."""
    gate = torch.empty(0)
    for name, values in matrices(weights):
        tensor = torch.from_numpy(values).to(torch.bfloat16 if values.ndim > 1 else None)
        start, _, kind = name.rpartition(".")
        match kind:
            case "gate":
                gate = tensor
            case "up":
                yield f"{start}.gate_up", torch.cat([gate, tensor])
            case _:
                yield name, tensor
                if head and kind == "embedding" and "head" not in weights.tensors:
                    yield "head", tensor
