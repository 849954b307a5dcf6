"""The runner over the row-exact CPU kernels; needs numpy and the compiled library, not torch."""

import ctypes
import mmap
import os
import threading
import weakref
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sojourn_runtime.model import native
from sojourn_runtime.model.batch import flatten
from sojourn_runtime.model.binding import BoundModel
from sojourn_runtime.model.config import BLOCK_TOKENS
from sojourn_runtime.model.errors import InvalidConfiguration
from sojourn_runtime.model.protocol import INTERRUPTED, Interrupted, Logits, Segment, StopFlag
from sojourn_runtime.model.weights import Weights

KERNEL_CLASS = "cpu-fma-bf16-v1"
"""One class for both variants: they give equal bits."""
ENV_VARIANT = "SOJOURN_KERNEL_VARIANT"


class CpuRunner:
    """Implements `protocol.Runner`. KV blocks: [layers][key, value][kv_heads][tile]; tiles as
    in `attention.h`.
    """

    kernel_class = KERNEL_CLASS
    block_tokens = BLOCK_TOKENS

    def __init__(
        self, weights: Weights, *, num_blocks: int, threads: int, variant: str | None = None
    ) -> None:
        self.config = weights.config
        self.weights_digest = weights.digest
        self.block_bytes = self.config.block_bytes
        self.kv = _pages(num_blocks, self.block_bytes)
        self._model = BoundModel(weights)
        self._kernels = native.kernels()
        self._engine = self._open(threads, variant or os.environ.get(ENV_VARIANT, "auto"))
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
        match self._run(batch):
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
        """Which instructions compute: `avx2` or `avx512`."""
        number = self._kernels.sj_variant(self._engine)
        return next(name for name, value in native.VARIANTS.items() if value == number)

    def close(self) -> None:
        """Idempotent; waits for a running pass."""
        with self._busy:
            self._end()

    def _open(self, threads: int, variant: str) -> int:
        if variant not in native.VARIANTS:
            raise InvalidConfiguration(
                f"{ENV_VARIANT}={variant}: unknown; use one of {', '.join(native.VARIANTS)}"
            )
        if threads < 1:
            raise InvalidConfiguration(f"threads={threads}: at least one is needed")
        engine: int | None = self._kernels.sj_open(
            ctypes.byref(self._model.struct), threads, native.VARIANTS[variant]
        )
        if engine is None:
            raise InvalidConfiguration(
                f"this processor lacks what the {variant} kernels need (at least AVX2 and FMA), "
                f"or {threads} threads could not be started; choose another node or device"
            )
        return engine


def _pages(num_blocks: int, block_bytes: int) -> npt.NDArray[np.uint8]:
    """Zeroed memory on a page border, which the kernel provides only when it is written."""
    size = num_blocks * block_bytes
    return np.frombuffer(mmap.mmap(-1, size), np.uint8).reshape(num_blocks, block_bytes)
