"""The pages of the arbiter, both sides in one process: what a raised flag means, and to whom."""

import ctypes
import fcntl
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sojourn_api import arbiter
from sojourn_api.arbiter_page import Page
from sojourn_api.arbiter_watch import Watch

GOLD, SILVER, BRONZE = 2500, 1000, 0


class Gpu:
    """One GPU's folder, with a grant per tier asked for."""

    def __init__(self, grants: Path) -> None:
        self.grants = grants
        self.index = arbiter.create_index(grants)
        self.pages: list[Page] = []

    def grant(self, slot: str, priority: int) -> Page:
        pod = arbiter.create_grant(self.grants, slot, arbiter.Tier(priority=priority))
        arbiter.bump(self.index)
        self.pages.append(Page(pod))
        return self.pages[-1]

    def watch(self, own_slot: str = "") -> Watch:
        return Watch(self.grants, own_slot=own_slot)


@pytest.fixture
def gpu(tmp_path: Path) -> Iterator[Gpu]:
    gpu = Gpu(tmp_path / "grants")
    yield gpu
    for page in gpu.pages:
        page.close()


def test_a_raised_flag_stops_lower_tiers_only(gpu: Gpu) -> None:
    gpu.grant("1", SILVER).raise_flag()
    assert gpu.watch().higher_raised(BRONZE)
    assert not gpu.watch().higher_raised(SILVER)
    assert not gpu.watch().higher_raised(GOLD)


def test_lower_tiers_go_on_when_the_flag_falls(gpu: Gpu) -> None:
    gold, watch = gpu.grant("1", GOLD), gpu.watch()
    gold.raise_flag()
    assert watch.higher_raised(SILVER)
    gold.lower_flag()
    assert not watch.higher_raised(SILVER)


def test_raising_twice_needs_one_lowering(gpu: Gpu) -> None:
    gold, watch = gpu.grant("1", GOLD), gpu.watch()
    gold.raise_flag()
    gold.raise_flag()
    gold.lower_flag()
    assert not watch.higher_raised(SILVER)
    gold.lower_flag()
    assert not watch.higher_raised(SILVER)


def test_a_grant_of_later_is_seen_without_being_told(gpu: Gpu) -> None:
    watch = gpu.watch()
    assert not watch.higher_raised(SILVER)
    gpu.grant("7", GOLD).raise_flag()
    assert watch.higher_raised(SILVER)


def test_a_promotion_counts_at_once(gpu: Gpu) -> None:
    page, watch = gpu.grant("1", arbiter.LOWEST), gpu.watch()
    page.raise_flag()
    assert not watch.higher_raised(BRONZE)
    arbiter.write_tier(gpu.grants, "1", arbiter.Tier(priority=GOLD))
    arbiter.bump(gpu.index)
    assert watch.higher_raised(BRONZE)


def test_the_own_flag_stops_nobody_at_home(gpu: Gpu) -> None:
    gpu.grant("1", GOLD).raise_flag()
    assert not gpu.watch(own_slot="1").higher_raised(BRONZE)


def test_the_holder_is_the_highest_then_the_longest_waiting(gpu: Gpu) -> None:
    gpu.grant("1", SILVER).raise_flag()
    gpu.grant("3", GOLD).raise_flag()
    gpu.grant("2", GOLD).raise_flag()
    holder = gpu.watch().holder(BRONZE)
    assert holder is not None
    assert (holder.slot, holder.priority) == ("3", GOLD)


def test_a_flag_falls_with_its_owners_lock(gpu: Gpu) -> None:
    gold, watch = gpu.grant("1", GOLD), gpu.watch()
    gold.raise_flag()
    fcntl.fcntl(gold._fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_UNLCK, 0, 0, 0, 0))
    assert not watch.higher_raised(SILVER)


@pytest.mark.parametrize("word", [arbiter.W_BEAT, arbiter.W_SINCE])
@pytest.mark.parametrize("seconds", [-3600, 3600])
def test_a_stopped_overlong_or_forged_holder_does_not_count(
    gpu: Gpu, word: int, seconds: int
) -> None:
    gold, watch = gpu.grant("1", GOLD), gpu.watch()
    gold.raise_flag()
    gold._words[word] = max(0, time.monotonic_ns() + seconds * 1_000_000_000)
    assert not watch.higher_raised(SILVER)


def test_a_second_process_cannot_own_the_page(gpu: Gpu) -> None:
    gpu.grant("1", GOLD)
    with pytest.raises(arbiter.PageTakenError, match="another process"):
        Page(gpu.grants / "1" / arbiter.POD)


