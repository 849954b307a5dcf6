"""Who computes on a shared GPU now: small pages that its grants raise flags in and look at.

Layout and files. The device plugin creates them (`create_index`, `create_grant`) and alone writes
the tier. The two sides on the latency path are `arbiter_page` (a pod's own page) and
`arbiter_watch` (the others'). No policy of requests, no sleeping, no logging in any of them.

Per GPU, on the host: `/run/sojourn/<uuid>/grants/`, seen by every pod of that GPU read-only:

    index              written by the plugin: generation (bumped at every change), time limits
    <slot>/tier        written by the plugin: priority, share, time slice, bytes of one grant
    <slot>/pod/page    written by the grant's pod alone (only `pod/` is mounted writable there)
"""

import errno
import fcntl
import mmap
import os
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

VERSION: Final = 1
MAGIC: Final = 0x534A_4152_4249_0000 | VERSION
"""First word of each file; a layout that readers of this version would misread changes it."""

# All words are 64 bits wide in native order and are stored one by one through a memoryview, which
# is one store instruction each; `struct` with an explicit byte order writes byte by byte instead.
WORD: Final = 8
PAGE_WORDS: Final = 16
PAGE_BYTES: Final = PAGE_WORDS * WORD
(
    W_MAGIC,
    W_FLAG,  # counts changes: odd is raised
    W_SINCE,  # monotonic ns of the flag's last rise or fall
    W_BEAT,  # monotonic ns of the owner's last sign of life
    W_STEPS,  # steps (token boundaries passed) begun
    W_STEPS_DONE,  # steps ended; differs from the former while one computes
    W_WANTS,  # 1 while the owner has work (for turns among equals)
    W_TURN,  # monotonic ns since when the owner holds the turn among equals; 0 while it does not
    W_SERVED,  # ns computed, in all
    W_CREDIT,  # virtual time of the turns: ns divided by share
    W_YIELDED,  # ns waited for others, in all
    W_ALLOC_AT,  # monotonic ns of the next four; 0 while the owner has never told them
    W_ALLOC_RESERVED,  # bytes that the owner's allocator holds
    W_ALLOC_USED,  # of them, in use
    W_ALLOC_SPLIT,  # of them, idle and not to be given back: parts of blocks in use
    W_ALLOC_LARGEST,  # the largest idle block
) = range(PAGE_WORDS)

UNKNOWN: Final = 2**64 - 1
"""In place of an allocator's figure that is not counted: 0 is a figure."""

INDEX_WORDS: Final = 8
INDEX_BYTES: Final = INDEX_WORDS * WORD
I_MAGIC, I_GENERATION, I_STALE_NS, I_HOLD_NS = range(4)

TIER_FORMAT: Final = struct.Struct("=QqQQQ")
"""Magic, priority, share, time slice in ns, bytes."""

STALE_NS: Final = 1_000_000_000
"""An owner that has not beaten for this long is taken for stopped, and its flag for fallen. A guess
between a garbage collection (tens of ms) and what a user of a lower tier accepts to lose."""
HOLD_NS: Final = 120_000_000_000
"""The longest that one rise of the flag counts: some 4,000 tokens at 30 ms."""
LOWEST: Final = -(2**31)
"""Priority of a grant whose pod is not known yet: below every tier."""

INDEX: Final = "index"
TIER: Final = "tier"
POD: Final = "pod"
PAGE: Final = "page"

_WANTS_AT: Final = W_WANTS * WORD
_NONE: Final = bytes(WORD)
_EMPTY_PAGE: Final = struct.pack("=16Q", MAGIC, *[0] * (PAGE_WORDS - 1))
_FLOCK: Final = struct.Struct("hhqqi4x")
"""`struct flock` of 64-bit Linux: type, whence, start, length, pid."""


class ArbiterError(Exception):
    """A page, tier or index is absent, foreign or of another version; the text names the file."""


class PageTakenError(ArbiterError):
    """Another process owns this page: one runtime per grant."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What all readers of one GPU go by; kept in its index."""

    stale_ns: int = STALE_NS
    hold_ns: int = HOLD_NS


