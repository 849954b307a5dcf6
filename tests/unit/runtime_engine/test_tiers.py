"""Device, host and store: what leaves one is found in the next, and nobody computes it again."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from sojourn_runtime.engine.moves import Fetch, Load, Save, Spill, Stash
from sojourn_runtime.engine.prefix import BLOCK, SIBLINGS
from sojourn_runtime.engine.request import Finish, Progress
from sojourn_runtime.engine.scheduler import Limits, Scheduler

from tests.unit.runtime_engine.fakedevice import ROOT, Device, request


def device(*, blocks: int, host: int, slots: int = 4, prefill: int = 256) -> Device:
    return Device(Scheduler(Limits(blocks=blocks, slots=slots, prefill=prefill, host=host)))


def ask(
    played: Device, name: str, prompt: list[int], *, answer: int = 1, priority: int = 1
) -> Progress:
    asked = request(name, prompt, answer=answer)
    return played.scheduler.add(asked, root=ROOT, priority=priority)


def run(played: Device, *wanted: Progress) -> None:
    while any(progress.finish is Finish.NONE for progress in wanted):
        played.step()


def turn(played: Device, history: Sequence[int], number: int) -> Progress:
    """One more question in a conversation, to its answer."""
    progress = ask(played, f"turn-{number}", [*history, number % 7, 5], answer=9)
    run(played, progress)
    return progress


def test_a_conversation_that_left_the_device_comes_back_from_the_host() -> None:
    played = device(blocks=8, host=32)
    first = turn(played, [1] * 200, 0)
    turn(played, [2] * 300, 1)
    before = played.computed
    again = turn(played, first.tokens, 2)
    assert again.origin is not None
    assert again.origin.host > 0
    assert again.origin.total == len(first.tokens) - 1  # the last token was never computed
    assert played.computed - before == 1 + 2 + 8


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=6, max_size=24), st.integers(6, 12), st.integers(0, 12))
def test_returning_turns_compute_only_what_is_new_however_small_the_tiers(
    who: list[int], blocks: int, host: int
) -> None:
    """Six conversations take turns; device and host together hold two of them."""
    played = device(blocks=blocks, host=host)
    histories = {number: [number] * 90 for number in range(6)}
    known: set[int] = set()
    for number, conversation in enumerate(who):
        history = histories[conversation]
        made = turn(played, history, number)
        assert made.origin is not None
        if conversation in known:
            assert made.origin.total >= len(history) - 1
        known.add(conversation)
        histories[conversation] = made.tokens
        if len(made.tokens) > 250:
            histories[conversation], known = [conversation] * 90, known - {conversation}


def test_idle_conversations_leave_the_device_before_their_place_is_needed() -> None:
    played = device(blocks=16, host=16)
    for number in range(4):
        turn(played, [number] * 250, number)
    played.step()
    assert played.scheduler.pool.blank >= 2  # an eighth of the device
    assert any(isinstance(move, Stash) for move in played.made)


def test_without_host_memory_blocks_go_straight_to_the_store() -> None:
    played = device(blocks=8, host=0)
    first = turn(played, [1] * 200, 0)
    turn(played, [2] * 450, 1)
    again = turn(played, first.tokens, 2)
    assert again.origin is not None
    assert again.origin.store == len(first.tokens) - 1
    kinds = {type(move) for move in played.made}
    assert {Load, Save} <= kinds
    assert not kinds & {Stash, Fetch}


def test_a_parked_request_finds_its_context_on_the_host_whatever_came_between() -> None:
    """Its growing block as well, which the store does not have."""
    played = device(blocks=8, host=8, slots=1)
    low = ask(played, "low", [1] * 100, answer=30)
    for _ in range(5):
        played.step()
    for number in range(6):
        run(played, ask(played, f"high-{number}", [2 + number] * 400, priority=2))
    run(played, low)
    assert low.parks >= 1
    assert played.computed == 6 * 400 + low.total - 1


def test_what_parked_requests_will_need_is_not_dropped_for_others() -> None:
    played = device(blocks=8, host=4, slots=1)
    low = ask(played, "low", [1] * 200, answer=30)
    for _ in range(3):
        played.step()
    run(played, ask(played, "high", [2] * 450, priority=2))
    run(played, *(ask(played, f"h{n}", [3 + n] * 450, priority=2) for n in range(3)))
    run(played, low)
    assert played.computed == 4 * 450 + low.total - 1


def test_what_leaves_the_host_unsaved_goes_to_the_store() -> None:
    played = device(blocks=6, host=2)
    first = turn(played, [1] * 70, 0)
    for number in range(1, 4):
        turn(played, [number + 1] * 300, number)
    assert any(isinstance(move, Spill) for move in played.made)
    again = turn(played, first.tokens, 9)
    assert again.origin is not None
    assert again.origin.store > 0
    assert again.origin.total == len(first.tokens) - 1


def test_a_request_whose_context_is_in_the_store_keeps_no_equal_waiting() -> None:
    """Its blocks are read beside the others' steps, and it joins when they are there."""
    played = device(blocks=32, host=16)
    history = stored(played, [1] * 500)
    busy = ask(played, "busy", [9] * 10, answer=40)
    played.step()
    back = ask(played, "back", [*history, 3, 3])
    before = busy.total
    played.step()
    assert busy.total == before + 1
    assert back not in played.scheduler.running
    assert played.under_way
    run(played, back)
    assert not any(isinstance(move, Load) for move in played.made)
    assert back.origin is not None
    assert (back.origin.store, back.origin.host) == (len(history), 0)


