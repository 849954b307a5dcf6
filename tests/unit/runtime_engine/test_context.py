"""The saved context: two verbs of the store, checked bytes, fencing, and what is never removed."""

import fcntl
import os
import threading
import zlib
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from bucketserver import Forgetful, serving
from fulldisk import files_of_at_most
from hypothesis import given
from hypothesis import strategies as st
from sojourn_runtime.context.errors import (
    SnapshotCorrupt,
    SnapshotOfOtherModel,
    StaleEpoch,
    StoreFull,
    StoreUnwritable,
    UnsupportedStore,
)
from sojourn_runtime.context.filestore import FileLog
from sojourn_runtime.context.journal import TokenRecord, pack_event, pack_tokens, unpack
from sojourn_runtime.context.layout import Commit, parse
from sojourn_runtime.context.open_store import open_store
from sojourn_runtime.context.saver import Captured, Saver
from sojourn_runtime.context.snapshot import Identity, Loaded, compatible, load, read_block
from sojourn_runtime.context.state import Context, document
from sojourn_runtime.context.store import Store
from sojourn_runtime.engine.prefix import BLOCK, Entry, name_of, root_name
from sojourn_runtime.engine.request import Finish, Request, SamplingParams

IDENTITY = Identity("sha256:weights", "class-v1", 1024)
ROOT = root_name("weights")


@pytest.fixture(params=["file", "memory", "s3"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Store]:
    if request.param == "s3":
        with serving(tmp_path / "buckets", monkeypatch):
            yield open_store("s3://contexts/team/chat")
    elif request.param == "file":
        yield open_store((tmp_path / "store").as_uri())
    else:
        yield open_store(f"memory://{tmp_path}")


def saver(store: Store, *, epoch: int = 1, budget: int = 1 << 30, owner: str = "") -> Saver:
    """As a start of the session opens it."""
    loaded = load(store)
    return Saver(
        store,
        session="s",
        owner=owner,
        identity=IDENTITY,
        epoch=epoch,
        number=loaded.last.number if loaded.last.epoch == epoch else 0,
        newest=loaded.newest,
        base=loaded.base,
        blocks=loaded.blocks,
        budget=budget,
    )


def captured(context: Context | None = None, *, needed: frozenset[bytes] = frozenset()) -> Captured:
    context = context or Context()
    return Captured(
        requests=[kept.encode() for kept in context.requests.values()],
        documents={
            kind: {name: document.text for name, document in values.items()}
            for kind, values in context.documents.items()
        },
        conversations=context.conversations,
        needed=needed,
        former_log=None,
    )


def entry(number: int) -> Entry:
    tokens = (number,) * BLOCK
    return Entry(name_of(ROOT, tokens), ROOT, tokens, block=number)


def content(number: int) -> bytes:
    return bytes([number]) * IDENTITY.block_bytes


def commit(writer: Saver, *numbers: int, context: Context | None = None) -> None:
    for number in numbers:
        writer.add(entry(number), content(number))
    writer.commit(captured(context))
    writer.wait()


def request(name: str = "r") -> Request:
    params = SamplingParams(max_tokens=9, stop=("a",), logit_bias=((1, 2.0),), stop_tokens=(3,))
    return Request(id=name, prompt=(1, 2), params=params, meta="{}", conversation="c")


# -- the store --


def test_put_refuses_to_replace(store: Store) -> None:
    store.put("segment-1-1.kv", [b"first"])
    with pytest.raises(StoreUnwritable, match="segment-1-1"):
        store.put("segment-1-1.kv", [b"second"])
    assert store.read("segment-1-1.kv") == b"first"


def test_of_two_writers_one_is_told_that_it_is_stale(store: Store) -> None:
    old, new = saver(store, epoch=1), saver(store, epoch=2)
    commit(new)
    old.commit(captured())
    with pytest.raises(StaleEpoch, match="manifest-2-1"):
        old.wait()
    assert load(store).base == "manifest-2-1.json"


def test_an_older_start_cannot_commit_after_a_newer_one(store: Store) -> None:
    old = saver(store, epoch=1)
    commit(old, 1)
    commit(saver(store, epoch=2), 2)
    old.add(entry(3), content(3))
    old.commit(captured())
    with pytest.raises(StaleEpoch):
        old.wait()
    assert {block.tokens[0] for block in load(store).blocks} == {1, 2}


EARLIER, LATER = "2026-01-01T00:00:00Z/b", "2026-01-02T00:00:00Z/a"


def test_what_a_deleted_session_of_the_name_left_is_no_context(store: Store) -> None:
    commit(saver(store, owner=EARLIER), 1)
    found = load(store, owner=LATER)
    assert found.empty
    assert found.newest == ""
    assert set(found.leftover) == {name for name in store.names() if parse(name)}
    assert found.leftover[-1] == "manifest-1-1.json", "it says whose the rest is"


def test_a_deleted_session_does_not_clear_what_a_later_one_has(store: Store) -> None:
    commit(saver(store, owner=LATER), 1)
    with pytest.raises(StaleEpoch, match="a later session of this name"):
        load(store, owner=EARLIER)


@pytest.mark.parametrize("owner", ["", EARLIER])
def test_a_context_is_taken_up_by_its_owner_and_by_who_was_told_to_expect_it(
    store: Store, owner: str
) -> None:
    """Without an owner are contexts that were imported, and sessions without Kubernetes."""
    commit(saver(store, owner=owner), 1)
    assert not load(store, owner=EARLIER).empty
    assert not load(store).empty
    assert not load(store, owner=LATER, expected="manifest-1-1.json").empty


def test_what_cannot_keep_the_contract_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedStore, match="gs is not supported"):
        open_store("gs://bucket/session")
    with pytest.raises(UnsupportedStore, match="no host"):
        open_store("file://host/folder")


