"""A volume that hangs: the session says so, goes on when it is back, and never ends without a word.

The store is a real folder. What blocks is its lock, which the test holds: the saver then waits in
the kernel, as it would for a volume that does not answer.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sessionrig import Rig, Turnstile, ask, events
from sojourn_api.arbiter import Tier, bump, create_grant, create_index
from sojourn_api.arbiter_page import Page
from sojourn_runtime.protocol import Refused

NewRig = Callable[..., Rig]
SOON = 0.25
"""A limit that a test need not wait long for, and no step of a busy machine reaches."""


@contextmanager
def hanging(folder: Path) -> Iterator[None]:
    """No commit gets through."""
    descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def stays_ready(rig: Rig, *, meanwhile: Callable[[], None] = lambda: None) -> None:
    """For much longer than the limit."""
    end = time.monotonic() + 4 * SOON

    def is_over() -> bool:
        meanwhile()
        assert rig.session.ready == ""
        return time.monotonic() > end

    rig.until(is_over)


async def test_an_engine_that_waits_for_its_store_is_not_ready_until_it_moves(
    new_rig: NewRig,
) -> None:
    rig = new_rig(stall_seconds=SOON)
    session = rig.start()
    with hanging(rig.folder):
        stream = session.submit(ask("one", answer=900))
        rig.until(lambda: session.ready == "EngineStalled")
        assert session.stalled == "the store"
        assert session.status()["stalled"] == "the store"
        with pytest.raises(Refused) as refused:
            session.submit(ask("two"))
        assert (refused.value.reason, refused.value.retry) == ("EngineStalled", True)
        assert len(stream.events) < 900
    rig.until(lambda: session.ready == "")
    assert len(await events(stream)) == 900
    assert session.status()["stalled"] == ""


async def test_a_session_without_work_is_ready_though_its_store_hangs(new_rig: NewRig) -> None:
    """It can answer, and says that it stands still once it does."""
    rig = new_rig(stall_seconds=SOON)
    session = rig.start()
    await events(session.submit(ask("one", answer=30)))
    with hanging(rig.folder):
        rig.until(lambda: session._opened is not None and session._opened.keeper.saver.busy)
        stays_ready(rig)


async def test_giving_way_is_no_stall(new_rig: NewRig, tmp_path: Path) -> None:
    grants = tmp_path / "grants"
    index = create_index(grants)
    mounts = tmp_path / "mounts" / "gpu-0"
    mounts.mkdir(parents=True)
    (mounts / "own").symlink_to(create_grant(grants, "0", Tier(priority=500)))
    (mounts / "all").symlink_to(grants)
    gold = Page(create_grant(grants, "1", Tier(priority=1000)))
    bump(index)
    rig = new_rig(stall_seconds=SOON, arbiter=mounts.parent, tier=500)
    session = rig.start()
    gold.raise_flag()
    stream = session.submit(ask("one", answer=20))
    stays_ready(rig, meanwhile=gold.beat)
    gold.lower_flag()
    assert len(await events(stream)) == 20
    assert session.status()["yieldedMs"] > 1000 * SOON
    gold.close()


async def test_a_long_first_pass_is_no_stall_and_a_later_one_is(new_rig: NewRig) -> None:
    rig = new_rig(stall_seconds=SOON)
    session = rig.start()
    gate = Turnstile(rig.runner)
    gate.hold(0)
    stream = session.submit(ask("one", answer=60))
    gate.wait()
    stays_ready(rig)
    gate.pass_on(40)
    gate.wait()
    rig.until(lambda: session.ready == "EngineStalled")
    assert session.stalled == "a step"
    gate.go()
    assert len(await events(stream)) == 60
    assert session.ready == ""


async def test_a_pause_that_hangs_says_what_is_not_saved_and_still_saves_it(
    new_rig: NewRig,
) -> None:
    rig = new_rig(patience_seconds=SOON)
    session = rig.start()
    kept = session.status()["lastSnapshot"]
    gate = Turnstile(rig.runner)
    gate.hold(100)
    session.submit(ask("one", answer=200))
    gate.wait()
    with hanging(rig.folder):
        session.pause()
        gate.go()
        rig.until(lambda: "waited for the store" in rig.cut_off.get("message", ""))
        said = dict(rig.cut_off)
    assert (said["reason"], said["retry"]) == ("PauseCutOff", True)
    assert "tokens not saved: 100" in said["message"]
    assert said["snapshot"] == kept
    words = rig.end()
    assert words["reason"] == "Paused"
    assert words["snapshot"]["tokens"] >= 100


async def test_a_pause_whose_last_step_hangs_says_so(new_rig: NewRig) -> None:
    rig = new_rig(patience_seconds=SOON)
    session = rig.start()
    gate = Turnstile(rig.runner)
    gate.hold(30)
    session.submit(ask("one", answer=60))
    gate.wait()
    session.pause()
    rig.until(lambda: "waited for a step" in rig.cut_off.get("message", ""))
    gate.go()
    assert rig.end()["reason"] == "Paused"