def test_an_important_request_takes_the_straight_way_from_the_store() -> None:
    played = device(blocks=32, host=16)
    history = stored(played, [1] * 500)
    ask(played, "busy", [9] * 10, answer=40)
    played.step()
    back = ask(played, "back", [*history, 3, 3], priority=2)
    played.step()
    assert back.finish is Finish.LENGTH
    assert back.origin is not None
    assert back.origin.store == len(history)


def test_who_waits_for_a_place_finds_its_context_on_the_host_when_its_turn_comes() -> None:
    played = device(blocks=16, host=20, slots=1)
    history = stored(played, [1] * 300)
    first = ask(played, "first", [9] * 10, answer=20)
    played.step()
    ask(played, "second", [8] * 10, answer=1)
    back = ask(played, "back", [*history, 3, 3])
    run(played, first)
    host = played.scheduler.residency.host
    assert host.pinned == len(history) // BLOCK + 1
    run(played, back)
    assert host.pinned == 0
    assert not any(isinstance(move, Load) for move in played.made)


def test_many_contexts_set_out_while_the_first_of_them_is_awaited() -> None:
    """Half of the slots, which is two contexts at a time, and not one after the other."""
    played = device(blocks=64, host=8, slots=16)
    histories = [stored(played, [number] * 100) for number in range(12)]
    busy = ask(played, "busy", [12] * 10, answer=40)
    played.step()
    for number, history in enumerate(histories):
        ask(played, f"back-{number}", [*history, 3], answer=40)
    before = busy.total
    while len(played.scheduler.running) < 13:
        played.step()
    assert busy.total - before == 1 + 12 // 2
    assert not any(isinstance(move, Load) for move in played.made)


def test_a_request_finds_all_that_it_had_however_many_others_begin_where_it_ends() -> None:
    played = device(blocks=8, host=0)
    histories = [stored(played, [number] * 20) for number in range(2 * SIBLINGS)]
    back = ask(played, "back", [*histories[0], 3])
    run(played, back)
    assert back.origin is not None
    assert back.origin.store == len(histories[0])


def test_a_block_that_the_store_cannot_give_is_computed_again() -> None:
    played = device(blocks=32, host=16)
    history = stored(played, [1] * 300)
    busy = ask(played, "busy", [9] * 10, answer=40)
    played.step()
    played.corrupt |= set(list(played.saved)[:2])
    back = ask(played, "back", [*history, 3, 3], answer=5)
    run(played, back, busy)
    assert back.origin is not None
    assert back.origin.total < len(history)


def test_a_cancelled_request_gives_its_pins_back() -> None:
    played = device(blocks=8, host=8, slots=1)
    low = ask(played, "low", [1] * 200, answer=30)
    for _ in range(3):
        played.step()
    high = ask(played, "high", [2] * 450, answer=9, priority=2)
    played.step()
    assert low.pins
    played.scheduler.finish(low, Finish.CANCELLED)
    assert played.scheduler.residency.host.pinned == 0
    run(played, high)


def stored(played: Device, tokens: list[int]) -> list[int]:
    """Tokens whose KV is in the store, and nowhere else."""
    elsewhere = device(blocks=32, host=0)
    run(elsewhere, ask(elsewhere, "before", [*tokens, 0]))
    elsewhere.scheduler.name_tails()
    for entry in elsewhere.scheduler.index.on_device():
        assert entry.block is not None
        played.saved[entry.name] = elsewhere.block(entry.block)
        played.scheduler.index.add_saved(entry.parent, entry.tokens)
    return [*tokens, 0]
