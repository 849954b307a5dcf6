"""What the CPU kernels call where several processes compute one model: for the columns of a pass's
buffers that other shards computed, and for what all do about a wish to stop.
"""

import ctypes
from collections.abc import Sequence

import numpy as np

from sojourn_runtime.model import native
from sojourn_runtime.model.config import ModelConfig
from sojourn_runtime.model.shards.split import Parts, Shard


class Exchange:
    """The callbacks of one runner.

    No exception passes through the kernels: they go on in vain until the next boundary, and `check`
    raises it behind the pass.
    """

    def __init__(self, config: ModelConfig, shard: Shard) -> None:
        self._shard = shard
        self._columns = _columns(config, shard)
        self._error: Exception | None = None
        self.exchange = native.Exchange(self._exchange)
        self.agree = native.Agree(self._agree)

    def check(self) -> None:
        """Raise what went wrong in the pass, if anything did."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _agree(self, asked: int) -> int:
        try:
            return 1 if self._error else int(self._shard.group.agree(bool(asked)))
        except Exception as error:  # noqa: BLE001 - raised by `check`
            self._error = error
            return 1

    def _exchange(self, columns: int, address: int, count: int) -> None:
        try:
            if self._error is None:
                self._fill(columns, address, count)
        except Exception as error:  # noqa: BLE001 - raised by `check`
            self._error = error

    def _fill(self, columns: int, address: int, count: int) -> None:
        width, parts = self._columns[columns]
        floats = (ctypes.c_float * (count * width)).from_address(address)
        rows = np.ctypeslib.as_array(floats).reshape(count, width)
        mine = parts[self._shard.number]
        sent = np.zeros((count, max(map(len, parts))), np.float32)
        sent[:, : len(mine)] = rows[:, mine.start : mine.stop]
        for number, received in enumerate(self._shard.group.gather(sent)):
            if number != self._shard.number:
                part = parts[number]
                rows[:, part.start : part.stop] = received[:, : len(part)]


def _columns(config: ModelConfig, shard: Shard) -> Sequence[tuple[int, Parts]]:
    """By the numbers of `SjColumns`: how wide a row is, and which columns are whose."""
    split, size = shard.split, config.head_dim
    heads = config.heads * size
    fused = heads + 2 * config.kv_heads * size
    per_key_head = heads // config.kv_heads
    queries = tuple(range(p.start * per_key_head, p.stop * per_key_head) for p in split.kv_heads)
    keys = tuple(range(heads + p.start * size, heads + p.stop * size) for p in split.kv_heads)
    shared = config.experts.shared_inner if config.experts else 0
    return (
        (fused, queries),
        (fused, keys),
        (heads, queries),
        (config.hidden, split.hidden),
        (config.inner, split.inner),
        (shared, split.shared),
        (config.vocab_size, split.vocab),
    )
