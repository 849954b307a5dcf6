"""What a session does with a context that it cannot simply take up, or a store that fails."""

import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from fulldisk import files_of_at_most
from sessionrig import Rig, Turnstile, ask, events, text
from sojourn_runtime.context.errors import StoreFull
from sojourn_runtime.context.open_store import open_store
from sojourn_runtime.context.snapshot import SavedBlock, load
from sojourn_runtime.engine.prefix import BLOCK
from sojourn_runtime.model.protocol import Segment
from sojourn_runtime.protocol import Refused
from sojourn_runtime.session import QUEUE

NewRig = Callable[..., Rig]


async def paused(rig: Rig, *, at: int = 180) -> str:
    """A session that was paused in the middle of an answer; the text that it would have said."""
    rig.start()
    gate = Turnstile(rig.runner)
    whole = text(await events(rig.session.submit(ask("whole", answer=250))))
    rig.session.release("whole")
    gate.hold(at)
    rig.session.submit(ask("one", prompt=(1, 2, 3, 4), answer=250))
    gate.wait()
    rig.session.pause()
    gate.go()
    assert rig.end()["requests"] == 1
    return whole


def held(rig: Rig, *, at: int) -> Turnstile:
    """The next start, which stands in front of the step that computes token `at`."""
    opens = threading.Event()
    rig.start(gate=opens, wait=False)
    gate = Turnstile(rig.runner)
    gate.hold(at)
    opens.set()
    gate.wait()
    return gate


async def rest(rig: Rig) -> str:
    return text(await events(rig.session.restored()[0]))


async def reference(new_rig: NewRig, tmp_path: Path) -> str:
    rig = new_rig(tmp_path / "reference")
    rig.start()
    found = text(await events(rig.session.submit(ask("one", prompt=(1, 2, 3, 4), answer=250))))
    rig.pause()
    return found


async def test_the_context_of_other_weights_is_refused_and_kept(new_rig: NewRig) -> None:
    rig = new_rig()
    await paused(rig)
    before = {path.name: path.stat().st_size for path in rig.folder.iterdir()}
    rig.weights_digest = "sha256:other"
    rig.start(wait=False)
    words = rig.end()
    assert (words["reason"], words["retry"]) == ("SnapshotOfOtherModel", False)
    assert "sha256:toy" in words["message"]
    assert words["snapshot"]["weightsDigest"] == "sha256:toy"
    assert {path.name: path.stat().st_size for path in rig.folder.iterdir()} == before


async def test_another_kernel_class_computes_again_and_says_so(
    new_rig: NewRig, tmp_path: Path
) -> None:
    rig = new_rig()
    await paused(rig)
    rig.kernel_class = "toy-v2"
    rig.start()
    assert await rest(rig) == await reference(new_rig, tmp_path)
    status = rig.session.status()
    assert status["exact"] is False
    assert "toy-v1" in status["exactReason"]
    assert status["resumed"]["recomputedTokens"] > 100
    words = rig.pause()
    assert (words["exact"], words["exactReason"]) == (False, status["exactReason"])


async def test_what_was_computed_by_two_kernel_classes_stays_inexact(new_rig: NewRig) -> None:
    """Its text is not the uninterrupted one, however often it is saved and taken up afterwards."""
    rig = new_rig()
    await paused(rig)
    rig.kernel_class = "toy-v2"
    rig.start()
    why = rig.session.status()["exactReason"]
    assert why.endswith("computed again by toy-v2 at start 2")
    rig.pause()
    for _ in range(2):
        rig.start()
        status = rig.session.status()
        assert (status["exact"], status["exactReason"]) == (False, why)
        words = rig.pause()
        assert (words["exact"], words["exactReason"]) == (False, why)
    rig.start(gate=(gate := threading.Event()), wait=False)
    rig.session.pause()
    assert rig.end(join=False)["exactReason"] == why, "a pause before the model is open says so too"
    gate.set()


async def test_a_resume_by_kernels_that_are_not_row_exact_says_so(new_rig: NewRig) -> None:
    rig = new_rig(row_exact=False)
    rig.start()
    assert rig.session.status()["exact"] is True, "nothing was interrupted yet"
    rig.pause()
    await paused(rig)
    rig.start()
    status = rig.session.status()
    assert status["exact"] is False
    assert status["resumed"]["recomputedTokens"] == 0, "the saved blocks are of use all the same"
    assert "kernel class toy-v1, which is not row-exact" in status["exactReason"]
    words = rig.pause()
    assert (words["exact"], words["exactReason"]) == (False, status["exactReason"])
    rig.start()
    assert rig.session.status()["exactReason"] == status["exactReason"], "the first time counts"


