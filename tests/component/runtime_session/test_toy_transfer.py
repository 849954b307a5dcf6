"""A context carried to another store, and forked: the same bytes, and the same words after it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from sessionrig import Rig, ask, events, text, until
from sojourn_runtime.cli import main
from sojourn_runtime.context.open_store import open_store
from sojourn_runtime.context.snapshot import load
from sojourn_runtime.context.transfer import content_digest

NewRig = Callable[..., Rig]

PROMPT = [n % 60 for n in range(300)]


async def paused(rig: Rig, *, after: int = 40) -> str:
    """A session paused in the middle of an answer of 120 tokens; what it had said."""
    rig.start()
    stream = rig.session.submit(ask("one", prompt=PROMPT, answer=120, seed=7, background=True))
    found = await until(stream, after)
    rig.session.put_document("conversation", "conv_1", {"id": "conv_1", "items": []})
    rig.pause()
    return text(found)


async def rest(rig: Rig) -> str:
    rig.start()
    found = text(await events(rig.session.restored()[0]))
    rig.pause()
    return found


async def test_a_fork_and_its_source_go_on_with_the_same_words_and_compute_nothing_again(
    new_rig: NewRig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = new_rig(tmp_path / "one"), new_rig(tmp_path / "two")
    said = await paused(one)
    assert main(["fork", str(tmp_path / "one"), str(tmp_path / "two"), "--session", "two"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["session"], told["requests"]) == ("two", 1)
    forked = await rest(two)
    assert forked.startswith(said)
    assert forked == await rest(one)
    assert two.runner.computed <= 120 - len(said)


async def test_what_is_said_in_a_fork_is_not_said_in_its_source(
    new_rig: NewRig, tmp_path: Path
) -> None:
    one, two = new_rig(tmp_path / "one"), new_rig(tmp_path / "two")
    await paused(one)
    main(["fork", str(tmp_path / "one"), str(tmp_path / "two"), "--session", "two"])
    two.start()
    two.session.put_document("conversation", "conv_2", {"id": "conv_2", "items": []})
    two.pause()
    one.start()
    assert list(one.session.documents("conversation")) == ["conv_1"]
    assert one.session.status()["epoch"] == 2


async def test_export_and_import_bring_every_byte_back(
    new_rig: NewRig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = new_rig(tmp_path / "one")
    await paused(one)
    main(["export", str(tmp_path / "one"), str(tmp_path / "away")])
    main(["import", str(tmp_path / "away"), str(tmp_path / "back"), "--session", "one"])
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["contentDigest"] == second["contentDigest"]
    for folder in ("one", "away", "back"):
        found = load(open_store(str(tmp_path / folder)))
        assert content_digest(found.context, found.blocks) == first["contentDigest"]
    assert await rest(new_rig(tmp_path / "back")) == await rest(one)


async def test_a_session_is_exported_while_it_runs(new_rig: NewRig, tmp_path: Path) -> None:
    """From its last commit and the journal behind it: every token that anybody has seen."""
    one = new_rig(tmp_path / "one", checkpoint_tokens=256)
    one.start()
    stream = one.session.submit(ask("one", prompt=PROMPT, answer=600, background=True))
    seen = text(await until(stream, 100))
    assert main(["export", str(tmp_path / "one"), str(tmp_path / "away")]) == 0
    whole = text(await events(stream))
    other = await rest(new_rig(tmp_path / "away"))
    assert other.startswith(seen)
    assert other == whole


async def test_a_spoilt_block_is_not_carried_on(
    new_rig: NewRig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await paused(new_rig(tmp_path / "one"))
    segment = next((tmp_path / "one").glob("segment-*"))
    segment.write_bytes(b"x" * segment.stat().st_size)
    assert main(["export", str(tmp_path / "one"), str(tmp_path / "away")]) == 1
    assert "SnapshotCorrupt" in capsys.readouterr().err
    assert not load(open_store(str(tmp_path / "away"))).identity


def test_a_session_is_named_by_a_label_and_not_by_a_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["fork", str(tmp_path / "one"), str(tmp_path / "two"), "--session", "../two"])
    assert "--session is '../two': write 1 to 63" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["export", "fork"])
async def test_a_store_that_is_in_use_or_empty_is_refused_by_name(
    new_rig: NewRig, tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    await paused(new_rig(tmp_path / "one"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    ending = ["--session", "x"]
    assert main([verb, str(tmp_path / "one"), str(tmp_path / "full"), *ending]) == 1
    assert "TargetInUse" in capsys.readouterr().err
    assert main([verb, str(tmp_path / "none"), str(tmp_path / "new"), *ending]) == 1
    assert "SnapshotMissing" in capsys.readouterr().err
