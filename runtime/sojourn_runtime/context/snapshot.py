"""A commit as bytes: what a manifest says, how it is checked, and how the last good one is found.

The manifest is JSON with a sha256 behind it; blocks of KV lie in segments, each with a checksum
here. It is written last, so that whatever it names is already durable. Who writes, and when,
belongs to `saver`.
"""

import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, Final

from sojourn_runtime.context import layout
from sojourn_runtime.context.errors import (
    ContextError,
    SnapshotCorrupt,
    SnapshotOfOtherModel,
    SnapshotTooNew,
    StaleEpoch,
)
from sojourn_runtime.context.journal import unpack
from sojourn_runtime.context.layout import BEGINNING, Commit
from sojourn_runtime.context.state import Context, restore
from sojourn_runtime.context.store import Store, check_present, newest

VERSION: Final = 1
_SEAL: Final = b"\nsha256:"


@dataclass(frozen=True, slots=True)
class Identity:
    """What the KV of a context depends on beside its tokens."""

    weights_digest: str
    kernel_class: str
    block_bytes: int
    row_exact: bool = field(default=True, compare=False)
    """See `model.protocol.Runner`."""


@dataclass(frozen=True, slots=True)
class SavedBlock:
    """Where a block of KV lies, and how it is recognised (see `engine.prefix`)."""

    name: bytes
    parent: bytes
    tokens: tuple[int, ...]
    segment: str
    offset: int
    checksum: int

    def text(self) -> str:
        """As the manifest has it; made once, since every later commit repeats it."""
        fields = [self.name.hex(), self.parent.hex(), self.tokens, self.segment, self.offset]
        return json.dumps([*fields, self.checksum], separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class Facts:
    """A committed snapshot, in the words of the status and the termination message."""

    uri: str
    manifest: str
    tokens: int
    bytes: int
    new_bytes: int
    conversations: int
    digest: str
    weights_digest: str
    kernel_class: str
    epoch: int
    saved: str

    def to_json(self) -> dict[str, Any]:
        return {
            "uri": self.uri,
            "manifest": self.manifest,
            "tokens": self.tokens,
            "bytes": self.bytes,
            "newBytes": self.new_bytes,
            "conversations": self.conversations,
            "digest": self.digest,
            "weightsDigest": self.weights_digest,
            "kernelClass": self.kernel_class,
            "epoch": self.epoch,
            "saved": self.saved,
        }


@dataclass(frozen=True, slots=True)
class Manifest:
    """The content of one commit, ready to be encoded; texts are JSON already."""

    commit: Commit
    session: str
    owner: str
    saved: str
    identity: Identity
    inexact: str
    requests: Sequence[str]
    documents: Mapping[str, Mapping[str, str]]
    blocks: Iterable[str]

    def encode(self) -> bytes:
        head = {
            "v": VERSION,
            "session": self.session,
            "owner": self.owner,
            "epoch": self.commit.epoch,
            "number": self.commit.number,
            "saved": self.saved,
            "weightsDigest": self.identity.weights_digest,
            "kernelClass": self.identity.kernel_class,
            "blockBytes": self.identity.block_bytes,
            "inexact": self.inexact,
        }
        documents = ",".join(
            f"{json.dumps(kind)}:{{"
            + ",".join(f"{json.dumps(name)}:{text}" for name, text in values.items())
            + "}"
            for kind, values in self.documents.items()
        )
        body = (
            f'{json.dumps(head)[:-1]},\n"requests":[{",".join(self.requests)}],\n'
            f'"documents":{{{documents}}},\n"blocks":[\n' + ",\n".join(self.blocks) + "]}"
        ).encode()
        return body + _SEAL + hashlib.sha256(body).hexdigest().encode()


def digest_of(data: bytes) -> str:
    """The digest that a manifest carries."""
    return f"sha256:{data[-64:].decode()}"


def document_texts(context: Context) -> dict[str, dict[str, str]]:
    """The documents of a context, encoded; cheap, since each was encoded when it was put."""
    return {
        kind: {name: document.text for name, document in values.items()}
        for kind, values in context.documents.items()
    }


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a store holds: the context up to the last journal record, and the blocks saved."""

    context: Context
    blocks: tuple[SavedBlock, ...] = ()
    identity: Identity | None = None
    newest: str = ""
    """Name of the newest manifest, good or not: what the next commit expects to find."""
    base: str = ""
    """Name of the manifest that was read."""
    last: Commit = BEGINNING
    """The highest place used in the store by anything."""
    bytes: int = 0
    digest: str = ""
    saved: str = ""
    inexact: str = ""
    """Why what was said in it is not the uninterrupted text; empty: it is."""
    notes: tuple[str, ...] = field(default=())
    """What was found broken and passed over, for people."""
    leftover: tuple[str, ...] = ()
    """Objects of a deleted session of the same name, in the order to delete them."""

    @property
    def empty(self) -> bool:
        return not self.context.requests and not self.context.documents and not self.blocks


def load(store: Store, *, expected: str = "", owner: str = "") -> Loaded:
    """The newest good manifest with all journals behind it; SnapshotCorrupt if none is good.

    `expected` was committed once: SnapshotMissing if neither it nor a later one is there. Without
    it, what an earlier owner of the store left is no context but `leftover`; StaleEpoch if a later
    one has the store.
    """
    names = store.names()
    check_present(names, expected=expected, uri=store.uri)
    places = sorted(found for name in names if (found := layout.parse(name)) is not None)
    commits = sorted((c for kind, c in places if kind == "manifest"), reverse=True)
    last = max((commit for _, commit in places), default=BEGINNING)
    notes = []
    for commit in commits:
        try:
            value, data = _read(store, commit.manifest)
        except SnapshotTooNew:
            raise
        except ContextError as error:
            notes.append(str(error))
            continue
        other = value.get("owner", "")
        if owner and other and other != owner and not expected:
            return _left(names, other=other, owner=owner, uri=store.uri)
        context = restore(value["requests"], value["documents"])
        for kind, place in places:
            if kind == "journal" and place >= commit:
                context.replay(unpack(store.read(place.journal)))
        return Loaded(
            context=context,
            blocks=tuple(_block(fields) for fields in value["blocks"]),
            identity=Identity(value["weightsDigest"], value["kernelClass"], value["blockBytes"]),
            newest=newest(names),
            base=commit.manifest,
            last=last,
            bytes=len(data),
            digest=digest_of(data),
            saved=value["saved"],
            inexact=value.get("inexact", "") if context.requests or context.documents else "",
            notes=tuple(notes),
        )
    if commits:
        raise SnapshotCorrupt(
            f"{store.uri}: none of {len(commits)} manifests is whole ({'; '.join(notes)}); restore "
            "the folder from a backup, or delete it to start without the context"
        )
    return Loaded(context=Context(), last=last)


def _left(names: AbstractSet[str], *, other: str, owner: str, uri: str) -> Loaded:
    """An empty context in place of that of another session of the name."""
    if other > owner:
        raise StaleEpoch(
            f"{uri}: a later session of this name ({other}) has the store, this is {owner}; end it"
        )
    # Manifests last: whoever is cut off in between finds again whose the rest is.
    ours = sorted((layout.is_manifest(name), name) for name in names if layout.parse(name))
    return Loaded(context=Context(), leftover=tuple(name for _, name in ours))


def _read(store: Store, name: str) -> tuple[dict[str, Any], bytes]:
    data = store.read(name)
    body, seal, digest = data.rpartition(_SEAL)
    if not seal or hashlib.sha256(body).hexdigest().encode() != digest:
        raise SnapshotCorrupt(f"{store.uri}/{name}: its bytes differ from its sha256")
    value = json.loads(body)
    if value["v"] != VERSION:
        raise SnapshotTooNew(
            f"{store.uri}/{name}: version {value['v']}, and this release reads {VERSION}; start "
            "the session with the release that saved it, or a newer one"
        )
    return value, data


def _block(fields: list[Any]) -> SavedBlock:
    name, parent, tokens, segment, offset, checksum = fields
    return SavedBlock(
        bytes.fromhex(name), bytes.fromhex(parent), tuple(tokens), segment, offset, checksum
    )


def read_block(store: Store, block: SavedBlock, target: memoryview) -> None:
    """Fill `target` with a saved block; SnapshotCorrupt if these are not the bytes saved."""
    store.read_into(block.segment, block.offset, target)
    if zlib.crc32(target) != block.checksum:
        raise SnapshotCorrupt(
            f"{store.uri}/{block.segment}: the block at {block.offset} differs from its checksum; "
            "its tokens are computed again"
        )


def compatible(loaded: Loaded, identity: Identity, *, uri: str) -> str:
    """Empty if the saved KV can be used, else why the context is computed from its tokens.

    Other weights are refused: the context would go on in another voice.
    """
    saved = loaded.identity
    if saved is None or loaded.empty:
        return ""
    if saved.weights_digest != identity.weights_digest:
        raise SnapshotOfOtherModel(
            f"{uri}/{loaded.base}: made with weights {saved.weights_digest}, this session runs "
            f"{identity.weights_digest}; give the session its model back, or another store"
        )
    if saved.kernel_class != identity.kernel_class:
        return (
            f"saved by kernel class {saved.kernel_class}, computed again by {identity.kernel_class}"
        )
    return ""


def unsteady(loaded: Loaded, identity: Identity) -> str:
    """Empty if a context that goes on in these kernels gets the text it would have got anyway."""
    if identity.row_exact or not (loaded.context.requests or loaded.context.documents):
        return ""
    return (
        f"taken up by kernel class {identity.kernel_class}, which is not row-exact: another batch "
        "may turn a close call between two tokens"
    )
