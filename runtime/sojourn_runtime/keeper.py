"""What of a session is where: in the journal, in the saver's hands, or committed.

Ties the context (`context/`) to the engine's blocks: decides when a checkpoint is due, hands blocks
over as they fill, and saves the rest at a pause. All of it runs in the engine's thread, except the
journal's own methods. When to pause is decided in `session`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from sojourn_runtime.context.errors import SnapshotCorrupt, StaleEpoch
from sojourn_runtime.context.journal import Journal
from sojourn_runtime.context.saver import Captured, Saver
from sojourn_runtime.context.snapshot import (
    Facts,
    Identity,
    Loaded,
    compatible,
    document_texts,
    read_block,
    unsteady,
)
from sojourn_runtime.context.store import Log, Store
from sojourn_runtime.engine.prefix import BLOCK, Entry, PrefixIndex
from sojourn_runtime.engine.request import Progress
from sojourn_runtime.engine.scheduler import Scheduler

Kv: TypeAlias = npt.NDArray[np.uint8]

JOURNAL: Final = 16 << 20
"""Bytes of journal after which documents alone make a checkpoint due: bounds the replay."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How much may be lost, in tokens to compute again, and how much the store may hold."""

    checkpoint_tokens: int = 256
    budget: int = 1 << 30

    @property
    def due(self) -> int:
        """Tokens after which a commit is begun: it shall be made before the interval is over."""
        return max(1, self.checkpoint_tokens // 2)

    @property
    def chunk(self) -> int:
        """Tokens of prompts that a step may compute, so that two steps fit in beside a commit."""
        return max(1, self.checkpoint_tokens // 4)

    @property
    def tails(self) -> bool:
        """Whether full blocks alone are too coarse for the interval."""
        return self.checkpoint_tokens < 2 * BLOCK


class Keeper:
    """The saved side of a session: opens what was left, and keeps up with what is made."""

    def __init__(
        self,
        store: Store,
        loaded: Loaded,
        *,
        session: str,
        identity: Identity,
        owner: str = "",
        epoch: int | None,
        policy: Policy,
        moves: Callable[[], None] = lambda: None,
    ) -> None:
        """Claim the store for this start; StaleEpoch if a later one has claimed it before.

        `moves` is called, in a thread of the saver's, whenever a write is done.
        """
        for name in loaded.leftover:
            store.delete(name)
        foreign = compatible(loaded, identity, uri=store.uri)
        self.epoch = loaded.last.epoch + 1 if epoch is None else epoch
        news = foreign or ("" if loaded.inexact else unsteady(loaded, identity))
        self.inexact = f"{news} at start {self.epoch}" if news else loaded.inexact
        """Why the text is not the uninterrupted one, in this start or in one before it."""
        if self.epoch < loaded.last.epoch:
            raise StaleEpoch(
                f"{store.uri}: start {loaded.last.epoch} of this session has claimed the store, "
                f"this is {self.epoch}; end it"
            )
        self.context = loaded.context
        self.facts: Facts | None = None
        self.host: Kv = np.empty((0, identity.block_bytes), np.uint8)
        """The slots of the host; set by who owns them."""
        self._store = store
        self._policy = policy
        self._block_bytes = identity.block_bytes
        self._uncommitted: set[bytes] = set()
        """Full blocks that no commit under way names."""
        self._under_way: set[bytes] = set()
        self._since = 0
        """Tokens computed since the last commit was begun."""
        self._flying = 0
        """Tokens that the commit under way is about."""
        self._waiting: dict[bytes, Entry] = {}
        """Full blocks not yet handed to the saver."""
        self.saver = Saver(
            store,
            session=session,
            owner=owner,
            identity=identity,
            epoch=self.epoch,
            number=loaded.last.number if loaded.last.epoch == self.epoch else 0,
            newest=loaded.newest,
            base=loaded.base,
            blocks=() if foreign else loaded.blocks,
            inexact=self.inexact,
            budget=policy.budget,
            moves=moves,
        )
        self.journal = Journal(store.log(self.saver.next_commit.journal))
        self.saver.commit(self._capture((), former_log=None))
        self.saver.wait()
        self._take_news(None)

    def known(self, index: PrefixIndex) -> None:
        """Tell the index what the store has."""
        for block in self.saver.blocks.values():
            index.add_saved(block.parent, block.tokens)

    # -- every step --

    def computed(self, tokens: int, *, filled: Iterable[Entry]) -> None:
        """A step is done, and some blocks became full."""
        self._since += tokens
        for entry in filled:
            if not entry.saved and not self.saver.has(entry.name):
                self._waiting[entry.name] = entry
                self._uncommitted.add(entry.name)

    def keep_up(self, scheduler: Scheduler, kv: Kv) -> None:
        """Hand full blocks to the saver while it has room; begin a checkpoint when one is due."""
        self._take_news(scheduler.index)
        while self._waiting and self.saver.room:
            self._hand_over(self._waiting.pop(next(iter(self._waiting))), kv, copy=True)
        if self._due() and not self.saver.busy:
            self.checkpoint(scheduler, kv)

    def _due(self) -> bool:
        new = bool(self._uncommitted) or self._policy.tails
        return (new and self._since >= self._policy.due) or self.journal.bytes > JOURNAL

    def must_wait(self, chunk: int) -> bool:
        """Another step of `chunk` tokens could put more at stake than the interval."""
        growing = 0 if self._policy.tails else BLOCK
        at_stake = self._since + self._flying + growing + chunk
        return self.saver.busy and at_stake > self._policy.checkpoint_tokens

    def checkpoint(self, scheduler: Scheduler, kv: Kv, *, tails: bool = False) -> None:
        """Begin a commit of everything up to this token boundary.

        Growing blocks (`tails`) are left out while they grow, or each would be written many times.
        """
        if tails or self._policy.tails:
            self._waiting |= {entry.name: entry for entry in self._rest(scheduler)}
        for entry in self._waiting.values():
            self._hand_over(entry, kv, copy=True)
        self._waiting.clear()
        self._under_way |= self._uncommitted
        self._uncommitted.clear()
        self._begin(scheduler)

    def _begin(self, scheduler: Scheduler) -> None:
        self._flying, self._since = self._flying + self._since, 0
        new = self._store.log(self.saver.next_commit.journal)  # may take long: outside of the lock
        with self.journal.lock:
            former = self.journal.turn(new)
            alive = [*scheduler.running, *scheduler.waiting]
            captured = self._capture(alive, former_log=former)
        self.saver.commit(captured)

    # -- pause --

    @property
    def unsaved(self) -> bool:
        """Something happened since the last commit."""
        return bool(self.journal.bytes or self._since or self._flying or self.saver.pending)

    def unsaved_bytes(self) -> int:
        """KV that a pause would still have to write, by full blocks."""
        return (len(self._uncommitted) + len(self._under_way)) * self._block_bytes

    @property
    def unsaved_tokens(self) -> int:
        """Tokens computed since the last commit that is durable."""
        return self._since + self._flying

    def save(self, scheduler: Scheduler, kv: Kv) -> Facts | None:
        """Commit everything, and return when it is durable; the KV must stand still meanwhile."""
        rest = self._rest(scheduler)
        if rest or self.unsaved:
            for entry in rest:
                self._hand_over(entry, kv, copy=False)
            self._waiting.clear()
            self._uncommitted.clear()
            self._begin(scheduler)
        self.saver.wait()
        self._take_news(scheduler.index)
        return self.facts

    def _rest(self, scheduler: Scheduler) -> list[Entry]:
        """All content on device and host that the saver was not given."""
        scheduler.name_tails()
        return [
            entry
            for entry in scheduler.index.entries()
            if not entry.saved and not self.saver.has(entry.name)
        ]

    @property
    def sync_seconds(self) -> float:
        """Time spent in fsync so far."""
        return self._store.sync_seconds

    def close(self) -> None:
        """Let the saver tidy up.

        The journal stays open: what the server still says goes behind the last commit.
        """
        self.saver.close()

    # -- blocks --

    def read(self, name: bytes, target: memoryview) -> None:
        """Fill `target` with a block of the store; ContextError if it cannot be had whole.

        From any thread.
        """
        pending = self.saver.pending.get(name)
        block = self.saver.blocks.get(name)
        if pending is not None:
            target[:] = pending
        elif block is not None:
            self.saver.used(block)
            read_block(self._store, block, target)
        else:
            raise SnapshotCorrupt(f"{self._store.uri}: block {name.hex()} is gone")

    def spill(self, entry: Entry, data: memoryview) -> bool:
        """Save a block that leaves the host; False if too much waits for the disk already."""
        if not self.saver.has(entry.name) and self.saver.room:
            self.saver.add(entry, bytes(data))
        return self.saver.has(entry.name)

    def _hand_over(self, entry: Entry, kv: Kv, *, copy: bool) -> None:
        if entry.block is not None:
            data = memoryview(kv[entry.block])
        elif entry.host is not None:
            data = memoryview(self.host[entry.host])
        else:  # reused before it was saved: computed again when it is needed
            self._uncommitted.discard(entry.name)
            return
        self.saver.add(entry, bytes(data) if copy else data)

    def _capture(self, alive: Sequence[Progress], *, former_log: Log | None) -> Captured:
        for progress in alive:
            kept = self.context.requests.get(progress.id)
            if kept is not None:
                kept.computed = progress.computed
        return Captured(
            requests=[kept.encode() for kept in self.context.requests.values()],
            documents=document_texts(self.context),
            conversations=self.context.conversations,
            needed=frozenset(name for progress in alive for name in progress.names),
            former_log=former_log,
        )

    def _take_news(self, index: PrefixIndex | None) -> None:
        for committed in self.saver.news():
            self.facts = committed.facts
            self._under_way.clear()
            self._flying = 0
            if index is None:
                continue
            for name in committed.dropped:
                index.forget_saved(name)
            for name in committed.saved:
                block = self.saver.blocks.get(name)
                if block is not None and self.saver.has(name):
                    index.add_saved(block.parent, block.tokens)
