"""Pause, crash and resume over the toy model: what was begun ends as if nothing had happened."""

import asyncio
import json
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from sessionrig import Rig, Turnstile, ask, events, text, until
from sojourn_runtime.engine.request import Finish
from sojourn_runtime.model.protocol import Segment
from sojourn_runtime.protocol import Refused
from sojourn_runtime.stream import LEAD

NewRig = Callable[..., Rig]


async def uninterrupted(new_rig: NewRig, folder: Path, **fields: Any) -> str:
    rig = new_rig(folder)
    rig.start()
    found = await events(rig.session.submit(ask("alone", **fields)))
    rig.pause()
    return text(found)


@pytest.mark.parametrize("seed", [None, 7])
async def test_pausing_at_every_token_changes_nothing(
    new_rig: NewRig, tmp_path: Path, seed: int | None
) -> None:
    alone = await uninterrupted(new_rig, tmp_path / "alone", answer=70, seed=seed)
    rig = new_rig()
    rig.start()
    rig.session.submit(ask("one", answer=70, seed=seed))
    seen, pauses = 0, 0
    while seen < 70:
        stream = rig.session.stream("one")
        assert stream is not None
        await until(stream, min(seen + 3, 70))
        seen = len(stream.events)
        assert rig.pause()["reason"] == "Paused"
        pauses += 1
        rig.start()
        restored = rig.session.stream("one")
        assert restored is not None
        assert [e.position for e in restored.events[:seen]] == list(range(seen))
        assert text(restored.events[:seen]) == alone[:seen]
    assert pauses > 1  # how far it gets in between is the machine's affair
    found = await events(rig.session.restored()[0])
    assert text(found) == alone
    assert rig.runner.computed <= 1  # of the last session: nothing was computed twice


async def test_a_prefill_is_paused_in_the_middle_and_goes_on(
    new_rig: NewRig, tmp_path: Path
) -> None:
    prompt = [n % 60 for n in range(700)]
    alone = await uninterrupted(new_rig, tmp_path / "alone", prompt=prompt)
    rig = new_rig()
    rig.start()

    def pause_late(segments: Sequence[Segment]) -> None:
        if segments[0].start >= 256:
            rig.session.pause()

    rig.runner.before = pause_late
    rig.session.submit(ask("one", prompt=prompt))
    last = rig.end()
    assert last["snapshot"]["tokens"] == 256
    assert last["requests"] == 1
    rig.start()
    assert text(await events(rig.session.restored()[0])) == alone
    assert rig.runner.computed == 700 - 256 + 39
    resumed = rig.session.status()["resumed"]
    assert resumed["recomputedTokens"] == 0


async def test_many_requests_share_a_pause_and_find_other_blocks(
    new_rig: NewRig, tmp_path: Path
) -> None:
    def crowd() -> list[dict[str, Any]]:
        prompts = [[n] * (30 * n + 1) for n in range(6)]
        return [{"prompt": p, "answer": 90, "seed": n or None} for n, p in enumerate(prompts)]

    alone = [
        await uninterrupted(new_rig, tmp_path / f"alone-{n}", **fields)
        for n, fields in enumerate(crowd())
    ]
    rig = new_rig(slots=4)
    rig.start()
    gate = Turnstile(rig.runner)
    gate.hold(130)
    for n, fields in enumerate(crowd()):
        rig.session.submit(ask(str(n), **fields))
    gate.wait()
    rig.session.pause()
    gate.go()
    assert rig.end()["requests"] == 6
    rig.blocks = 64
    rig.start()
    found = await asyncio.gather(*[events(stream) for stream in rig.session.restored()])
    assert [text(f) for f in found] == alone


