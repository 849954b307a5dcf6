"""Where the KV of each request lies, and what must be moved so that it can run.

Ties the device's blocks (`blocks`), the host's slots (`host`) and the names of both (`prefix`)
together; the store is the third tier, whose budget is the saver's. A block that leaves the device
goes to the host, one that leaves the host goes to the store unless it is there. Pure: moves are
values. Who may run belongs to `scheduler`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from sojourn_runtime.engine.blocks import BlockPool
from sojourn_runtime.engine.host import HostTier
from sojourn_runtime.engine.moves import Ahead, Copy, Fetch, Load, Move, Save, Spill, Stash
from sojourn_runtime.engine.prefix import BLOCK, Entry, Hit, Name, PrefixIndex, names_of
from sojourn_runtime.engine.request import Origin, Progress

RESERVE: Final = 8
"""One in so many blocks of the device is kept blank: idle conversations leave before the rush."""
LEAVING: Final = 4
"""Blocks that leave so per step: 1 ms of copying on a CPU, and more than a step can fill."""


@dataclass(slots=True)
class Residency:
    """All blocks of a device, with what the tiers behind it hold."""

    pool: BlockPool
    index: PrefixIndex
    host: HostTier
    _moves: list[Move] = field(default_factory=list)
    _ahead: list[Ahead] = field(default_factory=list)
    _coming: dict[Name, int] = field(default_factory=dict)
    """Slots that are being filled from the store."""

    def match(self, progress: Progress) -> list[Hit]:
        """What is known of a request's tokens, but for the last, which must be computed anyway."""
        progress.names = names_of(progress.root, progress.tokens, progress.names)
        return self.index.match(progress.root, progress.tokens[:-1], progress.names)

    def use(self, progress: Progress, hits: Sequence[Hit]) -> None:
        """Take over what is known: shared where a whole block agrees, a copy where a part does."""
        known = [hit.entry.block for hit in hits]
        for hit, block in zip(hits, known, strict=True):
            self.host.pin(hit.entry)  # none of them may be reused for another one here
            if block is not None:
                self.pool.share(block)
        origin = Origin()
        for hit, block in zip(hits, known, strict=True):
            _count(origin, hit, progress)
            place = block if block is not None and hit.count == BLOCK else self._fill(hit, block)
            if place is None:
                break  # only the last, partial one can find no room beside its source
            progress.blocks.append(place)
            progress.computed += hit.count
        for hit in hits:
            self.host.unpin(hit.entry)
        self.unpin(progress)
        progress.origin = progress.origin or origin

    def grow(self, progress: Progress) -> bool:
        """One block more; False if there is none."""
        block = self._take()
        if block is not None:
            progress.blocks.append(block)
        return block is not None

    def park(self, progress: Progress) -> None:
        """Let go of the blocks, but keep their content on the host at least."""
        tail = self.name_tail(progress)
        full = [self.index.get(name) for name in progress.names[: progress.computed // BLOCK]]
        self._pin(progress, [entry for entry in (*full, tail) if entry is not None])
        self.let_go(progress)

    def let_go(self, progress: Progress) -> None:
        """Release in reverse, so that the end of a sequence is reused before its beginning."""
        if progress.blocks:
            self.name_tail(progress)
        while progress.blocks:
            self._release(progress.blocks.pop())

    def unpin(self, progress: Progress) -> None:
        """It does not come back for anything any more, or is back."""
        while progress.pins:
            self.host.unpin(progress.pins.pop())

    def _pin(self, progress: Progress, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self.host.pin(entry)
            progress.pins.append(entry)

    # -- names --

    def name(self, progress: Progress, number: int) -> Entry:
        """A block that the request filled gets its name."""
        progress.names = names_of(progress.root, progress.tokens, progress.names)
        parent = progress.names[number - 1] if number else progress.root
        tokens = progress.tokens[number * BLOCK : (number + 1) * BLOCK]
        return self.index.put(progress.blocks[number], parent, tokens)

    def name_tail(self, progress: Progress) -> Entry | None:
        """Name the last, not yet full block by what it holds; it may go on growing."""
        number, count = divmod(progress.computed, BLOCK)
        if not count:
            return None
        progress.names = names_of(progress.root, progress.tokens, progress.names)
        parent = progress.names[number - 1] if number else progress.root
        tokens = progress.tokens[number * BLOCK : number * BLOCK + count]
        return self.index.put(progress.blocks[number], parent, tokens)

    # -- ahead of need --

    def ahead(self, progress: Progress, hits: Sequence[Hit], *, begin: bool) -> bool:
        """Whether something of `hits` is on its way from the store to the host.

        `begin`: what is in the store only shall set out now, as far as slots can be spared.
        """
        waits = False
        for hit in hits:
            entry = hit.entry
            if entry.block is not None or entry.host is not None:
                continue
            if begin and entry.name not in self._coming and not self._set_out(entry):
                break
            if entry.name in self._coming:
                waits = True
                if entry.name not in progress.ahead:
                    progress.ahead.add(entry.name)
                    self._pin(progress, [entry])
        return waits

    @property
    def spares(self) -> bool:
        """A slot may be had for what sets out."""
        # The other half is for those who were parked: they have nowhere else to go.
        return self.host.pinned + len(self._coming) < self.host.count // 2

    def _set_out(self, entry: Entry) -> bool:
        slot = self._slot() if self.spares else None
        if slot is None:
            return False
        self._coming[entry.name] = slot
        self._ahead.append(Ahead(entry.name, slot))
        return True

    def arrived(self, ahead: Ahead, *, whole: bool) -> None:
        """A slot is filled, or the store could not give the block."""
        del self._coming[ahead.name]
        if not whole:
            self.index.forget_saved(ahead.name)
        entry = self.index.get(ahead.name)
        if whole and entry is not None and entry.host is None:
            self.host.put(ahead.slot, entry)
        else:
            self.host.give_back(ahead.slot)

    # -- moves --

    def take_moves(self) -> tuple[tuple[Move, ...], tuple[Ahead, ...]]:
        """All that was decided since the last call."""
        moves, ahead = tuple(self._moves), tuple(self._ahead)
        self._moves, self._ahead = [], []
        return moves, ahead

    def make_room(self) -> None:
        """Conversations that are idle longest leave the device before their place is needed."""
        for block in tuple(islice(self.pool.kept(), LEAVING)):
            if self.pool.blank >= self.pool.count // RESERVE or not self.host.room:
                return
            self._leave(block)
            self.pool.drop(block)

    def lost(self, block: int) -> None:
        """The content of a block is void."""
        self.index.forget(block)
        self.pool.drop(block)

    def lost_slot(self, slot: int) -> None:
        """The content of a slot is void."""
        for entry in self.index.entries():
            if entry.host == slot:
                self.host.drop(entry)
                self.index.prune(entry)

    def _fill(self, hit: Hit, source: int | None) -> int | None:
        """A block of its own, filled from `source`, from the host or from the store."""
        whole = hit.count == len(hit.entry.tokens)
        if source is not None and whole and self.pool.refs(source) == 1:
            return source  # nobody else uses it: it grows on where it is
        target = self._take()
        if source is not None:
            self._release(source)
        if target is None:
            return None
        entry = hit.entry
        if source is not None:
            self._moves.append(Copy(source, target))
            return target
        if entry.host is not None:
            self._moves.append(Fetch(entry.host, target))
        else:
            self._moves.append(Load(entry.name, target))
        if hit.count == BLOCK:
            self.index.put(target, entry.parent, entry.tokens)
        return target

    def _take(self) -> int | None:
        block = self.pool.take()
        if block is not None:
            self._leave(block)
        return block

    def _leave(self, block: int) -> None:
        """The block gets another content: the next tier takes the one that it has."""
        entry = self.index.at(block)
        if entry is not None and entry.host is None:
            slot = self._slot()
            if slot is not None:
                self._moves.append(Stash(block, slot))
                self.host.put(slot, entry)
            elif not entry.saved:
                entry.saved = True
                self._moves.append(Save(entry.name, block))
        self.index.forget(block)

    def _slot(self) -> int | None:
        """A slot of the host; what it held is in the store, or goes there."""
        found = self.host.take()
        if found is None:
            return None
        slot, former = found
        if former is not None:
            if not former.saved and former.block is None:
                former.saved = True
                self._moves.append(Spill(former.name, slot))
            former.host = None
            self.index.prune(former)
        return slot

    def _release(self, block: int) -> None:
        self.pool.release(block, keep=self.index.keeps(block))

    def check(self, used: Iterable[int]) -> None:
        """Raises when the books of the tiers do not balance."""
        self.pool.check(used)
        self.index.check()
        self.host.check(entries=self.index.entries(), coming=self._coming.values())


def _count(origin: Origin, hit: Hit, progress: Progress) -> None:
    if hit.entry.block is not None:
        origin.device += hit.count
    elif hit.entry.host is not None and hit.entry.name not in progress.ahead:
        origin.host += hit.count
    else:
        origin.store += hit.count
