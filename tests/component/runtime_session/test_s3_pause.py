"""A session whose context lies in a bucket: paused, killed and resumed with equal text."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from bucketserver import serving
from sessionrig import Rig, Turnstile, ask, events, text, until

NewRig = Callable[..., Rig]


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder that the server keeps the bucket `contexts` in."""
    with serving(tmp_path / "buckets", monkeypatch):
        yield tmp_path / "buckets" / "contexts"


@pytest.fixture
def new_rig(bucket: Path) -> Iterator[NewRig]:
    """Makes rigs that end before the server does."""
    made: list[Rig] = []

    def make(name: str) -> Rig:
        made.append(Rig(bucket / name, uri=f"s3://contexts/{name}"))
        return made[-1]

    yield make
    for rig in made:
        if rig.ending is None:
            rig.pause()


async def alone(new_rig: NewRig) -> str:
    rig = new_rig("alone")
    rig.start()
    return text(await events(rig.session.submit(ask("one", answer=60, seed=7))))


async def test_a_pause_to_a_bucket_changes_nothing(new_rig: NewRig) -> None:
    expected = await alone(new_rig)
    rig = new_rig("chat")
    rig.start()
    await until(rig.session.submit(ask("one", answer=60, seed=7)), 20)
    words = rig.pause()
    assert words["reason"] == "Paused"
    assert words["snapshot"]["uri"] == "s3://contexts/chat"
    rig.start()
    assert text(await events(rig.session.restored()[0])) == expected
    assert rig.runner.computed < 60 - 15  # what was saved is not computed again


async def test_a_session_made_anew_under_a_name_finds_no_context_in_its_bucket(
    new_rig: NewRig, bucket: Path
) -> None:
    """The operator empties no bucket."""
    rig = new_rig("chat")
    rig.owner, rig.epoch = "2026-01-01T00:00:00Z/b", 1
    rig.start()
    await until(rig.session.submit(ask("one", answer=60, seed=7)), 20)
    rig.pause()
    old = {path.name: path.read_bytes() for path in (bucket / "chat").iterdir()}
    rig.owner = "2026-01-02T00:00:00Z/a"
    rig.start()
    assert rig.session.restored() == ()
    rig.pause()
    left = {path.name: path.read_bytes() for path in (bucket / "chat").iterdir()}
    assert old.items() & left.items() <= {("lock", b"")}


async def test_a_kill_loses_no_token_that_was_told(new_rig: NewRig, bucket: Path) -> None:
    expected = await alone(new_rig)
    rig = new_rig("chat")
    rig.start()
    gate = Turnstile(rig.runner)
    gate.hold(at=30)
    stream = rig.session.submit(ask("one", answer=60, seed=7))
    gate.wait()
    told = text(stream.events)
    rig.killed(bucket / "copy")
    gate.go()
    after = new_rig("copy")
    after.start()
    restored = after.session.restored()[0]
    assert text(restored.events)[: len(told)] == told == expected[: len(told)]
    assert text(await events(restored)) == expected