def test_a_server_that_ignores_conditions_is_refused_at_the_claim(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path, monkeypatch, handler=Forgetful):
        store = open_store("s3://contexts/one")
        with pytest.raises(UnsupportedStore, match="If-None-Match"):
            commit(saver(store), 1)
        assert not [name for name in store.names() if "manifest" in name]


def test_a_missing_bucket_is_told_with_what_to_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path, monkeypatch):
        store = open_store("s3://nowhere/one")
        with pytest.raises(StoreUnwritable, match=r"s3://nowhere/one.*AWS_ENDPOINT_URL"):
            store.names()


def test_of_two_commits_at_once_on_one_manifest_none_hides_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object store has no lock: whoever finds another's manifest behind its own gives way."""
    with serving(tmp_path, monkeypatch):
        store, other = (open_store("s3://contexts/one") for _ in range(2))
        store.swap(expected="", name="manifest-1-1.json", data=b"first")

        listings = iter([store.names()])  # as it was before the other's put
        names = other.names
        monkeypatch.setattr(other, "names", lambda: next(listings, None) or names())
        store.swap(expected="manifest-1-1.json", name="manifest-1-2.json", data=b"second")
        with pytest.raises(StaleEpoch, match="manifest-1-2"):
            other.swap(expected="manifest-1-1.json", name="manifest-2-1.json", data=b"claim")
        assert store.names() == {"lock", "manifest-1-1.json", "manifest-1-2.json"}


def test_a_log_can_be_read_after_each_append(store: Store) -> None:
    log = store.log("journal-1-1.log")
    assert store.read("journal-1-1.log") == b""
    log.append(b"one")
    log.append(b"two")
    assert store.read("journal-1-1.log") == b"onetwo"
    log.close()


