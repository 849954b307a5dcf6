"""Writes blocks and commits in a thread of its own, so that no step waits for a disk.

The engine's thread hands over copies of full blocks as they fill and asks for commits; the thread
writes segments, then the manifest, then removes what nobody needs. Jobs are done in order, so a
manifest never names what is not durable. An error stays and is raised at the next call.
"""

import itertools
import queue
import threading
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from sojourn_runtime.context import layout
from sojourn_runtime.context.layout import Commit
from sojourn_runtime.context.snapshot import Facts, Identity, Manifest, SavedBlock, digest_of
from sojourn_runtime.context.store import Log, Store
from sojourn_runtime.engine.prefix import Entry

SEGMENT: Final = 4 << 20
"""Bytes at which a segment is written: large enough for object stores and spinning disks."""
BACKLOG: Final = 64 << 20
"""Bytes of copies that may wait for the disk; beyond that blocks wait in the pool instead."""


@dataclass(frozen=True, slots=True)
class Captured:
    """The context at one token boundary, for a commit."""

    requests: Sequence[str]
    documents: Mapping[str, Mapping[str, str]]
    conversations: int
    needed: frozenset[bytes]
    """Names of the blocks that running requests use: never dropped for want of room."""
    former_log: Log | None
    """The journal that this commit ends."""


@dataclass(frozen=True, slots=True)
class Committed:
    """What a commit did, told to the engine's thread."""

    facts: Facts
    saved: tuple[bytes, ...]
    dropped: tuple[bytes, ...]
    """Blocks that went to make room."""


