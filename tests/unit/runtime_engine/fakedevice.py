"""A fake device that knows which tokens led to each slot of each block, and checks every read."""

from dataclasses import dataclass, field

from sojourn_runtime.engine.moves import Ahead, Copy, Fetch, Load, Move, Save, Spill, Stash
from sojourn_runtime.engine.prefix import BLOCK, root_name
from sojourn_runtime.engine.request import Finish, Progress, Request, SamplingParams
from sojourn_runtime.engine.scheduler import Plan, Scheduler

ROOT = root_name("weights", "class")


def request(name: str, prompt: list[int], *, answer: int = 1, priority: int = 0) -> Request:
    params = SamplingParams(max_tokens=answer)
    return Request(id=name, prompt=tuple(prompt), params=params, priority=priority)


def next_token(tokens: list[int]) -> int:
    """A function of all tokens before, as a model's choice is."""
    return (sum(tokens) * 31 + len(tokens)) % 7


@dataclass
class Device:
    """A fake device: remembers which tokens led to each slot of each block, and checks reads."""

    scheduler: Scheduler
    slots: dict[tuple[int, int], int] = field(default_factory=dict)
    saved: dict[bytes, list[int | None]] = field(default_factory=dict)
    host: dict[int, list[int | None]] = field(default_factory=dict)
    under_way: list[Ahead] = field(default_factory=list)
    made: list[Move] = field(default_factory=list)
    computed: int = 0
    corrupt: set[bytes] = field(default_factory=set)

    def block(self, number: int) -> list[int | None]:
        return [self.slots.get((number, slot)) for slot in range(BLOCK)]

    def fill(self, number: int, content: list[int | None]) -> None:
        for slot, value in enumerate(content):
            self.slots.pop((number, slot), None)
            if value is not None:
                self.slots[number, slot] = value

    def move(self, plan: Plan) -> set[int]:
        failed: set[int] = set()
        slots: set[int] = set()
        for move in plan.moves:
            self.made.append(move)
            match move:
                case Copy(source, target):
                    self.fill(target, self.block(source))
                    void = source in failed
                case Load(name, target):
                    self.fill(target, self.saved[name])
                    void = name in self.corrupt
                case Stash(source, slot):
                    self.host[slot] = self.block(source)
                    (slots.add if source in failed else slots.discard)(slot)
                    continue
                case Fetch(slot, target):
                    self.fill(target, self.host[slot])
                    void = slot in slots
                case Spill(name, slot):
                    self.save(name, self.host[slot], void=slot in slots)
                    continue
                case Save(name, block):
                    self.save(name, self.block(block), void=block in failed)
                    continue
            (failed.add if void else failed.discard)(target)
        for slot in slots:
            self.scheduler.residency.lost_slot(slot)
        return failed

    def save(self, name: bytes, content: list[int | None], *, void: bool) -> None:
        self.saved[name] = content
        (self.corrupt.add if void else self.corrupt.discard)(name)

    def receive(self) -> None:
        """The store answers for what set out in the step before."""
        for ahead in self.under_way:
            self.host[ahead.slot] = self.saved[ahead.name]
            self.scheduler.residency.arrived(ahead, whole=ahead.name not in self.corrupt)
        self.under_way = []

    def step(self) -> Plan:
        self.receive()
        plan = self.scheduler.schedule()
        self.scheduler.check()
        failed = self.move(plan)
        self.under_way += plan.ahead
        if failed:
            for name in self.corrupt:
                self.scheduler.index.forget_saved(name)
            for block in failed:
                self.fill(block, [None] * BLOCK)
                self.scheduler.lost(block)
            self.scheduler.check()
            return self.step()
        for work in plan.work:
            self.compute(work.progress, work.start, work.count)
        for work in plan.work:
            progress = work.progress
            token = next_token(progress.tokens) if work.samples else None
            for entry in self.scheduler.commit(work, token):
                assert entry.block is not None
                self.saved[entry.name] = self.block(entry.block)
                self.scheduler.index.add_saved(entry.parent, entry.tokens)
            if len(progress.output) >= progress.request.params.max_tokens:
                self.scheduler.finish(progress, Finish.LENGTH)
        self.scheduler.check()
        return plan

    def compute(self, progress: Progress, start: int, count: int) -> None:
        for position in range(start + count):
            slot = (progress.blocks[position // BLOCK], position % BLOCK)
            led = hash(tuple(progress.tokens[: position + 1]))
            if position < start:
                assert self.slots.get(slot) == led, f"{progress.id} reads a wrong {position}"
            else:
                self.slots[slot] = led
        self.computed += count
