"""What a real session says of itself is what the operator reads: no field is lost between them."""

import json
import threading
from collections.abc import Callable
from typing import Any

from sessionrig import Rig, Turnstile, ask, events
from sojourn_api.objects import SnapshotRef
from sojourn_operator.seen.report import End, RuntimeStatus, parse_end, parse_status

NewRig = Callable[..., Rig]


def read_status(rig: Rig) -> tuple[RuntimeStatus, dict[str, Any]]:
    """As the poll reads it, and as it was said."""
    said = rig.session.status()
    found = parse_status(json.dumps(said))
    assert found is not None
    return found, said


def read_end(words: dict[str, Any]) -> End:
    found = parse_end(json.dumps(words))
    assert found is not None
    assert (found.reason, found.message) == (words["reason"], words["message"])
    return found


def same(found: SnapshotRef | None, said: dict[str, Any]) -> bool:
    """Every field of the snapshot, but the count of bytes that were new."""
    assert found is not None
    read = {
        "uri": found.uri,
        "manifest": found.manifest,
        "tokens": found.tokens,
        "bytes": found.bytes,
        "conversations": found.conversations,
        "digest": found.digest,
        "weightsDigest": found.weights_digest,
        "kernelClass": found.kernel_class,
        "epoch": found.epoch,
        "saved": found.saved,
    }
    return read == {key: value for key, value in said.items() if key != "newBytes"}


async def test_a_serving_session(new_rig: NewRig) -> None:
    rig = new_rig(epoch=3)
    session = rig.start()
    await events(session.submit(ask("done", answer=90)))
    gate = Turnstile(rig.runner)
    gate.hold(100)
    session.submit(ask("one", answer=120, prompt=(9, 8, 7)))
    gate.wait()
    found, said = read_status(rig)
    assert (found.phase, found.epoch, found.requests) == ("Serving", 3, 1)
    assert (found.exact, found.stalled, found.damage) == (True, "", "")
    assert found.unsaved_bytes == said["unsavedBytes"] > 0
    assert found.latency.ttft_ms == said["latency"]["ttftP95Ms"] is not None
    assert found.latency.itl_ms == said["latency"]["itlP95Ms"] is not None
    assert found.latency.window == said["latency"]["window"] > 0
    assert same(found.snapshot, said["lastSnapshot"])
    gate.go()
    rig.until(lambda: not session.status()["requestsRunning"])
    rig.until(lambda: read_status(rig)[0].idle_seconds > 0)


def test_a_session_that_loads(new_rig: NewRig) -> None:
    rig = new_rig(epoch=2)
    gate = threading.Event()
    rig.start(gate=gate, wait=False)
    found, _ = read_status(rig)
    assert (found.phase, found.epoch, found.snapshot) == ("Loading", 2, None)
    gate.set()


async def test_a_paused_session(new_rig: NewRig) -> None:
    rig = new_rig()
    rig.start()
    gate = Turnstile(rig.runner)
    gate.hold(70)
    rig.session.submit(ask("one", answer=90))
    gate.wait()
    rig.session.pause()
    gate.go()
    words = rig.end()
    end = read_end(words)
    assert end.saved
    assert (end.exact, end.exact_reason, end.damage, end.requests) == (True, "", "", 1)
    assert same(end.snapshot, words["snapshot"])


async def test_a_pause_that_is_cut_off(new_rig: NewRig) -> None:
    rig = new_rig(patience_seconds=0.01)
    rig.start()
    gate = Turnstile(rig.runner)
    gate.hold(30)
    rig.session.submit(ask("one", answer=60))
    gate.wait()
    rig.session.pause()
    rig.until(lambda: rig.cut_off)
    words = dict(rig.cut_off)
    gate.go()
    end = read_end(words)
    assert (end.saved, end.retry) == (False, True)
    assert same(end.snapshot, words["snapshot"])
    rig.end()


async def test_a_failed_session(new_rig: NewRig) -> None:
    rig = new_rig()
    rig.start()
    await events(rig.session.submit(ask("one", answer=90)))
    kept = rig.pause()["snapshot"]
    rig.weights_digest = "sha256:other"
    rig.start(wait=False)
    end = read_end(rig.end())
    assert (end.saved, end.reason, end.retry) == (False, "SnapshotOfOtherModel", False)
    assert end.snapshot is not None
    assert end.snapshot.manifest == kept["manifest"]
    assert end.snapshot.digest == kept["digest"]


async def test_a_session_that_misses_its_context(new_rig: NewRig) -> None:
    """The operator must not take an older snapshot for the last one."""
    rig = new_rig(expect_manifest="manifest-9-1.json")
    rig.start(wait=False)
    end = read_end(rig.end())
    assert (end.reason, end.retry, end.snapshot) == ("SnapshotMissing", True, None)


async def test_an_inexact_session(new_rig: NewRig) -> None:
    rig = new_rig()
    rig.start()
    await events(rig.session.submit(ask("one", answer=90)))
    rig.pause()
    rig.kernel_class = "toy-v2"
    rig.start()
    found, _ = read_status(rig)
    assert not found.exact
    assert "toy-v1" in found.exact_reason
    end = read_end(rig.pause())
    assert (end.saved, end.exact, end.exact_reason) == (True, False, found.exact_reason)


async def test_a_session_with_a_spoilt_block(new_rig: NewRig) -> None:
    rig = new_rig()
    rig.start()
    await events(rig.session.submit(ask("one", answer=200)))
    rig.pause()
    for segment in rig.folder.glob("segment-*"):
        segment.write_bytes(bytes(segment.stat().st_size))
    rig.start()
    stream = rig.session.stream("one")
    assert stream is not None
    known = (1, 2, 3, *(event.token for event in stream.events))
    await events(rig.session.submit(ask("two", prompt=known, answer=2)))
    found, said = read_status(rig)
    assert found.damage == said["damage"] != ""
    assert read_end(rig.pause()).damage != ""
