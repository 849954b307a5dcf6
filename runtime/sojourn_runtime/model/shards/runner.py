"""One model computed by several processes: the first one's side, a `protocol.Runner` to the rest of
the runtime.

It tells the others each pass and each move of a block. The other side is `follower`.
"""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final, cast

from sojourn_runtime.engine.moves import Copy, Fetch, Stash
from sojourn_runtime.model.errors import InvalidConfiguration
from sojourn_runtime.model.protocol import Interrupted, Logits, Runner, Segment, StopFlag
from sojourn_runtime.model.runner import make_runner, unsplit
from sojourn_runtime.model.shards.orders import Bytes, Host, Move, Opening, Part, Pass
from sojourn_runtime.model.shards.split import Shard, split
from sojourn_runtime.model.shards.team import Team
from sojourn_runtime.model.weights import Weights

START_SECONDS: Final = 300.0
"""For a shard to import torch and map its weights, which were converted before. A guess."""


class SharedKv:
    """The blocks of all shards as whole ones: implements `protocol.DeviceKv`, and acts like an
    array of blocks as `protocol.Runner` says.
    """

    def __init__(self, part: Part, team: Team, *, memory: int, num_blocks: int) -> None:
        self._part = part
        self._team = team
        self._memory = memory
        self.shape = num_blocks, part.slots.shape[1]
        self.host(0)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, block: int) -> Bytes:
        with self._team.lock:
            self._do(Stash(block, self._spare))
            self._team.settle()
            copied: Bytes = self._part.slots[self._spare].copy()
        copied.flags.writeable = False  # writing into a copy would be lost without a word
        return copied

    def __setitem__(self, block: int, value: Bytes) -> None:
        with self._team.lock:
            self._part.slots[self._spare] = value
            self._do(Fetch(self._spare, block))
            self._team.settle()

    def host(self, slots: int) -> Bytes:
        """Slots that every shard reaches; one more stands behind them for `kv[block]`."""
        with self._team.lock:
            self._spare = slots
            os.ftruncate(self._memory, (slots + 1) * self.shape[1])
            self._part.map(slots + 1)
            self._team.tell(Host(slots + 1))
        return self._part.slots[:slots]

    def stash(self, block: int, slot: int) -> None:
        self._do(Stash(block, slot))

    def fetch(self, slot: int, block: int) -> None:
        self._do(Fetch(slot, block))

    def copy(self, source: int, target: int) -> None:
        self._do(Copy(source, target))

    def settle(self) -> None:
        with self._team.lock:
            self._team.settle()

    def _do(self, move: Move) -> None:
        with self._team.lock:
            self._team.tell(move)
            self._part.carry_out(move)


class ShardedRunner:
    """Implements `protocol.Runner` over a runner of its own, which computes the first part."""

    def __init__(self, own: Runner, team: Team, kv: SharedKv, opened: ExitStack) -> None:
        """`opened` gives all of it back."""
        self.config = own.config
        self.kernel_class = own.kernel_class
        self.row_exact = own.row_exact
        self.weights_digest = own.weights_digest
        self.block_tokens = own.block_tokens
        self.block_bytes = own.config.block_bytes
        self.watch = team.watch
        self._own = own
        self._team = team
        self._kv = kv
        self._opened = opened

    @property
    def kv(self) -> Bytes:
        return cast("Bytes", self._kv)

    def forward(
        self, segments: Sequence[Segment], *, stop: StopFlag | None = None
    ) -> Logits | Interrupted:
        with self._team.lock:
            self._team.tell(Pass(tuple(segments)))
            with self._team.blamed():
                return self._own.forward(segments, stop=stop)

    def close(self) -> None:
        self._opened.close()


def open_shards(
    weights: Weights,
    *,
    shards: int,
    uri: str,
    cache_dir: Path,
    quantization: str,
    device: str,
    num_blocks: int,
    threads: int,
) -> ShardedRunner:
    """Start the other shards over the same weights; raises a ModelError that names the remedy,
    theirs too.

    `threads`: of each. One at a time in a process, and `close` it: torch knows one group.
    """
    parts = split(weights.config, shards)
    if device not in {"cpu", "cpu-amx", "cuda"}:
        raise unsplit(device)
    try:
        from sojourn_runtime.model.shards import group  # noqa: PLC0415 - imports torch
    except ModuleNotFoundError as error:
        raise InvalidConfiguration(
            f"--shards {shards} needs {error.name}: install {error.name}, or use --shards 1"
        ) from error
    with ExitStack() as opened:
        memory = os.memfd_create("kv")
        opened.callback(os.close, memory)
        listening = opened.enter_context(group.listener())
        opening = Opening(
            uri=uri,
            cache_dir=cache_dir,
            digest=weights.digest,
            quantization=quantization,
            device=device,
            num_blocks=num_blocks,
            threads=threads,
            number=0,
            shards=shards,
            port=listening.getsockname()[1],
        )
        team = Team()
        opened.callback(team.close)
        for number in range(1, shards):
            team.start(replace(opening, number=number), memory=memory)
        team.answer(START_SECONDS)  # else they would be awaited where nobody sees them die
        with team.blamed():
            peers = group.ProcessGroup(
                number=0, shards=shards, port=opening.port, listening=listening, device=device
            )
            opened.callback(peers.close)
            shard = Shard(0, parts, peers)
            own = make_runner(
                weights, device=device, num_blocks=num_blocks, threads=threads, shard=shard
            )
            opened.callback(own.close)
            part = Part(own, shard.kv_heads, memory=memory)
            kv = SharedKv(part, team, memory=memory, num_blocks=num_blocks)
            team.settle(START_SECONDS)
        opened.callback(team.close)  # once more, so that it comes before what they share
        return ShardedRunner(own, team, kv, opened.pop_all())
