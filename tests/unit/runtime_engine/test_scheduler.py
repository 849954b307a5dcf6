"""The scheduler under random play: it terminates, its books balance, no wrong block is read."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sojourn_runtime.engine.prefix import BLOCK, root_name
from sojourn_runtime.engine.priority import AGED, PATIENCE, QUANTUM, SHARE, effective
from sojourn_runtime.engine.request import Finish, Progress, Request
from sojourn_runtime.engine.scheduler import Limits, Scheduler

from tests.unit.runtime_engine.fakedevice import ROOT, Device, next_token, request


@st.composite
def plays(draw: st.DrawFn) -> list[tuple[str, int, int, int]]:
    action = st.sampled_from(
        ["submit", "submit", "step", "step", "step", "cancel", "hold", "spoil"]
    )
    numbers = st.integers(0, 200)
    return draw(st.lists(st.tuples(action, numbers, numbers, numbers), min_size=1, max_size=40))


@settings(max_examples=300, deadline=None)
@given(plays(), st.integers(5, 12), st.integers(1, 5), st.integers(1, 100), st.integers(0, 12))
def test_every_request_ends_with_its_own_answer(
    play: list[tuple[str, int, int, int]], blocks: int, slots: int, chunk: int, host: int
) -> None:
    scheduler = Scheduler(Limits(blocks=blocks, slots=slots, prefill=chunk, decode=4, host=host))
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


@given(st.integers(0, 2000), st.integers(-(2**31), 2**31))
def test_nobody_rises_above_the_tier_of_its_session(tier: int, asked: int) -> None:
    assert effective(tier=tier, asked=asked) <= effective(tier=tier, asked=0) == tier


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


def test_who_waited_long_goes_before_more_important_ones_and_keeps_its_place_for_a_while() -> None:
    """Important requests come without end, and there is always one that waits."""
    scheduler = Scheduler(Limits(blocks=16, slots=1))
    device = Device(scheduler)
    low = scheduler.add(request("low", [1], answer=2 * QUANTUM), root=ROOT, priority=0)
    steps = 0
    while not low.finish:
        for number in range(2 - len([each for each in scheduler.waiting if each is not low])):
            high = request(f"high-{steps}-{number}", [2], answer=3)
            scheduler.add(high, root=ROOT, priority=1)
        before = low.total
        device.step()
        steps += 1
        if low.total > before == 1:
            assert AGED <= steps <= AGED + 3
    assert low.parks > 0
    assert 2 * AGED < steps <= 2 * (AGED + QUANTUM + 3)


def test_a_shared_beginning_is_as_important_as_the_most_important_of_its_users() -> None:
    """It goes on from where the less important one stands, and keeps what both have."""
    scheduler = Scheduler(Limits(blocks=9, slots=4, prefill=64))
    device = Device(scheduler)
    same = [1] * 2 * BLOCK
    low = scheduler.add(request("low", [*same, *[3] * 200], answer=9), root=ROOT, priority=0)
    while not low.output:
        device.step()
    before = device.computed
    high = scheduler.add(request("high", [*same, *[4] * 60], answer=30), root=ROOT, priority=2)
    device.step()
    assert high.output
    assert device.computed - before == 60
    shared = high.blocks[:2]
    assert [scheduler.pool.refs(block) for block in shared] == [2, 2]
    middle = scheduler.add(request("middle", [5] * 300), root=ROOT, priority=1)
    device.step()
    assert (low.parks, middle in scheduler.running) == (1, True)
    assert [scheduler.pool.refs(block) for block in shared] == [1, 1]
    while scheduler.waiting or scheduler.running:
        device.step()
    assert high.parks == 0
    assert device.computed == low.total - 1 + 60 + 29 + 300


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


def test_while_an_important_request_runs_the_others_get_a_small_share_of_the_steps() -> None:
    scheduler = Scheduler(Limits(blocks=64, slots=8))
    device = Device(scheduler)
    low = scheduler.add(request("low", [1] * 5, answer=500), root=ROOT, priority=1)
    device.step()
    high = scheduler.add(request("high", [2] * 5, answer=200), root=ROOT, priority=2)
    before = low.total
    steps = 0
    while high.finish is Finish.NONE:
        device.step()
        steps += 1
    assert steps == 200
    assert low.total - before in {200 // SHARE, 200 // SHARE + 1}


def test_an_important_request_whose_reader_lags_stops_nobody() -> None:
    scheduler = Scheduler(Limits(blocks=64, slots=8))
    device = Device(scheduler)
    low = scheduler.add(request("low", [1] * 5, answer=50), root=ROOT, priority=1)
    high = scheduler.add(request("high", [2] * 5, answer=50), root=ROOT, priority=2)
    device.step()
    high.held = True
    for _ in range(10):
        device.step()
    assert low.total >= 5 + 10


@dataclass
class PlainQueue:
    """A heap in front of slots, as servers have it: the best of those who wait gets a free slot."""

    slots: int
    waiting: list[Progress] = field(default_factory=list)
    running: list[Progress] = field(default_factory=list)

    def step(self) -> None:
        self.waiting.sort(key=lambda each: (-each.priority, each.arrival))
        while self.waiting and len(self.running) < self.slots:
            self.running.append(self.waiting.pop(0))
        for each in tuple(self.running):
            each.tokens.append(0)
            if len(each.output) >= each.request.params.max_tokens:
                self.running.remove(each)


@pytest.mark.parametrize("prompt", [10, 300])
def test_the_inversion_of_a_plain_priority_queue_is_reproduced_there_and_absent_here(
    prompt: int,
) -> None:
    """Long answers of low requests fill the slots; an important one comes, and a medium crowd.

    In the plain queue it waits for a low one to end; here it makes its first token at once.
    """
    scheduler = Scheduler(Limits(blocks=64, slots=4, prefill=512))
    device = Device(scheduler)
    plain = PlainQueue(slots=4)
    lows = [request(f"low-{n}", [n] * prompt, answer=150) for n in range(4)]
    medium = [request(f"medium-{n}", [5 + n] * prompt, answer=100) for n in range(6)]
    important = request("high", [60] * prompt, answer=5)
    for low in lows:
        scheduler.add(low, root=ROOT, priority=0)
        plain.waiting.append(queued(low, priority=0))
    for _ in range(10):
        device.step()
        plain.step()
    for each in medium:
        scheduler.add(each, root=ROOT, priority=1)
        plain.waiting.append(queued(each, priority=1))
    ours = scheduler.add(important, root=ROOT, priority=2)
    theirs = queued(important, priority=2)
    plain.waiting.append(theirs)
    waited_here = until_first_token(ours, device.step)
    waited_there = until_first_token(theirs, plain.step)
    assert waited_here == 1
    assert waited_there >= 150 - 10


def queued(asked: Request, *, priority: int) -> Progress:
    return Progress(asked, ROOT, priority, 0, tokens=list(asked.prompt))


def until_first_token(progress: Progress, step: Callable[[], object]) -> int:
    steps = 0
    while not progress.output:
        step()
        steps += 1
    return steps


def test_a_short_prompt_does_not_wait_for_a_long_one_of_its_tier() -> None:
    scheduler = Scheduler(Limits(blocks=64, slots=8, prefill=64))
    device = Device(scheduler)
    long = scheduler.add(request("long", [9] * 2000), root=ROOT, priority=1)
    device.step()
    short = scheduler.add(request("short", [1] * 20), root=ROOT, priority=1)
    device.step()
    assert short.finish is Finish.LENGTH
    assert long.computed == 64 + 64 - 20


def test_short_prompts_without_end_do_not_starve_a_long_one() -> None:
    scheduler = Scheduler(Limits(blocks=64, slots=8, prefill=64))
    device = Device(scheduler)
    long = scheduler.add(request("long", [9] * 500), root=ROOT, priority=1)
    steps = 0
    while long.finish is Finish.NONE:
        scheduler.add(request(f"short-{steps}", [steps % 50] * 64), root=ROOT, priority=1)
        device.step()
        steps += 1
    assert steps <= QUANTUM + 500 // 64 + 2


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