async def test_a_session_that_gave_up_its_inexact_requests_is_exact_again(new_rig: NewRig) -> None:
    rig = new_rig()
    await paused(rig)
    rig.kernel_class = "toy-v2"
    rig.start()
    for stream in rig.session.restored():
        rig.session.release(stream.request.id)
    rig.pause()
    rig.start()
    assert rig.session.status()["exact"]


async def test_a_spoilt_block_is_computed_again(
    new_rig: NewRig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = new_rig()
    await paused(rig)
    for segment in rig.folder.glob("segment-*"):
        spoil(segment)
    rig.start()
    assert await rest(rig) == await reference(new_rig, tmp_path)
    status = rig.session.status()
    assert status["resumed"]["recomputedTokens"] > 0
    assert status["exact"], "the tokens give the same bytes again"
    assert "differs from its checksum" in status["damage"]
    assert "differs from its checksum" in caplog.text
    assert rig.pause()["damage"] == status["damage"]


async def test_a_missing_segment_is_computed_again(new_rig: NewRig, tmp_path: Path) -> None:
    rig = new_rig()
    await paused(rig)
    for segment in rig.folder.glob("segment-*"):
        segment.unlink()
    rig.start()
    assert await rest(rig) == await reference(new_rig, tmp_path)


async def test_a_spoilt_block_is_saved_anew_by_the_pause_behind_it(
    new_rig: NewRig, tmp_path: Path
) -> None:
    rig = new_rig()
    await paused(rig)
    for segment in rig.folder.glob("segment-*"):
        spoil(segment)
    gate = held(rig, at=200)
    assert damage_of(rig) == (True, 180)
    rig.session.pause()
    gate.go()
    assert rig.end()["requests"] == 1
    rig.start()
    assert await rest(rig) == await reference(new_rig, tmp_path)
    assert damage_of(rig) == (False, 0)


@pytest.mark.parametrize("checkpoint_tokens", [256, 100_000])
async def test_a_kill_while_a_spoilt_block_is_made_good_leaves_no_less_than_there_was(
    new_rig: NewRig, tmp_path: Path, checkpoint_tokens: int
) -> None:
    """Behind a checkpoint the damage is mended; the commit before it gives what it gave before."""
    rig = new_rig()
    await paused(rig)
    rig.checkpoint_tokens = checkpoint_tokens
    first = spoil_second_block(rig)
    gate = held(rig, at=200)
    assert damage_of(rig) == (True, 180 - BLOCK), "the block before it is of use still"
    rig.killed(tmp_path / "killed")
    gate.go()
    shutil.copytree(tmp_path / "killed", tmp_path / "fallback")
    spoil(max((tmp_path / "fallback").glob("manifest-2-*")))
    expected = await reference(new_rig, tmp_path)
    for folder in ("killed", "fallback"):
        again = new_rig(tmp_path / folder)
        assert first in load(open_store(again.folder.as_uri())).blocks
        again.start()
        assert await rest(again) == expected
        mended = folder == "killed" and checkpoint_tokens == 256
        assert damage_of(again) == ((False, 200 - 3 * BLOCK) if mended else (True, 200 - BLOCK))


async def test_a_spoilt_manifest_falls_back_to_the_one_before(
    new_rig: NewRig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The journals from there on give every token back; the text goes on as it was."""
    rig = new_rig()
    await paused(rig)
    newest = max(rig.folder.glob("manifest-1-*"), key=lambda p: int(p.stem.split("-")[2]))
    spoil(newest)
    rig.start()
    assert await rest(rig) == await reference(new_rig, tmp_path)
    assert newest.name in caplog.text
    assert newest.name in rig.session.status()["damage"]


async def test_without_a_good_manifest_the_session_does_not_start_empty(new_rig: NewRig) -> None:
    rig = new_rig()
    await paused(rig)
    for manifest in rig.folder.glob("manifest-*"):
        spoil(manifest)
    rig.start(wait=False)
    words = rig.end()
    assert (words["reason"], words["retry"]) == ("SnapshotCorrupt", False)


async def test_an_emptied_store_is_no_new_session(new_rig: NewRig, tmp_path: Path) -> None:
    """The folder is gone, or another volume is mounted there; once it is back, all is back."""
    rig = new_rig()
    await paused(rig)
    last = words_of(rig)["snapshot"]["manifest"]
    away = rig.folder.rename(tmp_path / "away")
    rig.expect_manifest = last
    rig.start(wait=False)
    words = rig.end()
    assert (words["reason"], words["retry"]) == ("SnapshotMissing", True)
    assert rig.folder.as_uri() in words["message"]
    assert f"{last} was saved here, the newest manifest found is none" in words["message"]
    assert "mount the right volume" in words["message"]
    assert "snapshot" not in words
    assert not rig.folder.exists(), "nothing was written"
    away.rename(rig.folder)
    rig.start()
    assert await rest(rig) == await reference(new_rig, tmp_path)


async def test_a_session_made_anew_under_a_name_starts_empty(new_rig: NewRig) -> None:
    rig = new_rig(owner="2026-01-01T00:00:00Z/b", epoch=1)
    await paused(rig)
    rig.owner = "2026-01-02T00:00:00Z/a"
    rig.start()
    assert rig.session.restored() == ()
    rig.pause()
    rig.epoch = 2
    rig.start()
    assert rig.session.restored() == ()


async def test_a_session_made_anew_goes_on_from_what_was_retained_for_it(
    new_rig: NewRig, tmp_path: Path
) -> None:
    rig = new_rig(owner="2026-01-01T00:00:00Z/b", epoch=1)
    await paused(rig)
    rig.owner, rig.epoch = "2026-01-02T00:00:00Z/a", 2
    rig.expect_manifest = words_of(rig)["snapshot"]["manifest"]
    rig.start()
    assert await rest(rig) == await reference(new_rig, tmp_path)


async def test_a_store_that_was_set_back_is_refused_and_left_as_it_is(new_rig: NewRig) -> None:
    rig = new_rig()
    await paused(rig)
    last = words_of(rig)["snapshot"]["manifest"]
    (rig.folder / last).unlink()
    before = {path.name: path.stat().st_size for path in rig.folder.iterdir()}
    rig.expect_manifest = last
    rig.start(wait=False)
    words = rig.end()
    assert words["reason"] == "SnapshotMissing"
    assert "the newest manifest found is manifest-1-" in words["message"]
    assert {path.name: path.stat().st_size for path in rig.folder.iterdir()} == before


async def test_a_later_commit_than_the_expected_one_is_welcome(new_rig: NewRig) -> None:
    """Others hear of commits late, and old manifests are collected."""
    rig = new_rig()
    await paused(rig)
    rig.expect_manifest = "manifest-1-1.json"
    assert not (rig.folder / rig.expect_manifest).exists()
    rig.start()
    assert rig.session.restored()


async def test_a_pause_before_the_model_is_open_tells_of_an_emptied_store(
    new_rig: NewRig,
) -> None:
    rig = new_rig(expect_manifest="manifest-4-2.json")
    gate = threading.Event()
    rig.start(gate=gate, wait=False)
    rig.session.pause()
    words = rig.end(join=False)
    assert words["reason"] == "SnapshotMissing"
    gate.set()


async def test_a_store_that_is_emptied_under_a_running_session_is_told(new_rig: NewRig) -> None:
    rig = new_rig()
    rig.start()
    kept = rig.session.status()["lastSnapshot"]
    for path in rig.folder.iterdir():
        path.unlink()
    await events(rig.session.submit(ask("one", answer=300)))
    words = rig.pause() if rig.ending is None else rig.end()
    assert (words["reason"], words["retry"]) == ("SnapshotMissing", True)
    assert words["snapshot"] == kept


def words_of(rig: Rig) -> dict[str, Any]:
    assert rig.ending is not None
    return dict(rig.ending.words)


def spoil(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for at in range(100, len(data), 301):
        data[at] ^= 0xFF
    path.write_bytes(data)


def spoil_second_block(rig: Rig) -> SavedBlock:
    """Of the request that was paused; the first one, which stays whole."""
    blocks = load(open_store(rig.folder.as_uri())).blocks
    first = next(block for block in blocks if block.tokens[:4] == (1, 2, 3, 4))
    second = next(block for block in blocks if block.parent == first.name)
    assert second.segment == first.segment
    path = rig.folder / second.segment
    data = bytearray(path.read_bytes())
    data[second.offset] ^= 0xFF
    path.write_bytes(data)
    return first


def damage_of(rig: Rig) -> tuple[bool, int]:
    """Whether blocks were found spoilt, and the tokens that were computed again."""
    status = rig.session.status()
    return "from its checksum" in status["damage"], status["resumed"]["recomputedTokens"]


async def test_a_later_start_fences_the_earlier_one(new_rig: NewRig) -> None:
    old = new_rig()
    old.start()
    gate = Turnstile(old.runner)
    gate.hold(20)
    old.session.submit(ask("one", answer=200))
    gate.wait()
    new = new_rig()
    new.start()
    gate.go()
    words = old.pause() if old.ending is None else old.end()
    assert (words["reason"], words["retry"]) == ("StaleEpoch", False)
    assert new.pause()["snapshot"]["epoch"] == 2


def test_an_earlier_start_cannot_begin_after_a_later_one(new_rig: NewRig) -> None:
    rig = new_rig(epoch=7)
    rig.start()
    rig.pause()
    rig.epoch = 6
    rig.start(wait=False)
    words = rig.end()
    assert words["reason"] == "StaleEpoch"
    assert "7" in words["message"]


async def test_a_full_store_ends_the_session_with_its_last_context_untouched(
    new_rig: NewRig,
) -> None:
    rig = new_rig(padding=512)
    await paused(rig)
    rig.start()
    kept = rig.session.status()["lastSnapshot"]
    with files_of_at_most(rig.runner.block_bytes):
        stream = rig.session.submit(ask("more", prompt=[7] * 700))
        words = rig.end()
    assert (stream.closed, type(stream.cause)) == ("Failed", StoreFull)
    assert (words["reason"], words["retry"]) == ("StoreFull", True)
    assert words["snapshot"] == kept
    rig.start()
    assert rig.session.stream("one") is not None


async def test_a_request_that_a_full_store_cannot_keep_leaves_nothing_behind(
    new_rig: NewRig,
) -> None:
    rig = new_rig()
    rig.start()
    with files_of_at_most(1), pytest.raises(StoreFull):
        rig.session.submit(ask("one"))
    assert rig.session.stream("one") is None
    rig.pause()
    rig.start()
    assert rig.session.restored() == ()


async def test_an_engine_that_fails_says_crashed_and_loses_nothing(new_rig: NewRig) -> None:
    rig = new_rig()
    rig.start()

    def fail(segments: Sequence[Segment]) -> None:
        if segments[0].start > 50:
            raise MemoryError("no memory for the activations")

    rig.runner.before = fail
    stream = rig.session.submit(ask("one", answer=90))
    words = rig.end()
    assert (words["reason"], words["retry"]) == ("Crashed", True)
    assert "no memory for the activations" in words["message"]
    assert stream.closed == "Failed"
    said = list(stream.events)
    rig.start()
    assert rig.session.restored()[0].events[: len(said)] == said
    assert len(await events(rig.session.restored()[0])) == 90


async def test_the_queue_is_bounded_whatever_the_engine_is_at(new_rig: NewRig) -> None:
    rig = new_rig()
    rig.start()
    gate = Turnstile(rig.runner)
    gate.hold(10)
    long = rig.session.submit(ask("long", answer=1000))
    gate.wait()
    for number in range(QUEUE - 1):
        rig.session.submit(ask(f"{number}"))
    with pytest.raises(Refused, match=f"{QUEUE} requests wait") as refused:
        rig.session.submit(ask("one more"))
    assert (refused.value.reason, refused.value.retry) == ("Busy", True)
    rig.session.cancel("long")
    gate.go()
    rig.until(lambda: long.done)
    rig.session.submit(ask("one more"))
    assert rig.pause()["reason"] == "Paused"


async def test_a_copy_of_the_folder_is_a_move(new_rig: NewRig, tmp_path: Path) -> None:
    rig = new_rig()
    await paused(rig)
    shutil.copytree(rig.folder, tmp_path / "elsewhere")
    moved = new_rig(tmp_path / "elsewhere")
    moved.start()
    assert await rest(moved) == await reference(new_rig, tmp_path)
    resumed: dict[str, Any] = moved.session.status()["resumed"]
    assert resumed["recomputedTokens"] == 0
