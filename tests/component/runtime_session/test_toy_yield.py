"""Two sessions on one GPU: the higher tier's request stops the lower one at its next token."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sessionrig import Rig, Turnstile, ask, events
from sojourn_api.arbiter import Tier, bump, create_grant, create_index, read_page
from sojourn_api.arbiter_page import Page
from sojourn_runtime.hooks import Arbiter, open_arbiter

NewRig = Callable[..., Rig]


@pytest.fixture
def pods(tmp_path: Path) -> dict[str, Path]:
    """What Allocate mounts into a gold, a silver and another gold pod of one GPU."""
    grants = tmp_path / "grants"
    index = create_index(grants)
    roots = {}
    tiers = (("gold", 1000), ("silver", 500), ("other", 1000))
    for slot, (name, priority) in enumerate(tiers):
        own = create_grant(grants, str(slot), Tier(priority=priority))
        roots[name] = tmp_path / f"mounts-{name}"
        (roots[name] / "gpu-0").mkdir(parents=True)
        (roots[name] / "gpu-0" / "own").symlink_to(own)
        (roots[name] / "gpu-0" / "all").symlink_to(grants)
    bump(index)
    return roots


async def test_silver_stands_still_while_gold_answers_and_then_goes_on(
    new_rig: NewRig, tmp_path: Path, pods: dict[str, Path]
) -> None:
    silver = new_rig(tmp_path / "silver", tier=500, arbiter=pods["silver"])
    gold = new_rig(tmp_path / "gold", tier=1000, arbiter=pods["gold"])
    silver.start()
    gold.start()
    gate = Turnstile(gold.runner)
    low = silver.session.submit(ask("low", answer=1000))
    gate.hold(100)
    high = gold.session.submit(ask("high", answer=600))
    gate.wait()
    made = len(low.events)
    gate.pass_on(500)  # 400 steps of gold: silver would make about as many in this time
    gate.wait()
    assert len(low.events) <= made + 1
    gate.go()
    assert len(await events(high)) == 600
    assert len(await events(low)) == 1000
    assert silver.session.status()["yieldedMs"] > 0
    assert gold.session.status()["yieldedMs"] == 0


async def test_a_paused_gold_session_holds_nobody_up(
    new_rig: NewRig, tmp_path: Path, pods: dict[str, Path]
) -> None:
    gold = new_rig(tmp_path / "gold", tier=1000, arbiter=pods["gold"])
    gold.start()
    gold.session.submit(ask("high", answer=1000))
    gold.pause()
    silver = new_rig(tmp_path / "silver", tier=500, arbiter=pods["silver"])
    silver.start()
    assert len(await events(silver.session.submit(ask("low", answer=30)))) == 30


def test_a_neighbours_folder_without_a_page_is_in_nobodys_way(
    tmp_path: Path, pods: dict[str, Path]
) -> None:
    """As when a grant ends at this moment, or a container of one that is over is started again."""
    (tmp_path / "grants" / "00" / "pod").mkdir(parents=True)
    arbiter = open_arbiter(pods["silver"], granted=(0,), priority=500)
    arbiter.close()


async def test_a_session_that_yields_can_be_paused(
    new_rig: NewRig, tmp_path: Path, pods: dict[str, Path]
) -> None:
    gold = Page(pods["gold"] / "gpu-0" / "own")
    gold.raise_flag()
    silver = new_rig(tmp_path / "silver", tier=500, arbiter=pods["silver"])
    silver.start(wait=False)
    silver.session.pause()
    assert silver.end()["reason"] == "Paused"
    gold.close()


def test_a_flag_stops_a_long_prefill_between_its_layers(pods: dict[str, Path]) -> None:
    """The runner asks `must_stop` where it looks at its stop flag."""
    gold, silver = Page(pods["gold"] / "gpu-0" / "own"), Arbiter(pods["silver"], priority=500)
    assert not silver.must_stop()
    gold.raise_flag()
    assert silver.must_stop()
    gold.lower_flag()
    assert not silver.must_stop()
    silver.close()
    gold.close()


def test_a_session_tells_what_its_pool_holds(
    new_rig: NewRig, tmp_path: Path, pods: dict[str, Path]
) -> None:
    rig = new_rig(tmp_path / "silver", tier=500, arbiter=pods["silver"])
    rig.start()
    began = time.monotonic()
    while (inside := read_page(tmp_path / "grants", "1").allocator) is None:
        assert time.monotonic() - began < 20
        time.sleep(0.05)  # a pause between looks; it tells within five seconds
    said = rig.session.status()["allocator"]
    assert isinstance(said, dict)
    assert (inside.reserved, inside.used) == (said["reserved"], said["allocated"])
    assert (inside.inactive_split, inside.largest_free) == (None, said["largestFree"])
    assert inside.reserved > 0


async def test_context_that_no_request_runs_on_is_in_use_all_the_same(
    new_rig: NewRig, tmp_path: Path, pods: dict[str, Path]
) -> None:
    rig = new_rig(tmp_path / "silver", tier=500, arbiter=pods["silver"])
    await events(rig.start().submit(ask("one", answer=200)))
    said = rig.session.status()
    assert said["requestsRunning"] == 0
    assert isinstance(said["allocator"], dict)
    assert 0 < said["allocator"]["allocated"] < said["allocator"]["reserved"]


async def test_equals_take_turns(new_rig: NewRig, tmp_path: Path, pods: dict[str, Path]) -> None:
    """Neither stops the other for good, and both end."""
    rigs = [new_rig(tmp_path / name, tier=1000, arbiter=pods[name]) for name in ("gold", "other")]
    streams = [rig.start().submit(ask("one", answer=1000)) for rig in rigs]
    for found in await asyncio.gather(*map(events, streams)):
        assert len(found) == 1000
    assert any(rig.session.status()["yieldedMs"] > 0 for rig in rigs)


def test_equals_do_not_stop_each_other(pods: dict[str, Path]) -> None:
    other, gold = Page(pods["other"] / "gpu-0" / "own"), Arbiter(pods["gold"], priority=1000)
    other.raise_flag()
    assert not gold.must_stop()
    gold.close()
    other.close()


def test_what_is_left_of_a_time_slice_is_visible(pods: dict[str, Path]) -> None:
    gold = Arbiter(pods["gold"], priority=1000)
    assert gold.slice_left == 0
    gold.raise_flag()
    gold.wait(unless=lambda: False)
    whole = gold.slice_left
    assert whole == Tier(priority=1000).time_slice_ns / 1e9 > 0
    gold.step()
    gold.step_done(whole / 4)
    assert gold.slice_left == pytest.approx(whole * 3 / 4)
    gold.lower_flag()
    assert gold.slice_left == 0
    gold.close()


def test_a_look_costs_less_than_two_microseconds(pods: dict[str, Path]) -> None:
    """While nobody's flag is up; the best of some batches, since the machine does other things."""
    silver = Arbiter(pods["silver"], priority=500)
    silver.must_stop()
    batches = []
    for _ in range(50):
        begin = time.perf_counter()
        for _ in range(200):
            silver.must_stop()
        batches.append((time.perf_counter() - begin) / 200)
    assert min(batches) < 2e-6
    silver.close()