@pytest.mark.parametrize("interval", [40, 256])
async def test_after_a_crash_nothing_said_is_contradicted_and_little_is_recomputed(
    new_rig: NewRig, tmp_path: Path, interval: int
) -> None:
    alone = await uninterrupted(new_rig, tmp_path / "alone", answer=600, seed=3)
    rig = new_rig(checkpoint_tokens=interval)
    rig.start()
    gate = Turnstile(rig.runner)
    gate.hold(100)
    stream = rig.session.submit(ask("one", answer=600, seed=3))
    for number in (100, 300, 500):
        gate.wait()
        said = list(stream.events)
        copy = tmp_path / f"crashed-{number}"
        rig.killed(copy)
        gate.pass_on(number + 200)
        after = new_rig(copy)
        after.start()
        restored = after.session.restored()[0]
        assert len(said) == number - 2
        assert restored.events[: len(said)] == said
        assert text(await events(restored)) == alone
        recomputed = after.session.status()["resumed"]["recomputedTokens"]
        assert recomputed <= interval
        after.pause()
    gate.go()


async def test_a_returning_chat_finds_its_context_after_a_pause(new_rig: NewRig) -> None:
    rig = new_rig()
    rig.start()
    first = ask("one", prompt=[5] * 300, answer=30)
    said = [event.token for event in await events(rig.session.submit(first))]
    rig.session.release("one")
    rig.pause()
    rig.start()
    follow = ask("two", prompt=[*first.prompt, *said, 9, 9], answer=1)
    stream = rig.session.submit(follow)
    await events(stream)
    assert stream.cached_tokens == 300 + 29
    assert rig.runner.computed == 3


async def test_documents_survive_a_crash_and_a_pause(new_rig: NewRig, tmp_path: Path) -> None:
    rig = new_rig()
    rig.start()
    rig.session.put_document("response", "a", {"text": "ä"})
    rig.session.put_document("response", "b", {})
    rig.session.delete_document("response", "b")
    crashed = tmp_path / "crashed"
    shutil.copytree(rig.folder, crashed)
    rig.pause()
    for folder in (rig.folder, crashed):
        after = new_rig(folder)
        after.start()
        assert dict(after.session.documents("response")) == {"a": {"text": "ä"}}
        after.pause()


async def test_a_cancelled_request_stays_cancelled(new_rig: NewRig, tmp_path: Path) -> None:
    rig = new_rig()
    rig.start()
    gate = Turnstile(rig.runner)
    gate.hold(10)
    stream = rig.session.submit(ask("one", answer=1000))
    gate.wait()
    rig.session.cancel("one")
    gate.go()
    await events(stream)
    assert stream.closed == "Cancelled"
    assert len(stream.events) == 9
    shutil.copytree(rig.folder, tmp_path / "crashed")
    after = new_rig(tmp_path / "crashed")
    after.start()
    assert after.session.restored()[0].closed == "Cancelled"
    assert after.session.status()["requestsRunning"] == 0


async def test_a_slow_reader_slows_its_own_request_only(new_rig: NewRig) -> None:
    rig = new_rig()
    rig.start()
    slow = rig.session.submit(ask("slow", answer=300))
    reader = slow.reader()
    await events(rig.session.submit(ask("fast", prompt=[4], answer=300)))
    assert len(slow.events) == LEAD
    found = [event async for event in reader]
    assert len(found) == 300


async def test_stop_strings_and_end_tokens_end_the_text_before_them(new_rig: NewRig) -> None:
    rig = new_rig()
    rig.start()
    whole = text(await events(rig.session.submit(ask("whole", answer=60))))
    word = whole[20:23]
    found = await events(rig.session.submit(ask("cut", answer=60, stop=(word,))))
    assert text(found) == whole[: whole.index(word)]
    assert found[-1].finish is Finish.STOP
    assert [event.position for event in found] == list(range(len(found)))


async def test_a_restored_request_that_nobody_comes_back_for_is_given_up(
    new_rig: NewRig,
) -> None:
    rig = new_rig(grace_seconds=0.0)
    rig.start()
    gate = Turnstile(rig.runner)
    gate.hold(10)
    rig.session.submit(ask("one", answer=1000))
    rig.session.submit(ask("background", answer=900, background=True))
    gate.wait()
    rig.session.pause()
    gate.go()
    rig.end()
    rig.start()
    ends = {s.request.id: s for s in rig.session.restored()}
    assert len(await events(ends["background"])) == 900
    await events(ends["one"])
    assert ends["one"].closed == "Cancelled"
    assert rig.session.stream("one") is None


