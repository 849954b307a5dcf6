"""The runner over the row-exact CPU kernels; needs numpy and the compiled library, not torch."""

import ctypes
import os
import threading
import weakref
from collections.abc import Sequence

import numpy as np

from sojourn_runtime.model import native
from sojourn_runtime.model.batch import flatten
from sojourn_runtime.model.binding import BoundModel
from sojourn_runtime.model.config import BLOCK_TOKENS
from sojourn_runtime.model.errors import InvalidConfiguration
from sojourn_runtime.model.pages import pages
from sojourn_runtime.model.protocol import INTERRUPTED, Interrupted, Logits, Segment, StopFlag
from sojourn_runtime.model.quantization import kernel_class
from sojourn_runtime.model.shards.exchange import Exchange
from sojourn_runtime.model.shards.split import Shard
from sojourn_runtime.model.weights import Weights

ENV_VARIANT = "SOJOURN_KERNEL_VARIANT"


class CpuRunner:
    """Implements `protocol.Runner`. KV blocks: [layers][key, value][kv_heads][tile]; tiles as
    in `attention.h`. `pairs`: bf16 linears sum in the order of the matrix unit (AMX).
    """

    row_exact = True
    block_tokens = BLOCK_TOKENS

    def __init__(
        self,
        weights: Weights,
        *,
        num_blocks: int,
        threads: int,
        variant: str | None = None,
        shard: Shard | None = None,
        pairs: bool = False,
    ) -> None:
        """A shard's blocks hold its own key heads alone, and its passes are those of all."""
        self.config = weights.config
        self.weights_digest = weights.digest
        self.kernel_class = kernel_class(weights.kinds, pairs=pairs)
        self.block_bytes = self.config.block_bytes
        if shard is not None:
            self.block_bytes = self.block_bytes // self.config.kv_heads * len(shard.kv_heads)
        self.kv = pages(num_blocks, self.block_bytes)
        self._model = BoundModel(weights, shard)
        self._exchange = Exchange(self.config, shard) if shard is not None else None
        self._kernels = native.kernels()
        variant = variant or os.environ.get(ENV_VARIANT, "auto")
        self._engine = self._open(threads, variant, pairs=pairs)
        self._end = weakref.finalize(self, self._kernels.sj_close, self._engine)
        self._end.atexit = False  # a pass may still run in another thread
        self._busy = threading.Lock()

    def forward(
        self, segments: Sequence[Segment], *, stop: StopFlag | None = None
    ) -> Logits | Interrupted:
        rows = flatten(segments, self.config, len(self.kv))
        logits = np.empty((len(rows.wanted), self.config.vocab_size), np.float32)
        batch = native.BatchStruct(
            rows=len(rows.tokens),
            wanted_count=len(rows.wanted),
            tokens=native.address(rows.tokens),
            positions=native.address(rows.positions),
            table_start=native.address(rows.table_start),
            blocks=native.address(rows.blocks),
            wanted=native.address(rows.wanted),
            logits=native.address(logits),
            kv=native.address(self.kv),
            stop=ctypes.addressof(stop.cell) if stop else None,
            poll=native.Poll(stop.poll) if stop and stop.poll else native.Poll(),
        )
        if self._exchange is not None:
            batch.agree, batch.exchange = self._exchange.agree, self._exchange.exchange
        done = self._run(batch)
        if self._exchange is not None:
            self._exchange.check()
        match done:
            case native.DONE:
                return logits
            case native.STOPPED:
                return INTERRUPTED
            case _:
                raise MemoryError(
                    f"no memory for the activations of {len(rows.tokens)} rows; use smaller chunks"
                )

    def _run(self, batch: native.BatchStruct) -> int:
        if not self._busy.acquire(blocking=False):
            raise RuntimeError("a forward pass is running already; a runner does one at a time")
        try:
            if not self._end.alive:
                raise RuntimeError("the runner is closed")
            return int(self._kernels.sj_forward(self._engine, ctypes.byref(batch)))
        finally:
            self._busy.release()

    @property
    def variant(self) -> str:
        """Which instructions compute: a word of `native.VARIANTS`."""
        number = self._kernels.sj_variant(self._engine)
        return next(name for name, value in native.VARIANTS.items() if value == number)

    def close(self) -> None:
        """Idempotent; waits for a running pass."""
        with self._busy:
            self._end()

    def _open(self, threads: int, variant: str, *, pairs: bool) -> int:
        if variant not in native.VARIANTS:
            raise InvalidConfiguration(
                f"{ENV_VARIANT}={variant}: unknown; use one of {', '.join(native.VARIANTS)}"
            )
        if threads < 1:
            raise InvalidConfiguration(f"threads={threads}: at least one is needed")
        engine: int | None = self._kernels.sj_open(
            ctypes.byref(self._model.struct), threads, native.VARIANTS[variant], pairs
        )
        if engine is None:
            raise InvalidConfiguration(
                f"this processor lacks what the {variant} kernels need (at least AVX2 and FMA), "
                f"or {threads} threads could not be started; choose another node or device"
            )
        return engine