@dataclass(frozen=True, slots=True)
class Tier:
    """What the plugin granted; `share` in thousandths of an A100."""

    priority: int = LOWEST
    share: int = 0
    time_slice_ns: int = 50_000_000
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Allocator:
    """What a runtime says of its own memory allocator, in bytes, and when (monotonic ns).

    None: the allocator does not count this.
    """

    at_ns: int
    reserved: int
    used: int
    inactive_split: int | None
    largest_free: int | None


@dataclass(frozen=True, slots=True)
class PageState:
    """One page at one moment, for reports; on the latency path `Watch` reads single words."""

    flag: int
    """Counts changes: the same odd number in two looks is one and the same rise."""
    since_ns: int
    beat_ns: int
    steps: int
    steps_done: int
    wants: bool
    turn_since_ns: int
    served_ns: int
    credit: int
    yielded_ns: int
    locked: bool
    allocator: Allocator | None

    @property
    def raised(self) -> bool:
        return bool(self.flag & 1)


# ---------------------------------------------------------------- locks


def in_time(now_ns: int, *, beat_ns: int, since_ns: int, stale_ns: int, hold_ns: int) -> bool:
    """Whether a raised flag still counts: its owner beats, and has not held for too long.

    One rule for who obeys a flag and who judges the others by it. A time to come is a forged one.
    """
    beats = -stale_ns <= now_ns - beat_ns <= stale_ns
    return beats and -stale_ns <= now_ns - since_ns <= hold_ns


def lock(fd: int) -> int:
    """Try to take the page for this open file description.

    Returns the kind of lock that is in the way, or F_UNLCK when the page is ours. A read lock in
    the way is another pod meddling (it can open the page read-only): no reason to give up.
    """
    want = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, PAGE_BYTES, 0)
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, want)
    except OSError as error:
        if error.errno not in {errno.EAGAIN, errno.EACCES}:
            raise
        return locked_by(fd) or fcntl.F_RDLCK
    return fcntl.F_UNLCK


def locked_by(fd: int) -> int:
    """Kind of lock that another file description holds on the page; F_UNLCK is none."""
    probe = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, PAGE_BYTES, 0)
    kind: int = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, probe))[0]
    return kind


# ---------------------------------------------------------------- files