def test_a_log_goes_on_behind_an_append_that_failed_half_way(tmp_path: Path) -> None:
    """On a full disk a part of a write fits; what is appended later must be found behind it."""
    store = open_store((tmp_path / "store").as_uri())
    log = store.log("journal-1-1.log")
    log.append(pack_event({"n": 1}))
    with files_of_at_most(64), pytest.raises(StoreFull, match="journal-1-1"):
        log.append(pack_event({"n": "long" * 99}))
    log.append(pack_event({"n": 2}))
    log.close()
    again = store.log("journal-1-1.log")
    with files_of_at_most(64), pytest.raises(StoreFull):
        again.append(pack_event({"n": "long" * 99}))
    again.append(pack_event({"n": 3}))
    again.close()
    assert list(unpack(store.read("journal-1-1.log"))) == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_a_log_that_cannot_take_half_a_record_back_takes_no_more() -> None:
    """Its file may not shrink."""
    file = os.memfd_create("log", os.MFD_ALLOW_SEALING)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    log = FileLog(Path(f"/proc/self/fd/{file}"))
    log.append(b"whole")
    with files_of_at_most(64), pytest.raises(StoreUnwritable):
        log.append(b"half" * 99)
    with pytest.raises(StoreUnwritable, match="could not be taken back"):
        log.append(b"more")
    assert os.pread(file, 99, 0) == (b"whole" + b"half" * 99)[:64]
    log.close()
    os.close(file)


def test_an_append_that_a_bucket_refused_does_not_come_with_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path / "buckets", monkeypatch):
        store = open_store("s3://contexts/team/chat")
        log = store.log("journal-1-1.log")
        log.append(b"one")
        (tmp_path / "buckets" / "contexts").rename(tmp_path / "away")
        with pytest.raises(StoreUnwritable):
            log.append(b"two")
        (tmp_path / "away").rename(tmp_path / "buckets" / "contexts")
        log.append(b"three")
        assert store.read("journal-1-1.log") == b"onethree"


def test_a_store_that_cannot_be_written_says_which_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreUnwritable, match="file/store"):
        open_store(str(tmp_path / "file" / "store")).names()


