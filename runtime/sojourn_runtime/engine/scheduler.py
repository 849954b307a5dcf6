"""Which requests compute which tokens in the next step, and in which blocks.

One rule: every request knows `total` tokens and has `computed` some, and each step lets the second
catch up with the first. That is chunked prefill, a prefix hit, decode and a resume alike. Pure: no
arrays, no clock, no I/O; a plan is a value, and the session carries it out.
"""

from bisect import insort
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from sojourn_runtime.engine.blocks import BlockPool
from sojourn_runtime.engine.host import HostTier
from sojourn_runtime.engine.moves import Ahead, Move
from sojourn_runtime.engine.prefix import BLOCK, Entry, Hit, Name, PrefixIndex, names_of
from sojourn_runtime.engine.priority import SHARE, displaceable, displaced, queue_order, rank, turn
from sojourn_runtime.engine.request import Finish, Progress, Request
from sojourn_runtime.engine.residency import Residency


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
    host: int = 0
    """Blocks that host memory may hold beside the device's."""


@dataclass(slots=True)
class Work:
    """`count` tokens of a request from `start` on; the last one's logits if `samples`.

    Not frozen: one is made per request and step, and freezing would double the price.
    """

    progress: Progress
    start: int
    count: int

    @property
    def samples(self) -> bool:
        return self.start + self.count == self.progress.total


@dataclass(frozen=True, slots=True)
class Plan:
    """One step. The moves come first and in order: a later one may overwrite an earlier source."""

    work: tuple[Work, ...]
    moves: tuple[Move, ...]
    ahead: tuple[Ahead, ...] = ()
    """To be begun after the moves, beside the work; the scheduler is told when they are done."""


@dataclass(slots=True)
class Scheduler:
    """All requests that are not finished, and the blocks they use."""

    limits: Limits
    waiting: list[Progress] = field(default_factory=list)
    running: list[Progress] = field(default_factory=list)
    """By rank."""
    residency: Residency = field(init=False)
    parked: int = 0
    """How often a request was displaced."""
    _arrivals: int = 0
    _steps: int = 0

    def __post_init__(self) -> None:
        self.residency = Residency(
            BlockPool(self.limits.blocks), PrefixIndex(), HostTier(self.limits.host)
        )

    @property
    def pool(self) -> BlockPool:
        return self.residency.pool

    @property
    def index(self) -> PrefixIndex:
        return self.residency.index

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
        self._steps += 1
        least = self._least_important()
        for progress in self._in_turn():
            progress.ran += 1
            start = progress.computed
            missing = len(progress.tokens) - start
            count = min(missing, prefill if missing > 1 else decode)
            if progress.priority < least or progress.held or count == 0:
                continue
            end = start + count
            if end > len(progress.blocks) * BLOCK and not self._grow(progress, end):
                continue
            if missing > 1:
                prefill -= count
            else:
                decode -= 1
            work.append(Work(progress, start, count))
        self.residency.make_room()
        # who grew later may have parked one whose work was planned
        kept = tuple(each for each in work if each.progress.blocks)
        return Plan(kept, *self.residency.take_moves())

    def _in_turn(self) -> list[Progress]:
        """Those who run, as the step serves them: by rank, unless somebody has a prompt left."""
        if any(len(each.tokens) - each.computed > 1 for each in self.running):
            return sorted(self.running, key=turn)
        return self.running.copy()

    def _least_important(self) -> int:
        """Who is less important than this skips the step: those above it need all of it."""
        awake = [progress.priority for progress in self.running if not progress.held]
        return (min if self._steps % SHARE == 0 else max)(awake, default=0)

    def commit(self, work: Work, token: int | None = None) -> list[Entry]:
        """The work is done, and sampled `token` if it was to; blocks that it filled, named."""
        progress = work.progress
        before, progress.computed = progress.computed, work.start + work.count
        if token is not None:
            progress.tokens.append(token)
        full = range(before // BLOCK, progress.computed // BLOCK)
        filled = [self.residency.name(progress, number) for number in full] if full else []
        if before < len(progress.request.prompt) <= progress.computed:
            self.residency.name_tail(
                progress
            )  # from here on the other choices of this prompt can copy it
        return filled

    def finish(self, progress: Progress, why: Finish) -> None:
        """The request is over; its blocks stay known until they are needed."""
        progress.finish = why
        (self.running if progress in self.running else self.waiting).remove(progress)
        self.residency.let_go(progress)
        self.residency.unpin(progress)

    def lost(self, block: int) -> None:
        """A move failed, the block's content is void: whoever counted on it computes it again."""
        self.residency.lost(block)
        for progress in self.running:
            if block in progress.blocks:
                start = progress.blocks.index(block) * BLOCK
                progress.computed = min(progress.computed, start)
                if progress.origin is not None:
                    progress.origin.cut(start)

    # -- admission --

    def _admit(self) -> None:
        blocked: list[int] = []
        for progress in sorted(self.waiting, key=queue_order):
            progress.waited += 1
            if any(progress.priority <= other for other in blocked):
                # it stands behind one that finds no room, and is not more important
                self._look_ahead(progress)
                continue
            if progress.held or self._computed_by_another(progress):
                continue
            if not self._try(progress):
                blocked.append(progress.priority)

    def _look_ahead(self, progress: Progress) -> None:
        """What it will need of the store sets out while it waits for its turn."""
        if not progress.looked and self.residency.spares:
            self.residency.ahead(progress, self.residency.match(progress), begin=True)
            progress.looked = self.residency.spares  # else some of it may have no slot yet

    def _try(self, progress: Progress) -> bool:
        hits = self.residency.match(progress)
        # Where nobody is kept waiting, the straight way from the store is the faster one.
        others = any(o.priority >= progress.priority and not o.held for o in self.running)
        if self.residency.ahead(progress, hits, begin=others):
            return False
        victims = self._victims(progress, hits)
        if victims is None:
            return False
        for victim in victims:
            self._park(victim)
        if victims:  # parking names what they computed last, under which it is found now
            hits = self.residency.match(progress)
        self.waiting.remove(progress)
        insort(self.running, progress, key=rank)
        progress.parks = displaced(progress)
        progress.started, progress.ran, progress.waited = True, 0, 0
        self.residency.use(progress, hits)
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

    def _grow(self, progress: Progress, tokens: int) -> bool:
        """Blocks for so many tokens, at the expense of who comes behind it; else it parks."""
        if progress not in self.running:
            return False
        while len(progress.blocks) < _blocks(tokens):
            if self.residency.grow(progress):
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
        self.residency.park(progress)
        self.running.remove(progress)
        self.waiting.append(progress)
        progress.computed, progress.parks, progress.waited = 0, progress.parks + 1, 0
        self.parked += 1

    def name_tails(self) -> None:
        """Name the growing blocks of all who run by what they hold now, so that they are saved."""
        for progress in self.running:
            self.residency.name_tail(progress)

    def check(self) -> None:
        """Raises when the books do not balance; tests call it after every step."""
        self.residency.check(block for progress in self.running for block in progress.blocks)
        for progress in self.waiting:
            if progress.blocks or progress.computed:
                raise AssertionError(f"{progress.id} waits and holds blocks")
        for progress in self.running:
            if not progress.computed <= min(progress.total, len(progress.blocks) * BLOCK):
                raise AssertionError(f"{progress.id} computed more than it has room for")
        if len(self.running) > self.limits.slots or self.running != sorted(self.running, key=rank):
            raise AssertionError("more requests run than there are slots, or not by rank")


def _blocks(tokens: int) -> int:
    """Blocks that hold so many tokens."""
    return -(-tokens // BLOCK)
