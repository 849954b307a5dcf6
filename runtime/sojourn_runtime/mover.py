"""Moves blocks of KV between device, host and store, as a plan says.

Copies are made here, in the engine's thread and in order; the store is read by threads beside it.
Which block goes where is decided in `engine.residency`.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Final, TypeAlias, assert_never

import numpy as np
import numpy.typing as npt

from sojourn_runtime.context.errors import ContextError
from sojourn_runtime.engine.moves import Ahead, Copy, Fetch, Load, Move, Save, Spill, Stash
from sojourn_runtime.engine.prefix import Name
from sojourn_runtime.model.pages import pages
from sojourn_runtime.model.protocol import DeviceKv
from sojourn_runtime.progress import Progress

Kv: TypeAlias = npt.NDArray[np.uint8]
Read: TypeAlias = Callable[[Name, memoryview], None]
"""Fill a buffer with a block of the store; ContextError if it cannot be had whole."""

READERS: Final = 2
"""Threads that read the store: checking a block takes about as long as reading it."""


@dataclass(slots=True)
class Lost:
    """What could not be filled."""

    blocks: set[int] = field(default_factory=set)
    slots: set[int] = field(default_factory=set)
    errors: list[tuple[Name, ContextError]] = field(default_factory=list)
    """Blocks that the store could not give, and why."""
    refused: list[Name] = field(default_factory=list)
    """Blocks that the store could not take now, since too much waits for the disk."""

    def copied(self, *, void: bool, into: set[int], number: int) -> None:
        """A target is as good as its source."""
        (into.add if void else into.discard)(number)


class Mover:
    """The bytes behind the three tiers."""

    def __init__(
        self,
        kv: Kv,
        *,
        slots: int,
        read: Read,
        spill: Callable[[Name, memoryview], bool],
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        """`spill` says whether the store takes a block; `wake` is called from a reader's thread."""
        self._kv = kv
        pool: object = kv
        self._device: DeviceKv = pool if isinstance(pool, DeviceKv) else _Here(kv)
        self.host: Kv = self._device.host(slots)
        self._read = read
        self._spill = spill
        self._wake = wake
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="reader")
        self._arrived: SimpleQueue[tuple[Ahead, ContextError | None]] = SimpleQueue()
        self.moved: Counter[str] = Counter()
        """Blocks so far, by kind of move."""

    def carry_out(self, moves: Sequence[Move]) -> Lost:
        """All moves in order; what depends on a failed one is lost, too.

        On a device, copies may go on until the next pass, or until `settle`.
        """
        lost = Lost()
        loads: dict[int, tuple[Load, Future[None]]] = {}
        for move in moves:
            self.moved[type(move).__name__.lower()] += 1
            if not loads.keys().isdisjoint(_blocks(move)):
                _join(loads, lost)
            match move:
                case Load():
                    loads[move.block] = move, self._readers.submit(self._load, move)
                case Copy(source, target):
                    self._device.copy(source, target)
                    lost.copied(void=source in lost.blocks, into=lost.blocks, number=target)
                case Stash(block, slot):
                    self._device.stash(block, slot)
                    lost.copied(void=block in lost.blocks, into=lost.slots, number=slot)
                case Fetch(slot, block):
                    self._device.fetch(slot, block)
                    lost.copied(void=slot in lost.slots, into=lost.blocks, number=block)
                case Spill(name, slot):
                    self._device.settle()
                    self._hand_over(name, self.host[slot], lost, void=slot in lost.slots)
                case Save(name, block):
                    self._hand_over(name, self._kv[block], lost, void=block in lost.blocks)
                case _:
                    assert_never(move)
        _join(loads, lost)
        return lost

    def _hand_over(self, name: Name, data: Kv, lost: Lost, *, void: bool) -> None:
        if void or not self._spill(name, memoryview(data.data)):
            lost.refused.append(name)

    def _load(self, move: Load) -> None:
        if isinstance(self._device, _Here):
            self._read(move.name, memoryview(self._kv[move.block]))
            return
        buffer = bytearray(self._kv.shape[1])
        self._read(move.name, memoryview(buffer))
        self._kv[move.block] = np.frombuffer(buffer, np.uint8)

    def begin(self, aheads: Sequence[Ahead]) -> None:
        """Read blocks of the store into slots, beside everything else."""
        if aheads:
            self.settle()  # a slot may still be on its way to the device
        for ahead in aheads:
            self.moved["ahead"] += 1
            self._readers.submit(self._fetch_ahead, ahead)

    def _fetch_ahead(self, ahead: Ahead) -> None:
        error = None
        try:
            self._read(ahead.name, memoryview(self.host[ahead.slot]))
        except ContextError as found:
            error = found
        self._arrived.put((ahead, error))
        self._wake()

    def arrived(self) -> list[tuple[Ahead, ContextError | None]]:
        """What `begin` has brought since the last call."""
        found = []
        try:
            while True:
                found.append(self._arrived.get_nowait())
        except Empty:
            return found

    def settle(self) -> None:
        """Wait for the copies between host and device."""
        self._device.settle()

    def close(self) -> None:
        self._readers.shutdown(cancel_futures=True)


class _Here:
    """`DeviceKv` where the KV is in this memory anyway."""

    def __init__(self, kv: Kv) -> None:
        self._kv = kv
        self._host: Kv = kv[:0]

    def host(self, slots: int) -> Kv:
        self._host = pages(slots, self._kv.shape[1])
        return self._host

    def stash(self, block: int, slot: int) -> None:
        self._host[slot] = self._kv[block]

    def fetch(self, slot: int, block: int) -> None:
        self._kv[block] = self._host[slot]

    def copy(self, source: int, target: int) -> None:
        self._kv[target] = self._kv[source]

    def settle(self) -> None:
        pass


def _blocks(move: Move) -> tuple[int, ...]:
    """The blocks of the device that a move touches."""
    match move:
        case Copy(source, target):
            return source, target
        case Load(_, block) | Stash(block, _) | Fetch(_, block) | Save(_, block):
            return (block,)
        case Spill():
            return ()
        case _:
            assert_never(move)


def _join(loads: dict[int, tuple[Load, Future[None]]], lost: Lost) -> None:
    """Wait for the store."""
    progress = Progress("reading the saved context", total=len(loads))
    for block, (move, future) in loads.items():
        try:
            future.result()
            lost.blocks.discard(block)
        except ContextError as error:
            lost.blocks.add(block)
            lost.errors.append((move.name, error))
        progress.add(1)
    loads.clear()