def test_a_full_store_is_told_and_keeps_what_it_had(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    commit(saver(store), 1)
    writer = saver(store, epoch=2)
    with files_of_at_most(IDENTITY.block_bytes * 2):
        for number in range(2, 9):
            writer.add(entry(number), content(number))
        writer.commit(captured())
        with pytest.raises(StoreFull, match=r"segment-2-1\.kv: no space left"):
            writer.wait()
    assert load(store).base == "manifest-1-1.json"
    assert not [name for name in store.names() if "draft" in name]


# -- snapshots --


def test_a_snapshot_gives_back_what_was_put_in(store: Store) -> None:
    context = Context()
    kept = context.add(request())
    kept.output, kept.finish, kept.computed = [5, 6], Finish.LENGTH, 3
    kept.logprobs = [(-0.5, ((5, -0.5),)), (-1.0, ())]
    context.put("response", "ä", document({"x": [1]}))
    commit(saver(store), 1, 2, context=context)
    loaded = load(store)
    assert loaded.context == context
    for block in loaded.blocks:
        target = bytearray(IDENTITY.block_bytes)
        read_block(store, block, memoryview(target))
        assert target == content(block.tokens[0])


def test_a_snapshot_of_a_newer_release_is_refused_and_nothing_older_taken(store: Store) -> None:
    writer = saver(store)
    commit(writer, 1)
    commit(writer, 2)
    body = store.read("manifest-1-2.json").rpartition(b"\nsha256:")[0]
    newer = body.replace(b'{"v": 1', b'{"v": 2', 1)
    store.delete("manifest-1-2.json")
    store.put("manifest-1-2.json", [newer, b"\nsha256:" + sha256(newer).hexdigest().encode()])
    with pytest.raises(SnapshotCorrupt, match=r"manifest-1-2\.json: version 2, .* reads 1; start"):
        load(store)


def test_a_spoilt_manifest_is_passed_over_and_said(store: Store) -> None:
    writer = saver(store)
    commit(writer, 1)
    commit(writer, 2)
    spoil(store, "manifest-1-2.json")
    loaded = load(store)
    assert loaded.base == "manifest-1-1.json"
    assert "manifest-1-2.json" in loaded.notes[0]


def test_without_a_good_manifest_nothing_is_started_anew(store: Store) -> None:
    commit(saver(store), 1)
    spoil(store, "manifest-1-1.json")
    with pytest.raises(SnapshotCorrupt, match="none of 1 manifests"):
        load(store)


def test_a_spoilt_block_is_refused(store: Store) -> None:
    commit(saver(store), 1)
    spoil(store, "segment-1-1.kv")
    with pytest.raises(SnapshotCorrupt, match=r"segment-1-1\.kv: the block at 0"):
        read_block(store, load(store).blocks[0], memoryview(bytearray(IDENTITY.block_bytes)))


def test_a_spoilt_block_is_left_out_until_it_is_saved_anew_and_its_neighbours_stay(
    store: Store,
) -> None:
    commit(saver(store), 1, 2)
    writer = saver(store, epoch=2)
    writer.forget(entry(1).name)
    assert not writer.has(entry(1).name)
    commit(writer)
    assert places(store) == {2: "segment-1-1.kv"}
    commit(writer, 1)
    assert writer.has(entry(1).name)
    assert places(store) == {1: "segment-2-1.kv", 2: "segment-1-1.kv"}


def test_a_spoilt_segment_stays_as_long_as_one_of_the_last_two_snapshots_names_it(
    store: Store,
) -> None:
    """Others may read it yet, whatever kept this process from it."""
    commit(saver(store), 1)
    writer = saver(store, epoch=2)
    go = threading.Event()

    def stand() -> None:
        assert go.wait(30)

    writer._jobs.put(stand)  # so that both commits are made before anything is tidied up
    writer.commit(captured())
    writer.forget(entry(1).name)
    writer.add(entry(1), content(1))
    writer.commit(captured())
    go.set()
    writer.wait()
    writer.close()
    assert places(store) == {1: "segment-2-1.kv"}
    store.delete("manifest-2-2.json")
    assert places(store) == {1: "segment-1-1.kv"}


def places(store: Store) -> dict[int, str]:
    """The segment of each block that the newest commit names, all of them whole."""
    blocks = load(store).blocks
    for block in blocks:
        read_block(store, block, memoryview(bytearray(IDENTITY.block_bytes)))
    return {block.tokens[0]: block.segment for block in blocks}


def spoil(store: Store, name: str) -> None:
    data = bytearray(store.read(name))
    data[len(data) // 3] ^= 1
    store.delete(name)
    store.put(name, [bytes(data)])


def test_other_weights_are_refused_and_another_class_is_said() -> None:
    context = Context()
    context.add(request())
    loaded = Loaded(context=context, identity=IDENTITY, base="manifest-1-1.json")
    assert compatible(loaded, IDENTITY, uri="u") == ""
    other = Identity("sha256:weights", "class-v2", 1024)
    assert "class-v1" in compatible(loaded, other, uri="u")
    with pytest.raises(SnapshotOfOtherModel, match="sha256:weights"):
        compatible(loaded, Identity("sha256:other", "class-v1", 1024), uri="u")


def test_the_last_two_good_snapshots_stay_and_the_rest_goes(store: Store) -> None:
    writer = saver(store)
    for number in range(1, 6):
        commit(writer, number)
    writer.close()
    names = set(store.names()) - {"lock"}
    assert names == {"manifest-1-4.json", "manifest-1-5.json"} | {
        f"segment-1-{number}.kv" for number in range(1, 6)
    }


def test_a_claim_keeps_the_snapshot_that_it_builds_on(store: Store) -> None:
    writer = saver(store)
    commit(writer, 1)
    commit(writer, 2)
    claim = saver(store, epoch=2)
    commit(claim)
    claim.close()
    assert {"manifest-1-2.json", "manifest-2-1.json"} <= set(store.names())
    assert len(load(store).blocks) == 2


def test_an_earlier_start_that_still_tidies_leaves_the_later_one_alone(store: Store) -> None:
    old = saver(store)
    commit(old, 1)
    new = saver(store, epoch=2)
    commit(new, 2)
    old._collect("manifest-1-1.json")
    new.close()
    assert {block.tokens[0] for block in load(store).blocks} == {1, 2}
    for block in load(store).blocks:
        read_block(store, block, memoryview(bytearray(IDENTITY.block_bytes)))


def test_the_oldest_blocks_make_room_but_never_those_in_use(store: Store) -> None:
    writer = saver(store, budget=3 * IDENTITY.block_bytes)
    needed = frozenset({entry(1).name})
    for number in range(1, 6):
        writer.add(entry(number), content(number))
        writer.commit(captured(needed=needed))
        writer.wait()
    assert {block.tokens[0] for block in load(store).blocks} == {1, 4, 5}
    dropped = [name for news in writer.news() for name in news.dropped]
    assert dropped == [entry(2).name, entry(3).name]


def test_what_somebody_came_back_for_outlives_what_was_written_after_it(store: Store) -> None:
    writer = saver(store, budget=3 * IDENTITY.block_bytes)
    for number in range(1, 6):
        writer.add(entry(number), content(number))
        writer.commit(captured())
        writer.wait()
        writer.used(writer.blocks[entry(1).name])
    assert {block.tokens[0] for block in load(store).blocks} == {1, 4, 5}


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_names_of_objects_can_be_read_back(epoch: int, number: int) -> None:
    place = Commit(epoch, number)
    assert parse(place.manifest) == ("manifest", place)
    assert parse(place.journal) == ("journal", place)
    assert parse(place.segment) == ("segment", place)
    assert parse(f".{place.segment}.draft") is None


# -- the journal --

RECORDS = [
    {"kind": "request", "number": 0, "request": {}},
    TokenRecord(0, 0, 7, 0),
    TokenRecord(0, 1, 8, 1),
]
PACKED = pack_event(RECORDS[0]) + pack_tokens(RECORDS[1:])  # type: ignore[arg-type]


@given(st.integers(0, len(PACKED)))
def test_a_torn_journal_is_read_up_to_the_tear(cut: int) -> None:
    found = list(unpack(PACKED[:cut]))
    assert found == RECORDS[: len(found)]
    assert (len(found) == len(RECORDS)) == (cut == len(PACKED))


@given(st.integers(0, len(PACKED) - 1), st.integers(1, 255))
def test_a_changed_byte_in_a_journal_ends_it(at: int, change: int) -> None:
    spoilt = bytearray(PACKED)
    spoilt[at] ^= change
    found = list(unpack(bytes(spoilt)))
    assert found == RECORDS[: len(found)]
    assert len(found) < len(RECORDS)


def replayed(*records: Any) -> Context:
    context = Context()
    context.replay([context.event(Context().add(request())), *records])
    return context


def test_a_journal_may_be_replayed_twice() -> None:
    records = [TokenRecord(0, 0, 5, 0), TokenRecord(0, 1, 6, int(Finish.STOP))]
    assert replayed(*records) == replayed(*records, *records)
    assert replayed(*records).requests["r"].output == [5, 6]


def test_the_token_of_a_later_start_wins() -> None:
    """A start that was replaced while it still wrote: its journal is read first."""
    context = replayed(TokenRecord(0, 0, 5, 0), TokenRecord(0, 1, 9, 0), TokenRecord(0, 1, 6, 0))
    assert context.requests["r"].output == [5, 6]


def test_a_cancel_ends_a_request_unless_it_ended_by_itself() -> None:
    cancel = {"kind": "cancel", "id": "r"}
    assert replayed(cancel, TokenRecord(0, 0, 5, 0)).requests["r"].finish is Finish.CANCELLED
    ended = TokenRecord(0, 0, 5, int(Finish.STOP))
    assert replayed(cancel, ended).requests["r"].finish is Finish.STOP
    assert replayed(ended, cancel).requests["r"].finish is Finish.STOP


def test_checksums_are_those_of_zlib(store: Store) -> None:
    """Other tools can check a segment: the manifest says crc32."""
    commit(saver(store), 4)
    assert load(store).blocks[0].checksum == zlib.crc32(content(4))
