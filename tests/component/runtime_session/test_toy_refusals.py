"""What a session does with a context that it cannot simply take up, or a store that fails."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from fulldisk import files_of_at_most
from sessionrig import Rig, Turnstile, ask, events, text
from sojourn_runtime.model.protocol import Segment

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


async def test_a_spoilt_block_is_computed_again(
    new_rig: NewRig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = new_rig()
    await paused(rig)
    for segment in rig.folder.glob("segment-*"):
        spoil(segment)
    rig.start()
    assert await rest(rig) == await reference(new_rig, tmp_path)
    assert rig.session.status()["resumed"]["recomputedTokens"] > 0
    assert "differs from its checksum" in caplog.text


async def test_a_missing_segment_is_computed_again(new_rig: NewRig, tmp_path: Path) -> None:
    rig = new_rig()
    await paused(rig)
    for segment in rig.folder.glob("segment-*"):
        segment.unlink()
    rig.start()
    assert await rest(rig) == await reference(new_rig, tmp_path)


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


async def test_without_a_good_manifest_the_session_does_not_start_empty(new_rig: NewRig) -> None:
    rig = new_rig()
    await paused(rig)
    for manifest in rig.folder.glob("manifest-*"):
        spoil(manifest)
    rig.start(wait=False)
    words = rig.end()
    assert (words["reason"], words["retry"]) == ("SnapshotCorrupt", False)


def spoil(path: Path) -> None:
    data = bytearray(path.read_bytes())
    for at in range(100, len(data), 301):
        data[at] ^= 0xFF
    path.write_bytes(data)


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
        rig.session.submit(ask("more", prompt=[7] * 700))
        words = rig.end()
    assert (words["reason"], words["retry"]) == ("StoreFull", True)
    assert words["snapshot"] == kept
    rig.start()
    assert rig.session.stream("one") is not None


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


async def test_a_copy_of_the_folder_is_a_move(new_rig: NewRig, tmp_path: Path) -> None:
    rig = new_rig()
    await paused(rig)
    shutil.copytree(rig.folder, tmp_path / "elsewhere")
    moved = new_rig(tmp_path / "elsewhere")
    moved.start()
    assert await rest(moved) == await reference(new_rig, tmp_path)
    resumed: dict[str, Any] = moved.session.status()["resumed"]
    assert resumed["recomputedTokens"] == 0
