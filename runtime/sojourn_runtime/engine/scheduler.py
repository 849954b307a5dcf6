"""Which requests compute which tokens in the next step, and in which blocks.

One rule: every request knows `total` tokens and has `computed` some, and each step lets the second
catch up with the first. That is chunked prefill, a prefix hit, decode and a resume alike. Pure: no
arrays, no clock, no I/O; a plan is a value, and the session carries it out.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from sojourn_runtime.engine.blocks import BlockPool
from sojourn_runtime.engine.prefix import BLOCK, Entry, Hit, Name, PrefixIndex, names_of
from sojourn_runtime.engine.priority import displaceable, queue_order, rank
from sojourn_runtime.engine.request import Finish, Progress, Request


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes that never change while the session lives."""

    blocks: int
    slots: int = 32
    """Requests that run at a time."""
    prefill: int = 256
    """Tokens of prompts per step: bounds how long a step keeps the others' decode waiting."""
    decode: int = 32
    """Requests that get a next token per step."""


@dataclass(frozen=True, slots=True)
class Work:
    """`count` tokens of a request from `start` on; the last one's logits if `samples`."""

    progress: Progress
    start: int
    count: int

    @property
    def samples(self) -> bool:
        return self.start + self.count == self.progress.total


@dataclass(frozen=True, slots=True)
class Load:
    """Fill a block from the store."""

    name: Name
    block: int