class Saver:
    """The writing side of a session's store."""

    def __init__(
        self,
        store: Store,
        *,
        session: str,
        owner: str = "",
        identity: Identity,
        epoch: int,
        number: int,
        newest: str,
        base: str,
        blocks: Iterable[SavedBlock] = (),
        inexact: str = "",
        budget: int,
        moves: Callable[[], None] = lambda: None,
    ) -> None:
        """`number` is the last used in this epoch, `newest` the manifest that a commit replaces.

        `base` is the last good one, which stays until there are two newer ones. `inexact` is
        said in each manifest. `moves` is called in the saver's thread after each job that it got
        done.
        """
        self._store = store
        self._session = session
        self._owner = owner
        self._identity = identity
        self._inexact = inexact
        self._epoch = epoch
        self._number = number
        self._newest = newest
        self._former = base
        self._budget = budget
        self._moves = moves
        self._segments = number
        self._block_bytes = 0
        self.blocks = {block.name: block for block in blocks}
        """Every block in the store, committed or about to be."""
        self._uses: dict[str, int] = {}
        """When each segment was last written or read, by `_clock`."""
        self._clock = itertools.count(1)
        self.pending: dict[bytes, bytes | memoryview] = {}
        """What is not written yet, to be read here meanwhile."""
        self._spoilt: set[bytes] = set()
        """Blocks that the store did not give whole, and that were not added again since."""
        self._named = frozenset[str](), self._segments_in_use
        """The segments of the last manifest but one, and of the last."""
        self._texts = {name: block.text() for name, block in self.blocks.items()}
        self._open: list[tuple[Entry, bytes | memoryview]] = []
        self._open_bytes = 0
        self._backlog = 0
        self._new_bytes = 0
        self._fresh: list[bytes] = []
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._results: queue.SimpleQueue[Committed] = queue.SimpleQueue()
        self._idle = threading.Condition()
        self._outstanding = 0
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="saver", daemon=True)
        self._thread.start()

    # -- the engine's thread --

    @property
    def room(self) -> bool:
        """Another block may be copied."""
        return self._backlog + self._open_bytes < BACKLOG

    @property
    def busy(self) -> bool:
        """A job is not done yet."""
        return self._outstanding > 0

    @property
    def next_commit(self) -> Commit:
        """The place of the next commit; its journal can be opened before it is made."""
        return Commit(self._epoch, self._number + 1)

    def add(self, entry: Entry, data: bytes | memoryview) -> None:
        """Save a block; a memoryview must not change before the next `wait`."""
        self._open.append((entry, data))
        self._spoilt.discard(entry.name)
        self.pending[entry.name] = data
        self._open_bytes += len(data)
        if self._open_bytes >= SEGMENT:
            self.flush()

    def has(self, name: bytes) -> bool:
        """The store has the block whole, for all that is known, or will have it."""
        # in this order: a block is in `blocks` before it leaves `pending`
        return name in self.pending or (name in self.blocks and name not in self._spoilt)

    def forget(self, name: bytes) -> None:
        """The store did not give the block whole: the next commit is without it, unless it is
        added again before. What was committed stays as it is.
        """
        self._spoilt.add(name)

    def used(self, block: SavedBlock) -> None:
        """Somebody came back for it; from any thread."""
        self._uses[block.segment] = next(self._clock)

    def flush(self) -> None:
        """Write what was added, however little."""
        if not self._open:
            return
        blocks, size = self._open, self._open_bytes
        self._open, self._open_bytes = [], 0
        self._backlog += size
        self._segments += 1
        name = Commit(self._epoch, self._segments).segment
        self._do(lambda: self._write(name, blocks, size))

    def commit(self, captured: Captured) -> None:
        """Write what was added, and a manifest over it."""
        self.flush()
        self._number += 1
        commit = Commit(self._epoch, self._number)
        spoilt = frozenset(self._spoilt)
        self._do(lambda: self._commit(commit, captured, spoilt))

    def news(self) -> list[Committed]:
        """Commits made since the last call; raises the error of a failed job."""
        self._raise()
        found = []
        while not self._results.empty():
            found.append(self._results.get())
        return found

    def wait(self) -> None:
        """Until all is written that was asked for; raises the error of a failed job."""
        with self._idle:
            self._idle.wait_for(lambda: not self._outstanding)
        self._raise()

    def close(self) -> None:
        """End the thread when its jobs are done."""
        self._jobs.put(None)
        self._thread.join()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _do(self, job: Callable[[], None]) -> None:
        with self._idle:
            self._outstanding += 1
        self._jobs.put(lambda: self._counted(job))

    # -- the saver's thread --

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                if self._error is None:
                    job()
            except Exception as error:  # noqa: BLE001 - raised again in the engine's thread
                self._error = error
            if self._error is not None:
                self._release_all()

    def _counted(self, job: Callable[[], None]) -> None:
        job()
        self._moves()
        with self._idle:
            self._outstanding -= 1
            self._idle.notify_all()

    def _release_all(self) -> None:
        """Nothing will be written any more: who waits gets the error."""
        with self._idle:
            self._outstanding = 0
            self._idle.notify_all()

    def _write(self, name: str, blocks: list[tuple[Entry, bytes | memoryview]], size: int) -> None:
        offset = 0
        for entry, data in blocks:
            saved = SavedBlock(
                name=entry.name,
                parent=entry.parent,
                tokens=entry.tokens,
                segment=name,
                offset=offset,
                checksum=zlib.crc32(data),
            )
            offset += len(data)
            self.blocks[saved.name], self._texts[saved.name] = saved, saved.text()
            self._fresh.append(saved.name)
        self._uses[name] = next(self._clock)
        self._new_bytes += self._store.put(name, [data for _, data in blocks])
        self._backlog -= size
        for entry, _ in blocks:
            self.pending.pop(entry.name, None)

    def _commit(self, commit: Commit, captured: Captured, spoilt: frozenset[bytes]) -> None:
        for name in spoilt & self.blocks.keys():
            del self.blocks[name], self._texts[name]
        dropped = self._drop(captured.needed)
        saved = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        data = Manifest(
            commit=commit,
            session=self._session,
            owner=self._owner,
            saved=saved,
            identity=self._identity,
            inexact=self._inexact,
            requests=captured.requests,
            documents=captured.documents,
            blocks=self._texts.values(),
        ).encode()
        if captured.former_log is not None:
            captured.former_log.close()  # not synced: this manifest holds what it says
        self._store.swap(expected=self._newest, name=commit.manifest, data=data)
        former, self._former = self._former, commit.manifest
        self._newest = commit.manifest
        self._named = self._named[1], self._segments_in_use
        facts = Facts(
            uri=self._store.uri,
            manifest=commit.manifest,
            tokens=sum(len(block.tokens) for block in self.blocks.values()),
            bytes=len(self.blocks) * self._identity.block_bytes + len(data),
            new_bytes=self._new_bytes + len(data),
            conversations=captured.conversations,
            digest=digest_of(data),
            weights_digest=self._identity.weights_digest,
            kernel_class=self._identity.kernel_class,
            epoch=self._epoch,
            saved=saved,
        )
        self._results.put(Committed(facts, tuple(self._fresh), dropped))
        self._fresh, self._new_bytes = [], 0
        self._jobs.put(lambda: self._collect(former))  # nobody waits for it

    def _drop(self, needed: frozenset[bytes]) -> tuple[bytes, ...]:
        """Forget the segments that were used longest ago and by no running request, until the rest
        fits.
        """
        by_segment: dict[str, list[bytes]] = {}
        for block in self.blocks.values():
            by_segment.setdefault(block.segment, []).append(block.name)
        over = len(self.blocks) * self._identity.block_bytes - self._budget
        dropped: list[bytes] = []
        by_use = sorted(by_segment, key=lambda segment: self._uses.get(segment, 0))
        for names in (by_segment[segment] for segment in by_use):
            if over <= 0:
                break
            if needed.isdisjoint(names):
                over -= len(names) * self._identity.block_bytes
                dropped += names
        for name in dropped:
            del self.blocks[name], self._texts[name]
        return tuple(dropped)

    def _collect(self, former: str) -> None:
        """Remove what neither the newest manifest nor the one before it needs."""
        found = layout.parse(former)
        oldest = found[1] if found else Commit(self._epoch, 0)
        keep = self._segments_in_use.union(*self._named)
        for name in self._store.names():
            parsed = layout.parse(name)
            if parsed is None or parsed[1].epoch > self._epoch:
                continue  # not ours, or of a start that has taken over since
            kind, place = parsed
            stale = name not in keep if kind == "segment" else place < oldest
            if stale:
                self._uses.pop(name, None)
                self._store.delete(name)

    @property
    def _segments_in_use(self) -> frozenset[str]:
        return frozenset(block.segment for block in self.blocks.values())