def open_file(path: Path, *, size: int, writable: bool = False) -> int:
    """A descriptor of one of our files, never of a link, pipe or device in its place."""
    access = os.O_RDWR if writable else os.O_RDONLY
    try:
        fd = os.open(path, access | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise ArbiterError(f"{path}: {error.strerror}; is the GPU granted to this pod?") from error
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_size < size:
        os.close(fd)
        raise ArbiterError(f"{path}: not a file of at least {size} bytes")
    return fd


def map_words(fd: int, *, count: int, path: Path, writable: bool = False) -> memoryview:
    """The file's words in shared memory, after a look at the magic one."""
    access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
    words = memoryview(mmap.mmap(fd, count * WORD, access=access)).cast("Q")
    if words[0] != MAGIC:
        raise ArbiterError(f"{path}: layout {words[0]:#x}, this release reads {MAGIC:#x}")
    return words


def _create(path: str, content: bytes, *, mode: int) -> None:
    """Write under another name first: readers see a whole file or none."""
    draft = f"{path}.new"
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        os.write(fd, content)
        os.fchmod(fd, mode)  # the umask had its say above
    finally:
        os.close(fd)
    os.rename(draft, path)  # noqa: PTH104


def create_index(grants: Path, limits: Limits = Limits()) -> memoryview:
    """Make a GPU's folder and index, or open them again after a restart; returns its words."""
    grants.mkdir(parents=True, exist_ok=True)
    path = grants / INDEX
    if not path.exists():
        _create(str(path), struct.pack("=8Q", MAGIC, 1, 0, 0, *[0] * 4), mode=0o644)
    fd = open_file(path, size=INDEX_BYTES, writable=True)
    words = map_words(fd, count=INDEX_WORDS, path=path, writable=True)
    os.close(fd)
    words[I_STALE_NS], words[I_HOLD_NS] = limits.stale_ns, limits.hold_ns
    return words


def read_index(grants: Path) -> memoryview:
    """A GPU's index, as its pods see it."""
    fd = open_file(grants / INDEX, size=INDEX_BYTES)
    words = map_words(fd, count=INDEX_WORDS, path=grants / INDEX)
    os.close(fd)
    return words


def slots(grants: Path) -> list[str]:
    """All grants of a GPU, those that nobody holds yet as well."""
    return sorted(entry.name for entry in os.scandir(grants) if entry.name.isdecimal())


def create_grant(grants: Path, slot: str, tier: Tier = Tier()) -> Path:
    """Make one grant's folder; returns `pod/`, the folder to mount writable.

    The pod may write the page but neither replace nor remove it: the folder is the plugin's.
    The caller bumps the index afterwards.
    """
    pod = f"{grants}/{slot}/{POD}"  # plain strings: this is done while allocations come
    os.makedirs(pod, exist_ok=True)  # noqa: PTH103
    write_tier(grants, slot, tier)
    if not os.access(f"{pod}/{PAGE}", os.F_OK):
        _create(f"{pod}/{PAGE}", _EMPTY_PAGE, mode=0o666)
    return Path(pod)


def write_tier(grants: Path, slot: str, tier: Tier) -> None:
    """Set what a grant may claim. The caller bumps the index afterwards."""
    content = TIER_FORMAT.pack(MAGIC, tier.priority, tier.share, tier.time_slice_ns, tier.bytes)
    _create(f"{grants}/{slot}/{TIER}", content, mode=0o644)


def read_tier(grants: Path, slot: str) -> Tier:
    """What the plugin granted to `slot`."""
    path = grants / slot / TIER
    fd = open_file(path, size=TIER_FORMAT.size)
    try:
        magic, *fields = TIER_FORMAT.unpack(os.pread(fd, TIER_FORMAT.size, 0))
    finally:
        os.close(fd)
    if magic != MAGIC:
        raise ArbiterError(f"{path}: layout {magic:#x}, this release reads {MAGIC:#x}")
    return Tier(*fields)


def open_page(grants: Path, slot: str) -> int:
    """A descriptor to read a page from, by `read_open`; the caller closes it."""
    return open_file(grants / slot / POD / PAGE, size=PAGE_BYTES)


def read_page(grants: Path, slot: str) -> PageState:
    """One page by a read, not a mapping: safe against an owner that cuts its file short."""
    fd = open_page(grants, slot)
    try:
        return read_open(fd, path=grants / slot)
    finally:
        os.close(fd)


def has_work(fd: int) -> bool:
    """Whether the owner of the page may have work: one cheap read, for those who idle."""
    return os.pread(fd, WORD, _WANTS_AT) != _NONE


def read_open(fd: int, *, path: Path) -> PageState:
    """The page behind a descriptor; `path` is for the error's text."""
    content = os.pread(fd, PAGE_BYTES, 0)
    locked = locked_by(fd) != fcntl.F_UNLCK
    if len(content) < PAGE_BYTES:
        raise ArbiterError(f"{path}: cut short by its owner")
    words = struct.unpack("=16Q", content)
    if words[W_MAGIC] != MAGIC:
        raise ArbiterError(f"{path}: layout {words[W_MAGIC]:#x}, this release reads {MAGIC:#x}")
    return PageState(
        flag=words[W_FLAG],
        since_ns=words[W_SINCE],
        beat_ns=words[W_BEAT],
        steps=words[W_STEPS],
        steps_done=words[W_STEPS_DONE],
        wants=bool(words[W_WANTS]),
        turn_since_ns=words[W_TURN],
        served_ns=words[W_SERVED],
        credit=words[W_CREDIT],
        yielded_ns=words[W_YIELDED],
        locked=locked,
        allocator=_allocator(words) if words[W_ALLOC_AT] else None,
    )


def _allocator(words: Sequence[int]) -> Allocator:
    split, largest = words[W_ALLOC_SPLIT], words[W_ALLOC_LARGEST]
    return Allocator(
        at_ns=words[W_ALLOC_AT],
        reserved=words[W_ALLOC_RESERVED],
        used=words[W_ALLOC_USED],
        inactive_split=None if split == UNKNOWN else split,
        largest_free=None if largest == UNKNOWN else largest,
    )


def bump(index: memoryview) -> None:
    """Tell every reader that a grant or a tier has changed (the plugin only)."""
    index[I_GENERATION] += 1
