"""Which blocks of the KV pool are free, and how many requests use each of the others.

Pure bookkeeping over block numbers; what a block contains is known to `prefix`, its bytes to the
model's runner. Every operation takes constant time, also out of the middle of the free list. That
is an `OrderedDict`: taking the first of a `dict` again and again walks over the gap left in front.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator


class BlockPool:
    """Blocks 0..count-1. Free blocks whose content has a name are reused last, oldest first."""

    __slots__ = ("_blank", "_kept", "_refs", "count")

    def __init__(self, count: int) -> None:
        self.count = count
        self._refs = [0] * count
        self._blank = list(range(count - 1, -1, -1))
        self._kept: OrderedDict[int, None] = OrderedDict()

    @property
    def free(self) -> int:
        """Blocks that nobody uses, with or without content worth keeping."""
        return len(self._blank) + len(self._kept)

    @property
    def blank(self) -> int:
        """Free blocks that hold nothing worth keeping."""
        return len(self._blank)

    def kept(self) -> Iterator[int]:
        """Free blocks with content, the least recently used first."""
        return iter(self._kept)

    def refs(self, block: int) -> int:
        """How many requests use the block."""
        return self._refs[block]

    def take(self) -> int | None:
        """A block for one user, or None; the caller forgets what the block was known for."""
        if self._blank:
            block = self._blank.pop()
        elif self._kept:
            block, _ = self._kept.popitem(last=False)
        else:
            return None
        self._refs[block] = 1
        return block

    def share(self, block: int) -> None:
        """One more user; a free block comes back into use with its content."""
        if self._refs[block] == 0 and self._kept.pop(block, block) is not None:
            raise ValueError(f"block {block} holds nothing to share")
        self._refs[block] += 1

    def release(self, block: int, *, keep: bool) -> None:
        """One user less; the last one says whether the content is worth keeping."""
        if self._refs[block] == 0:
            raise ValueError(f"block {block} is released more often than it was taken")
        self._refs[block] -= 1
        if self._refs[block] == 0:
            if keep:
                self._kept[block] = None
            else:
                self._blank.append(block)

    def drop(self, block: int) -> None:
        """The content of a block is worthless now; if it is free it goes first."""
        if block in self._kept:
            del self._kept[block]
            self._blank.append(block)

    def check(self, used: Iterable[int]) -> None:
        """Raises unless the users' blocks (with repetition) and the free ones make up the pool."""
        counted = Counter(used)
        if any(self._refs[block] != counted[block] for block in range(self.count)):
            raise AssertionError(f"references {self._refs} differ from use {dict(counted)}")
        free = [*self._blank, *self._kept]
        if sorted([*free, *counted]) != list(range(self.count)):
            raise AssertionError(f"free {sorted(free)} and used {sorted(counted)} are not the pool")
