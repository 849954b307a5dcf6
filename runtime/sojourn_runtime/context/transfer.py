"""A saved context from one store into another: to carry it elsewhere, to bring it back, to fork it.

Every block is checked on its way, and the copy is read back and compared before it counts. Nothing
of the source is changed; the target must hold nothing yet. No model is needed.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from sojourn_runtime.context.errors import ContextError, SnapshotMissing, StoreUnwritable
from sojourn_runtime.context.saver import Captured, Saver
from sojourn_runtime.context.snapshot import (
    Facts,
    Identity,
    Loaded,
    SavedBlock,
    document_texts,
    load,
    read_block,
)
from sojourn_runtime.context.state import Context
from sojourn_runtime.context.store import Store
from sojourn_runtime.engine.prefix import Entry

TRIES: Final = 3
"""A session that runs meanwhile may collect what an older manifest names: then from the newest."""


class TargetInUse(ContextError):  # noqa: N818 - named as the reason is
    """The target holds something already."""

    reason = "TargetInUse"
    retry = False


@dataclass(frozen=True, slots=True)
class Transferred:
    """What was copied; `digest` is that of the content, equal in source and target."""

    session: str
    digest: str
    requests: int
    blocks: int
    facts: Facts

    def to_json(self) -> dict[str, Any]:
        return {
            "session": self.session,
            "contentDigest": self.digest,
            "requests": self.requests,
            "blocks": self.blocks,
            "snapshot": self.facts.to_json(),
        }


def transfer(source: Store, target: Store, *, session: str) -> Transferred:
    """Copy the newest good context of `source`, with the journal behind it, as `session`'s."""
    if target.names():
        raise TargetInUse(f"{target.uri}: it holds something already; name an empty or new folder")
    for left in reversed(range(TRIES)):
        loaded = load(source)
        if loaded.identity is None:
            raise SnapshotMissing(f"{source.uri}: no context is saved there; check the URI")
        try:
            facts = _copy(source, target, loaded, loaded.identity, session=session)
            copied = _reread(target, loaded.identity)
            break
        except ContextError:
            for name in target.names():
                target.delete(name)
            if not left or load(source).base == loaded.base:
                raise
    digest = content_digest(loaded.context, loaded.blocks)
    if copied != digest:
        raise StoreUnwritable(f"{target.uri}: what was written reads back differently; try again")
    return Transferred(session, digest, len(loaded.context.requests), len(loaded.blocks), facts)


def _copy(
    source: Store, target: Store, loaded: Loaded, identity: Identity, *, session: str
) -> Facts:
    saver = Saver(
        target,
        session=session,
        identity=identity,
        epoch=1,
        number=0,
        newest="",
        base="",
        inexact=loaded.inexact,
        budget=len(loaded.blocks) * identity.block_bytes,
    )
    try:
        for block in loaded.blocks:
            if not saver.room:
                saver.wait()
            entry = Entry(block.name, block.parent, block.tokens)
            saver.add(entry, memoryview(_read(source, block, identity)))
        saver.commit(
            Captured(
                requests=[kept.encode() for kept in loaded.context.requests.values()],
                documents=document_texts(loaded.context),
                conversations=loaded.context.conversations,
                needed=frozenset(),
                former_log=None,
            )
        )
        saver.wait()
        return saver.news()[-1].facts
    finally:
        saver.close()


def _read(store: Store, block: SavedBlock, identity: Identity) -> bytearray:
    data = bytearray(identity.block_bytes)
    read_block(store, block, memoryview(data))
    return data


def _reread(target: Store, identity: Identity) -> str:
    """The digest of what the target holds, after a look at every block."""
    found = load(target)
    for block in found.blocks:
        _read(target, block, identity)
    return content_digest(found.context, found.blocks)


def content_digest(context: Context, blocks: Iterable[SavedBlock]) -> str:
    """Over what was said, what runs, and the checksum of each block, wherever they lie."""
    digest = hashlib.sha256()
    for kept in context.requests.values():
        digest.update(kept.encode().encode())
    for kind, texts in sorted(document_texts(context).items()):
        for name, text in sorted(texts.items()):
            digest.update(f"{kind}\0{name}\0{text}\0".encode())
    for block in sorted(blocks, key=lambda block: block.name):
        digest.update(block.name + block.checksum.to_bytes(4, "little"))
    return f"sha256:{digest.hexdigest()}"