async def test_a_pause_before_the_model_is_open_leaves_the_store_alone(new_rig: NewRig) -> None:
    rig = new_rig()
    rig.start()
    await events(rig.session.submit(ask("one")))
    first = rig.pause()["snapshot"]
    before = sorted(path.name for path in rig.folder.iterdir())
    gate = threading.Event()
    rig.start(gate=gate, wait=False)
    rig.session.pause()
    last = rig.end(join=False)
    assert last["reason"] == "Paused"
    assert last["snapshot"]["manifest"] == first["manifest"]
    assert sorted(path.name for path in rig.folder.iterdir()) == before
    gate.set()


async def test_pausing_twice_is_as_good_as_once_and_requests_are_refused(new_rig: NewRig) -> None:
    rig = new_rig()
    rig.start()
    gate = Turnstile(rig.runner)
    gate.hold(10)
    rig.session.submit(ask("one", answer=1000))
    gate.wait()
    rig.session.pause()
    rig.session.pause()
    with pytest.raises(Refused, match="pausing"):
        rig.session.submit(ask("two"))
    gate.go()
    assert rig.pause()["requests"] == 1


async def test_a_pause_saves_only_what_is_not_yet_saved(new_rig: NewRig) -> None:
    rig = new_rig(padding=1 << 10, blocks=40)
    rig.start()
    gate = Turnstile(rig.runner)
    gate.hold(930)
    rig.session.submit(ask("one", prompt=[3] * 900, answer=100))
    gate.wait()
    rig.session.pause()
    gate.go()
    snapshot = rig.end()["snapshot"]
    assert snapshot["bytes"] > 14 * rig.runner.block_bytes
    assert snapshot["newBytes"] < 6 * rig.runner.block_bytes


async def test_a_session_counts_what_it_hands_to_the_model_and_what_a_resume_cost(
    new_rig: NewRig,
) -> None:
    rig = new_rig(checkpoint_tokens=1 << 16)
    rig.start()
    gate = Turnstile(rig.runner)
    gate.hold(150)
    rig.session.submit(ask("one", prompt=[3] * 100, answer=100))
    gate.wait()
    rig.session.pause()
    gate.go()
    rig.end()
    stopped = rig.session.gauges()
    given = stopped["tokens_computed_total"] + 1  # the pass that the pause has stopped
    assert stopped["effective_token_ratio"] == pytest.approx((given - 1) / given)
    assert "resumed_tokens" not in stopped
    rig.start()
    await events(rig.session.restored()[0])
    rig.pause()  # so that the last step is over, which is told before it is counted
    found = rig.session.gauges()
    assert found["resumed_tokens"] == stopped["tokens_computed_total"] + 1
    assert found["resume_seconds"] > 0
    assert found["effective_token_ratio"] == 1
    assert found["starts_total"] == stopped["starts_total"] + 1
    steps, seconds = rig.session.hand_over()
    assert sum(steps) == found["steps_total"]
    assert seconds > 0


async def test_logprobs_are_the_same_before_and_after_a_crash(
    new_rig: NewRig, tmp_path: Path
) -> None:
    rig = new_rig()
    rig.start()
    gate = Turnstile(rig.runner)
    gate.hold(20)
    stream = rig.session.submit(ask("one", answer=500, logprobs=1))
    gate.wait()
    said = list(stream.events)
    rig.killed(tmp_path / "crashed")
    gate.go()
    after = new_rig(tmp_path / "crashed")
    after.start()
    assert said[0].logprob is not None
    assert after.session.restored()[0].events[: len(said)] == said


async def test_the_termination_message_is_small_and_complete(new_rig: NewRig) -> None:
    rig = new_rig()
    rig.start()
    await events(rig.session.submit(ask("one", conversation="c")))
    words = rig.pause()
    assert len(json.dumps(words)) < 4096
    assert words["snapshot"].keys() >= {
        *("uri", "manifest", "tokens", "bytes", "newBytes", "conversations", "digest"),
        *("weightsDigest", "kernelClass", "epoch", "saved"),
    }
    assert words["snapshot"]["conversations"] == 1
    assert words["exact"] is True