@dataclass(frozen=True, slots=True)
class Copy:
    """Fill a block from another one."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Plan:
    """One step. The moves come first and in order: a later one may overwrite an earlier source."""

    work: tuple[Work, ...]
    moves: tuple[Load | Copy, ...]


@dataclass(slots=True)
class Scheduler:
    """All requests that are not finished, and the blocks they use."""

    limits: Limits
    waiting: list[Progress] = field(default_factory=list)
    running: list[Progress] = field(default_factory=list)
    pool: BlockPool = field(init=False)
    index: PrefixIndex = field(init=False)
    _moves: list[Load | Copy] = field(default_factory=list)
    _arrivals: int = 0

    def __post_init__(self) -> None:
        self.pool = BlockPool(self.limits.blocks)
        self.index = PrefixIndex(self.pool)

    def fits(self, tokens: int) -> bool:
        """Whether a request may grow to so many tokens: alone on the device it must find room."""
        return _blocks(tokens) <= self.limits.blocks

    def add(
        self, request: Request, *, root: Name, priority: int, output: Sequence[int] = ()
    ) -> Progress:
        """Queue a request, new or with the output it had before a pause."""
        progress = Progress(
            request=request,
            root=root,
            priority=priority,
            arrival=self._arrivals,
            tokens=[*request.prompt, *output],
            started=bool(output),
        )
        self._arrivals += 1
        self.waiting.append(progress)
        return progress

    def schedule(self) -> Plan:
        """The next step; nothing of it counts as computed before `commit`."""
        self._admit()
        prefill, decode = self.limits.prefill, self.limits.decode
        work = []
        for progress in sorted(self.running, key=rank):
            missing = progress.total - progress.computed
            count = min(missing, prefill) if missing > 1 else min(missing, decode)
            if progress.held or count == 0 or not self._grow(progress, progress.computed + count):
                continue
            prefill, decode = (prefill - count, decode) if missing > 1 else (prefill, decode - 1)
            work.append(Work(progress, progress.computed, count))
        moves, self._moves = tuple(self._moves), []
        return Plan(tuple(work), moves)

    def commit(self, work: Work, token: int | None = None) -> list[Entry]:
        """The work is done, and sampled `token` if it was to; blocks that it filled, named."""
        progress = work.progress
        before, progress.computed = progress.computed, work.start + work.count
        if token is not None:
            progress.tokens.append(token)
        filled = [
            self._name(progress, number)
            for number in range(before // BLOCK, progress.computed // BLOCK)
        ]
        if before < len(progress.request.prompt) <= progress.computed:
            self._name_tail(progress)  # from here on the other choices of this prompt can copy it
        return filled

    def finish(self, progress: Progress, why: Finish) -> None:
        """The request is over; its blocks stay known until they are needed."""
        progress.finish = why
        (self.running if progress in self.running else self.waiting).remove(progress)
        self._let_go(progress)

    def lost(self, block: int) -> None:
        """A move failed, the block's content is void: whoever counted on it computes it again."""
        self.index.forget(block)
        self.pool.drop(block)
        for progress in self.running:
            if block in progress.blocks:
                start = progress.blocks.index(block) * BLOCK
                progress.computed = min(progress.computed, start)

    # -- admission --

    def _admit(self) -> None:
        for progress in self.running:
            progress.ran += 1
        blocked: list[int] = []
        for progress in sorted(self.waiting, key=queue_order):
            progress.waited += 1
            if any(progress.priority <= other for other in blocked):
                continue  # it stands behind one that finds no room, and is not more important
            if progress.held or self._computed_by_another(progress):
                continue
            if not self._try(progress):
                blocked.append(progress.priority)
        for progress in self.running:
            progress.waited = 0

    def _try(self, progress: Progress) -> bool:
        hits = self.index.match(progress.root, progress.tokens[:-1])
        victims = self._victims(progress, hits)
        if victims is None:
            return False
        for victim in victims:
            self._park(victim)
        if victims:  # parking names what they computed last, under which it is found now
            hits = self.index.match(progress.root, progress.tokens[:-1])
        self.waiting.remove(progress)
        self.running.append(progress)
        progress.started, progress.ran = True, 0
        self._use(progress, hits)
        return True

    def _victims(self, progress: Progress, hits: Sequence[Hit]) -> list[Progress] | None:
        """Whom to park so that it runs: nobody, if possible; None if that would not help.

        Room is counted for all tokens known, so that who is admitted also gets to sample.
        """
        shared = [hit.entry.block for hit in hits if hit.count == BLOCK]
        kept = {block for block in shared if block is not None}
        slots = self.limits.slots - len(self.running)
        free = self.pool.free - sum(self.pool.refs(block) == 0 for block in kept)
        need = _blocks(progress.total) - len(kept)
        # Headroom: the next block of each runner that the newcomer could not push aside.
        headroom = sum(o.priority >= progress.priority and not o.held for o in self.running)
        if slots > 0 and free >= need + headroom:
            return []
        victims: list[Progress] = []
        uses: Counter[int] = Counter()
        for victim in sorted(self.running, key=rank, reverse=True):
            if slots > 0 and free >= need:
                break
            if not displaceable(victim, by=progress):
                continue
            victims.append(victim)
            slots += 1
            for block in victim.blocks:
                uses[block] += 1
                free += block not in kept and uses[block] == self.pool.refs(block)
        return victims if victims and slots > 0 and free >= need else None

    def _computed_by_another(self, progress: Progress) -> bool:
        """The block it would compute first is on its way: waiting a little saves the work."""
        if progress.started or len(progress.tokens) <= BLOCK:
            return False
        progress.names = names_of(progress.root, progress.tokens, progress.names)
        known = (self.index.get(name) for name in progress.names)
        first = next((n for n, entry in enumerate(known) if entry is None), None)
        return first is not None and any(
            other.priority >= progress.priority
            and not other.held
            and other.names[first : first + 1] == progress.names[first : first + 1]
            and other.computed < (first + 1) * BLOCK
            for other in self.running
        )

    # -- blocks --

    def _use(self, progress: Progress, hits: Sequence[Hit]) -> None:
        """Take over what is known: shared where a whole block agrees, a copy where a part does."""
        known = [hit.entry.block for hit in hits]
        for block in known:
            if block is not None:
                self.pool.share(block)  # all of them before the first is taken: none may be reused
        for hit, block in zip(hits, known, strict=True):
            place = block if block is not None and hit.count == BLOCK else self._fill(hit, block)
            if place is None:
                return  # only the last, partial one can find no room beside its source
            progress.blocks.append(place)
            progress.computed += hit.count

    def _fill(self, hit: Hit, source: int | None) -> int | None:
        """A block of its own, filled from `source` or from the store."""
        target = self._take()
        if source is not None:
            self._release(source)
        if target is None:
            return None
        if source is not None:
            self._moves.append(Copy(source, target))
        else:
            self._moves.append(Load(hit.entry.name, target))
            if hit.count == BLOCK:
                self.index.put(target, hit.entry.parent, hit.entry.tokens)
        return target

    def _grow(self, progress: Progress, tokens: int) -> bool:
        """Blocks for so many tokens, at the expense of who comes behind it; else it parks."""
        if progress not in self.running:
            return False
        while len(progress.blocks) < _blocks(tokens):
            block = self._take()
            if block is not None:
                progress.blocks.append(block)
                continue
            last = self._last(progress)
            self._park(last)
            if last is progress:
                return False
        return True

    def _last(self, progress: Progress) -> Progress:
        """Who gives way when `progress` needs a block: itself, if nobody comes behind it."""
        behind = [
            other
            for other in self.running
            if other.priority <= progress.priority and (other.held or rank(other) >= rank(progress))
        ]
        return max(behind, key=lambda other: (other.held, rank(other)))

    def _park(self, progress: Progress) -> None:
        self._let_go(progress)
        self.running.remove(progress)
        self.waiting.append(progress)
        progress.computed, progress.parks, progress.waited = 0, progress.parks + 1, 0

    def _let_go(self, progress: Progress) -> None:
        """Release in reverse, so that the end of a sequence is reused before its beginning."""
        if progress.blocks:
            self._name_tail(progress)
        while progress.blocks:
            self._release(progress.blocks.pop())

    def _take(self) -> int | None:
        block = self.pool.take()
        if block is not None:
            self.index.forget(block)
        return block

    def _release(self, block: int) -> None:
        self.pool.release(block, keep=self.index.keeps(block))

    def _name(self, progress: Progress, number: int) -> Entry:
        progress.names = names_of(progress.root, progress.tokens, progress.names)
        parent = progress.names[number - 1] if number else progress.root
        tokens = progress.tokens[number * BLOCK : (number + 1) * BLOCK]
        return self.index.put(progress.blocks[number], parent, tokens)

    def _name_tail(self, progress: Progress) -> None:
        """Name the last, not yet full block by what it holds; it may go on growing."""
        number, count = divmod(progress.computed, BLOCK)
        if count:
            progress.names = names_of(progress.root, progress.tokens, progress.names)
            parent = progress.names[number - 1] if number else progress.root
            tokens = progress.tokens[number * BLOCK : number * BLOCK + count]
            self.index.put(progress.blocks[number], parent, tokens)

    def name_tails(self) -> None:
        """Name the growing blocks of all who run by what they hold now, so that they are saved."""
        for progress in self.running:
            self._name_tail(progress)

    def check(self) -> None:
        """Raises when the books do not balance; tests call it after every step."""
        self.pool.check(block for progress in self.running for block in progress.blocks)
        self.index.check()
        for progress in self.waiting:
            if progress.blocks or progress.computed:
                raise AssertionError(f"{progress.id} waits and holds blocks")
        for progress in self.running:
            if not progress.computed <= min(progress.total, len(progress.blocks) * BLOCK):
                raise AssertionError(f"{progress.id} computed more than it has room for")
        if len(self.running) > self.limits.slots:
            raise AssertionError("more requests run than there are slots")


def _blocks(tokens: int) -> int:
    """Blocks that hold so many tokens."""
    return -(-tokens // BLOCK)
