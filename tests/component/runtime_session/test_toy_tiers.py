"""Conversations that fit neither device nor host come back with their context, and equal texts."""

from collections.abc import Callable
from pathlib import Path

from sessionrig import LateToy, Rig, ToyRunner, Turnstile, ask, events, text, until

NewRig = Callable[..., Rig]

ROUNDS = 3
TALKS = 6
ORDER = (0, 1, 2, 1, 3, 4, 5, 4)
"""Some return at once, when their context is on the host still; others after everybody."""


async def talk(rig: Rig, *, name: str, prompts: dict[int, list[int]]) -> list[str]:
    """Some conversations, in turns; their texts, each prompt grown by what was said."""
    said = []
    known = dict.fromkeys(prompts, 0)
    for number, who in enumerate(ORDER * ROUNDS):
        prompt = prompts[who]
        stream = rig.session.submit(ask(f"{name}-{number}", prompt=prompt, answer=15))
        found = await events(stream)
        said.append(text(found))
        assert stream.origin.total >= known[who], f"{stream.request.id} computes again"
        prompts[who] = [*prompt, *(event.token for event in found), 1, 2, 3]
        known[who] = len(prompt) + len(found) - 1
        rig.session.release(stream.request.id)
    return said


def prompts() -> dict[int, list[int]]:
    return {who: [(who * 7 + n) % 60 for n in range(180)] for who in range(TALKS)}


async def test_conversations_four_times_the_device_lose_nothing(
    new_rig: NewRig, tmp_path: Path
) -> None:
    """Device and host hold a third of what is talked about; the rest is in the store."""
    roomy = new_rig(tmp_path / "roomy", blocks=128)
    roomy.start()
    expected = await talk(roomy, name="a", prompts=prompts())
    roomy.pause()
    rig = new_rig(tmp_path / "small", blocks=6, host=6, context_length=384, checkpoint_tokens=1024)
    rig.start()
    assert await talk(rig, name="a", prompts=prompts()) == expected
    gauges = rig.session.gauges()
    assert gauges["kv_blocks_stash_total"] > 0
    assert gauges["kv_blocks_fetch_total"] > 0
    assert gauges["kv_blocks_load_total"] > 0
    assert gauges["kv_blocks_spill_total"] > 0
    rig.pause()


async def test_what_lies_on_the_host_is_saved_by_a_pause(new_rig: NewRig, tmp_path: Path) -> None:
    folder = tmp_path / "small"
    rig = new_rig(folder, blocks=6, host=24, context_length=384, checkpoint_tokens=100_000)
    rig.start()
    histories = {}
    for who, prompt in prompts().items():
        stream = rig.session.submit(ask(f"first-{who}", prompt=prompt, answer=20))
        found = await events(stream)
        histories[who] = [*prompt, *(event.token for event in found)]
        rig.session.release(stream.request.id)
    rig.pause()
    rig.start()
    for who, history in histories.items():
        stream = rig.session.submit(ask(f"next-{who}", prompt=[*history, 1], answer=3))
        await events(stream)
        assert stream.origin.store == len(history) - 1


async def test_what_was_spoilt_in_the_store_goes_there_anew_when_it_leaves_the_host(
    new_rig: NewRig, tmp_path: Path
) -> None:
    folder = tmp_path / "small"
    rig = new_rig(folder, blocks=6, host=6, context_length=384, checkpoint_tokens=100_000)
    rig.start()
    asked = prompts()
    for who, prompt in asked.items():
        await events(rig.session.submit(ask(f"first-{who}", prompt=prompt, answer=1)))
    rig.pause()
    for segment in folder.glob("segment-*"):
        segment.write_bytes(bytes(segment.stat().st_size))
    rig.start()

    async def again(name: str) -> list[int]:
        streams = []
        for who, prompt in asked.items():
            streams.append(rig.session.submit(ask(f"{name}-{who}", prompt=prompt, answer=1)))
            await events(streams[-1])
        return [stream.origin.total for stream in streams]

    assert set(await again("second")) == {0}
    damage = rig.session.status()["damage"]
    assert damage != ""
    assert set(await again("third")) == {179}
    assert rig.session.gauges()["kv_blocks_spill_total"] > 0
    assert rig.session.status()["damage"] == damage, "no more of it was found"
    rig.pause()
    rig.start()
    assert set(await again("fourth")) == {179}
    assert rig.session.status()["damage"] == ""


async def test_a_pause_waits_for_copies_that_an_interrupted_pass_left_under_way(
    new_rig: NewRig, tmp_path: Path
) -> None:
    """A request was displaced to the host for one whose first step the pause stops."""
    roomy = new_rig(tmp_path / "roomy")
    roomy.start()
    alone = text(await events(roomy.session.submit(ask("low", prompt=[1] * 200, answer=30))))
    roomy.pause()
    rig = new_rig(
        tmp_path / "late", toy=LateToy, blocks=7, host=8, slots=1, tier=2, checkpoint_tokens=100_000
    )
    rig.start()
    gate = Turnstile(rig.runner)
    low = rig.session.submit(ask("low", prompt=[1] * 200, answer=30, priority=1))
    gate.hold(210)
    gate.wait()
    rig.session.submit(ask("high", prompt=[2] * 400, answer=1))
    gate.pass_on(235)  # where only the other one gets
    gate.wait()
    assert rig.session.gauges()["kv_blocks_stash_total"] > 0
    rig.session.pause()
    gate.go()
    assert rig.end()["reason"] == "Paused"
    rig.toy = ToyRunner
    rig.start()
    again = rig.session.stream(low.request.id)
    assert again is not None
    assert text(await events(again)) == alone


async def test_a_turn_from_the_store_is_fetched_beside_the_others_steps(
    new_rig: NewRig, tmp_path: Path
) -> None:
    rig = new_rig(tmp_path / "store", blocks=32, host=32)
    rig.start()
    prompt = prompts()[0]
    first = await events(rig.session.submit(ask("first", prompt=prompt, answer=20)))
    rig.pause()
    rig.start()
    busy = rig.session.submit(ask("busy", prompt=[9, 9], answer=300))
    await until(busy, 2)
    again = rig.session.submit(
        ask("again", prompt=[*prompt, *(event.token for event in first), 1], answer=3)
    )
    await events(again)
    assert rig.session.gauges()["kv_blocks_ahead_total"] > 0
    assert again.origin.store == len(prompt) + 19
    assert len(await events(busy)) == 300
