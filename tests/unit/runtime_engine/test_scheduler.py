"""The scheduler under random play: it terminates, its books balance, no wrong block is read."""

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sojourn_runtime.engine.prefix import BLOCK, root_name
from sojourn_runtime.engine.priority import PATIENCE, QUANTUM
from sojourn_runtime.engine.request import Finish, Progress, Request, SamplingParams
from sojourn_runtime.engine.scheduler import Copy, Limits, Plan, Scheduler

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
        for move in plan.moves:
            if isinstance(move, Copy):
                self.fill(move.target, self.block(move.source))
                void, target = move.source in failed, move.target
            else:
                self.fill(move.block, self.saved[move.name])
                void, target = move.name in self.corrupt, move.block
            (failed.add if void else failed.discard)(target)
        return failed

    def step(self) -> Plan:
        plan = self.scheduler.schedule()
        self.scheduler.check()
        failed = self.move(plan)
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


@st.composite
def plays(draw: st.DrawFn) -> list[tuple[str, int, int, int]]:
    action = st.sampled_from(
        ["submit", "submit", "step", "step", "step", "cancel", "hold", "spoil"]
    )
    numbers = st.integers(0, 200)
    return draw(st.lists(st.tuples(action, numbers, numbers, numbers), min_size=1, max_size=40))


@settings(max_examples=300, deadline=None)
@given(plays(), st.integers(5, 12), st.integers(1, 5), st.integers(1, 100))
def test_every_request_ends_with_its_own_answer(
    play: list[tuple[str, int, int, int]], blocks: int, slots: int, chunk: int
) -> None:
    scheduler = Scheduler(Limits(blocks=blocks, slots=slots, prefill=chunk, decode=4))
    device = Device(scheduler)
    everybody: list[Progress] = []
    for action, a, b, c in play:
        if action == "submit":
            prompt = [1] * (a % 150) + [b % 3] * (b % 100) + [c % 5]
            asked = request(str(len(everybody)), prompt, answer=c % 50 + 1)
            everybody.append(scheduler.add(asked, root=ROOT, priority=b % 3))
        else:
            disturb(device, action, a)
    for progress in everybody:
        progress.held = False
    steps = 0
    while scheduler.waiting or scheduler.running:
        device.step()
        steps += 1
        assert steps < 60_000
    for progress in everybody:
        if progress.finish is not Finish.CANCELLED:
            assert progress.tokens == alone(progress.request)
    assert scheduler.pool.free == blocks


def disturb(device: Device, action: str, number: int) -> None:
    scheduler = device.scheduler
    alive = [*scheduler.waiting, *scheduler.running]
    if action == "cancel" and alive:
        scheduler.finish(alive[number % len(alive)], Finish.CANCELLED)
    elif action == "hold" and alive:
        alive[number % len(alive)].held ^= True
    elif action == "spoil" and device.saved:
        device.corrupt.add(sorted(device.saved)[number % len(device.saved)])
    else:
        device.step()


def alone(asked: Request) -> list[int]:
    """Prompt and answer of a request that nothing happens to."""
    tokens = list(asked.prompt)
    while len(tokens) < len(asked.prompt) + asked.params.max_tokens:
        tokens.append(next_token(tokens))
    return tokens


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4), st.integers(6, 16))
def test_an_important_request_gets_its_first_token_at_once(
    seed: int, slots: int, blocks: int
) -> None:
    """However full the device is with less important ones, none of them is waited for."""
    dice = random.Random(seed)  # noqa: S311 - a play, no secret
    scheduler = Scheduler(Limits(blocks=blocks, slots=slots, prefill=1000, decode=slots))
    device = Device(scheduler)
    for number in range(dice.randrange(1, 8)):
        low = request(str(number), [number] * dice.randrange(1, 150), answer=100)
        scheduler.add(low, root=ROOT, priority=dice.randrange(3))
    for _ in range(dice.randrange(QUANTUM)):
        device.step()
    high = scheduler.add(request("high", [9] * dice.randrange(1, 200)), root=ROOT, priority=9)
    device.step()
    assert high.finish is Finish.LENGTH


def test_equals_never_displace_one_another() -> None:
    scheduler = Scheduler(Limits(blocks=8, slots=1))
    device = Device(scheduler)
    first = scheduler.add(request("first", [1], answer=50), root=ROOT, priority=1)
    scheduler.add(request("second", [2], answer=50), root=ROOT, priority=1)
    while first.finish is Finish.NONE:
        device.step()
    assert first.parks == 0


def test_nobody_is_displaced_for_a_request_that_could_not_run_even_then() -> None:
    scheduler = Scheduler(Limits(blocks=4, slots=4))
    device = Device(scheduler)
    equal = scheduler.add(request("equal", [1] * 150, answer=9), root=ROOT, priority=5)
    low = scheduler.add(request("low", [2] * 10, answer=9), root=ROOT, priority=1)
    device.step()
    scheduler.add(request("big", [3] * 200), root=ROOT, priority=5)
    device.step()
    assert (equal.parks, low.parks) == (0, 0)


