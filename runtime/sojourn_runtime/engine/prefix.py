"""Which content is where: blocks of KV by the tokens that led to them.

A block's name is a hash over its tokens and its parent's name; the root's name stands for weights,
kernel class, rope and salt. So an equal name means equal bytes, in this process or another, and
the KV of a shared beginning is found whoever computed it. A block is on the device, on the host, in
the store (`saved`), or in several of them. Partly equal blocks serve too: by copy, as far as they
agree. Pure: no bytes.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice, takewhile
from typing import TypeAlias

BLOCK = 64
"""Tokens of a block: one tile of the attention kernels."""
SIBLINGS = 32
"""Newest blocks under one parent that are compared token by token: bounds a search, a guess."""

Name: TypeAlias = bytes


def root_name(*parts: str) -> Name:
    """The parent of every first block computed with these weights, class, rope and salt."""
    return blake2b("\0".join(parts).encode(), digest_size=16).digest()


def name_of(parent: Name, tokens: Sequence[int]) -> Name:
    """The name of the block with these tokens behind `parent`."""
    return blake2b(parent + struct.pack(f"<{len(tokens)}I", *tokens), digest_size=16).digest()


@dataclass(slots=True, eq=False)
class Entry:
    """A known block: on the device unless `block` is None, on the host unless `host` is None."""

    name: Name
    parent: Name
    tokens: tuple[int, ...]
    block: int | None = None
    saved: bool = False
    """The store has it, or the saver will have written it."""
    host: int | None = None
    pins: int = 0
    """How many requests will come back for it (see `host`)."""


@dataclass(frozen=True, slots=True)
class Hit:
    """`count` first tokens of the entry's block are the wanted ones."""

    entry: Entry
    count: int


class PrefixIndex:
    """All known blocks, by name, by parent and by place."""

    __slots__ = ("_by_block", "_by_name", "_by_parent")

    def __init__(self) -> None:
        self._by_name: dict[Name, Entry] = {}
        self._by_parent: dict[Name, dict[Name, None]] = {}
        self._by_block: dict[int, Entry] = {}

    def match(self, parent: Name, tokens: Sequence[int], names: Sequence[Name]) -> list[Hit]:
        """The longest known beginning of `tokens`: full blocks, then at most one in part.

        `names` are those of the full blocks (`names_of`), which callers keep.
        """
        hits = []
        for name in names[: len(tokens) // BLOCK]:
            entry = self._by_name.get(name)
            if entry is None:
                break
            hits.append(Hit(entry, BLOCK))
            parent = name
        start = len(hits) * BLOCK
        piece = tuple(tokens[start : start + BLOCK])
        return hits + self._in_part(parent, piece) if piece else hits

    def _in_part(self, parent: Name, piece: tuple[int, ...]) -> list[Hit]:
        siblings = islice(reversed(self._by_parent.get(parent, {})), SIBLINGS)
        entries = [self._by_name[name] for name in siblings]
        exact = self._by_name.get(name_of(parent, piece))
        if exact is not None:  # where a request stood when it was paused, whoever has come since
            entries.append(exact)
        hits = [Hit(entry, _agreeing(entry.tokens, piece)) for entry in entries]
        best = max(hits, key=lambda hit: (hit.count, hit.entry.block is not None), default=None)
        return [best] if best is not None and best.count else []

    def get(self, name: Name) -> Entry | None:
        return self._by_name.get(name)

    def at(self, block: int) -> Entry | None:
        """What the block is known for."""
        return self._by_block.get(block)

    def put(self, block: int, parent: Name, tokens: Sequence[int]) -> Entry:
        """The block has this content now. A second block of equal content stays nameless."""
        name = name_of(parent, tokens)
        entry = self._by_name.get(name)
        if entry is not None and entry.block is not None:
            return entry
        self.forget(block)
        if entry is None:
            entry = self._add(Entry(name, parent, tuple(tokens)))
        entry.block = block
        self._by_block[block] = entry
        return entry

    def forget(self, block: int) -> None:
        """The block gets, or has, another content."""
        entry = self._by_block.pop(block, None)
        if entry is not None:
            entry.block = None
            self.prune(entry)

    def add_saved(self, parent: Name, tokens: Sequence[int]) -> Entry:
        """The store has this block."""
        name = name_of(parent, tokens)
        entry = self._by_name.get(name) or self._add(Entry(name, parent, tuple(tokens)))
        entry.saved = True
        return entry

    def forget_saved(self, name: Name) -> None:
        """The store has it no more, or not whole."""
        entry = self._by_name.get(name)
        if entry is not None:
            entry.saved = False
            self.prune(entry)

    def on_device(self) -> Iterator[Entry]:
        """Every block on the device that has a name."""
        return iter(tuple(self._by_block.values()))

    def entries(self) -> Iterator[Entry]:
        """Every known block."""
        return iter(tuple(self._by_name.values()))

    def keeps(self, block: int) -> bool:
        return block in self._by_block

    def _add(self, entry: Entry) -> Entry:
        self._by_name[entry.name] = entry
        self._by_parent.setdefault(entry.parent, {})[entry.name] = None
        return entry

    def prune(self, entry: Entry) -> None:
        """Forget the entry if it is nowhere any more."""
        if entry.block is None and entry.host is None and not entry.saved:
            del self._by_name[entry.name]
            siblings = self._by_parent[entry.parent]
            del siblings[entry.name]
            if not siblings:
                del self._by_parent[entry.parent]

    def check(self) -> None:
        """Raises unless the three views agree."""
        placed = {e.block: e for e in self._by_name.values() if e.block is not None}
        if placed != self._by_block:
            raise AssertionError("blocks and names disagree")
        if any(e.block is None and e.host is None and not e.saved for e in self.entries()):
            raise AssertionError("an entry is nowhere")
        listed = [name for names in self._by_parent.values() for name in names]
        if sorted(listed) != sorted(self._by_name):
            raise AssertionError("parents and names disagree")


def _agreeing(one: Sequence[int], other: Sequence[int]) -> int:
    """How many first tokens are equal."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def names_of(root: Name, tokens: Sequence[int], known: Iterable[Name] = ()) -> list[Name]:
    """Names of all full blocks of `tokens`, of which the first ones are known."""
    names = list(known)
    for start in range(len(names) * BLOCK, len(tokens) - BLOCK + 1, BLOCK):
        parent = names[-1] if names else root
        names.append(name_of(parent, tokens[start : start + BLOCK]))
    return names