def test_a_neighbour_that_read_locks_the_page_gains_nothing(gpu: Gpu) -> None:
    pod = arbiter.create_grant(gpu.grants, "1", arbiter.Tier(priority=GOLD))
    arbiter.bump(gpu.index)
    meddler = os.open(pod / arbiter.PAGE, os.O_RDONLY)
    lock = struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 0, arbiter.PAGE_BYTES, 0)
    fcntl.fcntl(meddler, fcntl.F_OFD_SETLK, lock)
    gold = Page(pod)
    gpu.pages.append(gold)
    gold.raise_flag()
    assert gpu.watch().higher_raised(SILVER)
    os.close(meddler)
    gold.beat()  # takes the lock that is free again
    assert gpu.watch().higher_raised(SILVER)


@pytest.mark.parametrize("spoil", ["cut", "link", "pipe", "magic"])
def test_a_spoilt_page_claims_nothing_and_hurts_nobody(gpu: Gpu, spoil: str) -> None:
    gpu.grant("1", GOLD).raise_flag()
    gpu.grant("2", GOLD).raise_flag()
    page = gpu.grants / "2" / arbiter.POD / arbiter.PAGE
    if spoil == "cut":
        os.truncate(page, 3)
    elif spoil == "magic":
        gpu.pages[1]._words[arbiter.W_MAGIC] = 0
    else:
        page.unlink()
        page.symlink_to("/dev/zero") if spoil == "link" else os.mkfifo(page)
    with pytest.raises(arbiter.ArbiterError):
        arbiter.read_page(gpu.grants, "2")
    holder = gpu.watch().holder(SILVER)
    assert holder is not None
    assert holder.slot == "1"
    if spoil == "cut":
        os.truncate(page, arbiter.PAGE_BYTES)


def test_a_lower_tier_is_never_mapped_by_a_higher_one(gpu: Gpu) -> None:
    gpu.grant("1", SILVER)
    watch = gpu.watch()
    watch.higher_raised(GOLD)
    os.truncate(gpu.grants / "1" / arbiter.POD / arbiter.PAGE, 0)
    assert not watch.higher_raised(GOLD)
    os.truncate(gpu.grants / "1" / arbiter.POD / arbiter.PAGE, arbiter.PAGE_BYTES)


def test_opening_lowers_what_an_earlier_process_left_raised(gpu: Gpu) -> None:
    gold = gpu.grant("1", GOLD)
    gold.raise_flag()
    gold._words.release()  # as if killed: no lowering
    os.close(gold._fd)
    gpu.pages.remove(gold)
    again = Page(gpu.grants / "1" / arbiter.POD)
    gpu.pages.append(again)
    assert not again.raised


def test_the_report_tells_what_the_owner_wrote(gpu: Gpu) -> None:
    page = gpu.grant("1", SILVER)
    page.step()
    busy = arbiter.read_page(gpu.grants, "1")
    page.step_done(5_000)
    page.yielded(7_000)
    done = arbiter.read_page(gpu.grants, "1")
    assert (busy.steps, busy.steps_done) == (1, 0)
    assert (done.steps, done.steps_done, done.served_ns, done.yielded_ns) == (1, 1, 5_000, 7_000)
    assert done.locked


def test_restarting_the_plugin_keeps_pages_and_generation(gpu: Gpu) -> None:
    gold, watch = gpu.grant("1", GOLD), gpu.watch()
    gold.raise_flag()
    before = gpu.index[arbiter.I_GENERATION]
    index = arbiter.create_index(gpu.grants, arbiter.Limits(stale_ns=5, hold_ns=6))
    assert index[arbiter.I_GENERATION] == before
    assert not watch.higher_raised(SILVER)  # the new limits hold for readers of before, too
    assert read_limits(index) == (5, 6)


def read_limits(index: memoryview) -> tuple[int, int]:
    return index[arbiter.I_STALE_NS], index[arbiter.I_HOLD_NS]


def test_a_folder_without_index_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(arbiter.ArbiterError, match="index"):
        Watch(tmp_path)


def test_the_lock_structure_has_the_size_of_the_c_library() -> None:
    assert arbiter._FLOCK.size == 32 == 8 + 3 * ctypes.sizeof(ctypes.c_longlong)


def test_an_allocators_figures_are_read_as_told_and_unknown_ones_are_not_zero(gpu: Gpu) -> None:
    page = gpu.grant("1", SILVER)
    before = arbiter.read_page(gpu.grants, "1")
    assert before.allocator is None
    page.allocator(reserved=8, used=5, inactive_split=None, largest_free=0)
    inside = arbiter.read_page(gpu.grants, "1").allocator
    assert inside is not None
    assert (inside.reserved, inside.used) == (8, 5)
    assert (inside.inactive_split, inside.largest_free) == (None, 0)