def test_a_parked_request_comes_back_before_an_unstarted_one_of_its_tier() -> None:
    scheduler = Scheduler(Limits(blocks=8, slots=1))
    device = Device(scheduler)
    parked = scheduler.add(request("parked", [1], answer=30), root=ROOT, priority=1)
    device.step()
    scheduler.add(request("new", [2], answer=30), root=ROOT, priority=1)
    high = scheduler.add(request("high", [3], answer=5), root=ROOT, priority=2)
    while high.finish is Finish.NONE:
        device.step()
    assert parked.parks == 1
    device.step()
    assert scheduler.running == [parked]


def test_a_parked_request_computes_nothing_again_while_its_blocks_are_there() -> None:
    scheduler = Scheduler(Limits(blocks=8, slots=1))
    device = Device(scheduler)
    low = scheduler.add(request("low", [1] * 100, answer=30), root=ROOT, priority=1)
    for _ in range(5):
        device.step()
    scheduler.add(request("high", [3], answer=1), root=ROOT, priority=2)
    while scheduler.waiting or scheduler.running:
        device.step()
    assert low.parks == 1
    assert device.computed == low.total - 1 + 1


def test_a_request_displaced_often_keeps_its_place_for_a_while() -> None:
    scheduler = Scheduler(Limits(blocks=8, slots=1))
    device = Device(scheduler)
    low = scheduler.add(request("low", [1], answer=500), root=ROOT, priority=1)
    for number in range(PATIENCE):
        device.step()
        scheduler.add(request(f"high-{number}", [3]), root=ROOT, priority=2)
        device.step()
        assert low.parks == number + 1
    device.step()
    high = scheduler.add(request("high", [3]), root=ROOT, priority=2)
    waited = 0
    while high.finish is Finish.NONE:
        device.step()
        waited += 1
    assert QUANTUM / 2 < waited <= QUANTUM + 1


def test_choices_of_one_prompt_compute_it_once() -> None:
    scheduler = Scheduler(Limits(blocks=32, slots=8, prefill=64))
    device = Device(scheduler)
    for number in range(4):
        scheduler.add(request(str(number), [1] * 300, answer=2), root=ROOT, priority=1)
    while scheduler.waiting or scheduler.running:
        device.step()
    assert device.computed < 300 + 4 * (BLOCK + 2)


def test_a_chat_that_returns_computes_only_what_is_new() -> None:
    scheduler = Scheduler(Limits(blocks=32))
    device = Device(scheduler)
    first = scheduler.add(request("first", [1] * 100, answer=20), root=ROOT, priority=1)
    while scheduler.running or scheduler.waiting:
        device.step()
    before = device.computed
    scheduler.add(request("next", [*first.tokens, 5, 6, 7]), root=ROOT, priority=1)
    device.step()
    assert device.computed - before == 4  # the last answer token was never computed, and three


def test_prefill_and_decode_have_budgets_of_their_own() -> None:
    scheduler = Scheduler(Limits(blocks=64, slots=8, prefill=100, decode=8))
    device = Device(scheduler)
    decoding = [
        scheduler.add(request(str(n), [n + 1], answer=50), root=ROOT, priority=1) for n in range(3)
    ]
    device.step()
    scheduler.add(request("long", [9] * 1000), root=ROOT, priority=1)
    for _ in range(10):
        before = [progress.total for progress in decoding]
        plan = device.step()
        assert [progress.total for progress in decoding] == [total + 1 for total in before]
        assert max(work.count for work in plan.work) == 100


def test_a_held_request_skips_steps_and_its_equals_may_take_its_place() -> None:
    scheduler = Scheduler(Limits(blocks=8, slots=1))
    device = Device(scheduler)
    slow = scheduler.add(request("slow", [1], answer=30), root=ROOT, priority=1)
    device.step()
    slow.held = True
    assert device.step().work == ()
    other = scheduler.add(request("other", [2], answer=3), root=ROOT, priority=1)
    device.step()
    assert scheduler.running == [other]
    slow.held = False
    while scheduler.waiting or scheduler.running:
        device.step()
    assert slow.finish is Finish.LENGTH


def test_what_the_displaced_request_computed_serves_the_one_that_displaced_it() -> None:
    """Parking names the growing block anew, between the newcomer's look and its admission."""
    scheduler = Scheduler(Limits(blocks=5, slots=1))
    device = Device(scheduler)
    scheduler.add(request("low", [1] * 9, answer=30), root=ROOT, priority=0)
    for _ in range(4):
        device.step()
    before = device.computed
    high = scheduler.add(request("high", [1] * 40), root=ROOT, priority=2)
    device.step()
    assert high.finish is Finish.LENGTH
    assert device.computed - before <= 40 - 9


def test_requests_of_different_salts_share_nothing() -> None:
    scheduler = Scheduler(Limits(blocks=32))
    device = Device(scheduler)
    for salt in ("a", "b"):
        scheduler.add(request(salt, [1] * 200), root=root_name("weights", salt), priority=1)
        device.step()
    assert device.computed == 400


def test_releasing_a_block_twice_is_refused() -> None:
    scheduler = Scheduler(Limits(blocks=2))
    block = scheduler.pool.take()
    assert block is not None
    scheduler.pool.release(block, keep=False)
    with pytest.raises(ValueError, match="more often"):
        scheduler.pool.release(block, keep=False)
    with pytest.raises(ValueError, match="nothing to share"):
        scheduler.pool.share(block)
