"""Sessions in this process over a tiny random model and the real kernels, as `sessionrig` has them
over a toy.

Runners are opened once and serve one start after another, in one process or in shards.
"""

import copy
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
from sessionrig import Rig
from sojourn_runtime.context.open_store import open_store
from sojourn_runtime.context.snapshot import load, read_block
from sojourn_runtime.engine.prefix import BLOCK
from sojourn_runtime.model.protocol import Interrupted, Logits, Runner, Segment, StopFlag
from sojourn_runtime.model.quantization import read_plan
from sojourn_runtime.model.runner import make_runner
from sojourn_runtime.model.sampling import sample
from sojourn_runtime.model.shards.runner import SharedKv, open_shards
from sojourn_runtime.model.tokenizer import Detokenizer, Tokenizer
from sojourn_runtime.model.weights import Weights, open_weights
from sojourn_runtime.worker import Model

from tests.unit.tiny_models import write_model

CONTEXT = 640
BLOCKS = 128
"""Of each runner; a start may have fewer."""
NOISE = 0xA5
"""What stands in blocks that a start has not filled."""

Kv: TypeAlias = npt.NDArray[np.uint8]
Pass: TypeAlias = Callable[[], Logits | Interrupted]
Around: TypeAlias = Callable[[Sequence[Segment], StopFlag, Pass], Logits | Interrupted]


@dataclass(frozen=True)
class Kernels:
    """A model and those who compute it, all with the same bits."""

    weights: Weights
    runners: tuple[Runner, ...]


@contextmanager
def opened(folder: Path, *, kind: str, shards: int) -> Iterator[Kernels]:
    """A pass looks at the stop flag in front of layers 0 and 4; key heads are three, which two
    shards cannot halve; no answer ends by itself.
    """
    changes: dict[str, Any] = {
        "num_hidden_layers": 5,
        "num_key_value_heads": 3,
        "eos_token_id": None,
    }
    uri = str(write_model(folder / "model", **changes))
    cache = folder / "cache"
    weights = open_weights(uri, cache_dir=cache, plan=read_plan(kind))
    with ExitStack() as closing:
        runners = [make_runner(weights, num_blocks=BLOCKS, threads=1)]
        closing.callback(runners[0].close)
        if shards > 1:
            sharded = open_shards(
                weights,
                shards=shards,
                uri=uri,
                cache_dir=cache,
                quantization=kind,
                device="cpu",
                num_blocks=BLOCKS,
                threads=1,
            )
            runners.append(sharded)
            closing.callback(sharded.close)
        yield Kernels(weights, tuple(runners))


class Stage:
    """Implements `worker.Computes`: a runner with some of its blocks; `around` is given each of
    its passes.
    """

    def __init__(self, runner: Runner, *, blocks: int, around: Around) -> None:
        self.kernel_class = runner.kernel_class
        self.row_exact = runner.row_exact
        self.weights_digest = runner.weights_digest
        self.block_bytes = runner.block_bytes
        self.kv = _first(runner.kv, blocks)
        self._runner = runner
        self._around = around
        for block in range(blocks):
            self.kv[block] = NOISE

    def forward(
        self, segments: Sequence[Segment], *, stop: StopFlag | None = None
    ) -> Logits | Interrupted:
        stop = stop or StopFlag()
        return self._around(segments, stop, lambda: self._runner.forward(segments, stop=stop))


def _first(kv: Kv, blocks: int) -> Kv:
    pool: object = kv
    if isinstance(pool, SharedKv):
        fewer = copy.copy(pool)
        fewer.shape = blocks, pool.shape[1]
        return cast("Kv", fewer)
    return kv[:blocks]


@dataclass(kw_only=True)
class KernelRig(Rig):
    """`computes` does so from the next start on."""

    weights: Weights
    computes: Runner
    around: Around = lambda _segments, _stop, compute: compute()
    context_length: int = CONTEXT

    def model(self) -> Model:
        tokenizer = Tokenizer(self.weights)
        return Model(
            runner=Stage(self.computes, blocks=self.blocks, around=self.around),
            tokenizer=tokenizer,
            decoder=lambda: Detokenizer(tokenizer),
            sample=sample,
            eos=frozenset(),
            context_length=self.context_length,
        )

    def end(self, *, join: bool = True) -> dict[str, Any]:
        words = super().end(join=join)
        assert self.session._opened is not None
        self.session._opened.keeper.journal._log.close()  # as the end of a process does
        return words

    def digests(self) -> Iterator[tuple[bytes, int]]:
        """Name and checksum of every full block on device and host, of a session that has ended."""
        assert self.session._opened is not None
        worker = self.session._opened.worker
        for entry in worker.scheduler.index.entries():
            if len(entry.tokens) == BLOCK and entry.block is not None:
                yield entry.name, zlib.crc32(worker.model.runner.kv[entry.block])
            if len(entry.tokens) == BLOCK and entry.host is not None:
                yield entry.name, zlib.crc32(worker.mover.host[entry.host])

    def saved(self) -> dict[bytes, int]:
        """The checksum of every full block in the store, by name; each is read, and is whole."""
        store = open_store(str(self.folder))
        found = load(store)
        assert found.identity is not None
        target = memoryview(bytearray(found.identity.block_bytes))
        for block in found.blocks:
            read_block(store, block, target)
        return {block.name: block.checksum for block in found.blocks if len(block.tokens) == BLOCK}