def test_without_a_grant_a_session_is_alone(tmp_path: Path) -> None:
    arbiter = open_arbiter(tmp_path / "absent", granted=(), priority=500)
    assert arbiter.alone
    assert not arbiter.must_stop()


def refused(rig: Rig) -> str:
    """Why the session does not start, which another start may mend."""
    rig.start(wait=False)
    words = rig.end()
    assert (words["reason"], words["retry"]) == ("ArbiterUnavailable", True)
    assert "device plugin" in words["message"]
    assert not rig.folder.exists(), "it claimed nothing"
    return str(words["message"])


def test_a_session_does_not_run_beside_others_unheeding(
    new_rig: NewRig, pods: dict[str, Path]
) -> None:
    taken = Page(pods["silver"] / "gpu-0" / "own")
    rig = new_rig(arbiter=pods["silver"], granted=(0,))
    assert "another process" in refused(rig)
    taken.close()
    rig.start()


def test_a_grant_without_its_mounts_is_refused_by_path(new_rig: NewRig, tmp_path: Path) -> None:
    rig = new_rig(arbiter=tmp_path / "absent", granted=(0, 3))
    assert str(tmp_path / "absent" / "gpu-0") in refused(rig)


@pytest.mark.parametrize("part", ["own", "all"])
def test_half_of_the_mounts_is_refused_though_no_slot_is_named(
    new_rig: NewRig, pods: dict[str, Path], part: str
) -> None:
    (pods["silver"] / "gpu-0" / part).unlink()
    assert f"gpu-0/{part}" in refused(new_rig(arbiter=pods["silver"]))
