"""Who computes on a shared GPU now: small pages that its grants raise flags in and look at.

Layout and the two sides that touch it on the latency path: `Page` (a pod's own) and `Watch` (the
others'). The device plugin creates the files (`create_index`, `create_grant`) and alone writes the
tier. No policy of requests here, no sleeping, no logging.

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
import time
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
    """What a runtime says of its own memory allocator, in bytes, and when (monotonic ns)."""

    at_ns: int
    reserved: int
    used: int
    inactive_split: int
    largest_free: int


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


def _lock(fd: int) -> int:
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
        return _locked_by(fd) or fcntl.F_RDLCK
    return fcntl.F_UNLCK


def _locked_by(fd: int) -> int:
    """Kind of lock that another file description holds on the page; F_UNLCK is none."""
    probe = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, PAGE_BYTES, 0)
    kind: int = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, probe))[0]
    return kind


# ---------------------------------------------------------------- files


def _open(path: Path, *, size: int, writable: bool = False) -> int:
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


def _words(fd: int, *, count: int, path: Path, writable: bool = False) -> memoryview:
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
    fd = _open(path, size=INDEX_BYTES, writable=True)
    words = _words(fd, count=INDEX_WORDS, path=path, writable=True)
    os.close(fd)
    words[I_STALE_NS], words[I_HOLD_NS] = limits.stale_ns, limits.hold_ns
    return words


def read_index(grants: Path) -> memoryview:
    """A GPU's index, as its pods see it."""
    fd = _open(grants / INDEX, size=INDEX_BYTES)
    words = _words(fd, count=INDEX_WORDS, path=grants / INDEX)
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
    fd = _open(path, size=TIER_FORMAT.size)
    try:
        magic, *fields = TIER_FORMAT.unpack(os.pread(fd, TIER_FORMAT.size, 0))
    finally:
        os.close(fd)
    if magic != MAGIC:
        raise ArbiterError(f"{path}: layout {magic:#x}, this release reads {MAGIC:#x}")
    return Tier(*fields)


def open_page(grants: Path, slot: str) -> int:
    """A descriptor to read a page from, by `read_open`; the caller closes it."""
    return _open(grants / slot / POD / PAGE, size=PAGE_BYTES)


def read_page(grants: Path, slot: str) -> PageState:
    """One page by a read, not a mapping: safe against an owner that cuts its file short."""
    fd = open_page(grants, slot)
    try:
        return read_open(fd, path=grants / slot)
    finally:
        os.close(fd)


def read_open(fd: int, *, path: Path) -> PageState:
    """The page behind a descriptor; `path` is for the error's text."""
    content = os.pread(fd, PAGE_BYTES, 0)
    locked = _locked_by(fd) != fcntl.F_UNLCK
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
        allocator=Allocator(*words[W_ALLOC_AT:]) if words[W_ALLOC_AT] else None,
    )


# ---------------------------------------------------------------- the two sides


class Page:
    """The owner's side: this pod's own page, opened in the folder that Allocate mounted writable.

    The page belongs to this process until it ends: the kernel drops the lock with it, however it
    dies (do not fork without exec after opening: the child would keep the lock). Keep `beat` going
    (a few times per `STALE_NS`) from a thread that a long step cannot hold up, or readers take the
    owner for stopped. One thread at a time calls the other methods.
    """

    def __init__(self, own: Path) -> None:
        path = own / PAGE
        self._fd = _open(path, size=PAGE_BYTES, writable=True)
        self._locked = False
        try:
            self._words = _words(self._fd, count=PAGE_WORDS, path=path, writable=True)
            if self._take() == fcntl.F_WRLCK:
                raise PageTakenError(
                    f"{path}: another process of this pod owns it; stop one of them"
                )
        except ArbiterError:
            os.close(self._fd)
            raise
        self.lower_flag()  # whatever an earlier process left raised
        self._words[W_WANTS] = self._words[W_TURN] = 0
        self._words[W_STEPS_DONE] = self._words[W_STEPS]
        self.beat()

    def _take(self) -> int:
        kind = _lock(self._fd)
        self._locked = kind == fcntl.F_UNLCK
        return kind

    @property
    def raised(self) -> bool:
        return bool(self._words[W_FLAG] & 1)

    def raise_flag(self) -> None:
        """A request of this pod begins: lower tiers stop at their next token boundary.

        Raising a raised flag only renews the time limit: another request has begun.
        """
        words = self._words
        now = time.monotonic_ns()
        if not self._locked:
            self._take()
        words[W_BEAT] = words[W_SINCE] = now  # before the flag, so that no reader finds it stale
        if not words[W_FLAG] & 1:
            words[W_FLAG] += 1

    def lower_flag(self) -> None:
        """No request of this pod runs any more; lowering a lowered flag does nothing."""
        words = self._words
        if words[W_FLAG] & 1:
            words[W_FLAG] += 1
            words[W_SINCE] = time.monotonic_ns()

    def beat(self) -> None:
        """The process lives and is not stopped."""
        if not self._locked:
            self._take()
        self._words[W_BEAT] = time.monotonic_ns()

    def step(self) -> None:
        """A step begins (call at the token boundary, after the look at the flags)."""
        self._words[W_STEPS] += 1

    def step_done(self, computed_ns: int = 0) -> None:
        """The step that began has ended, after `computed_ns` of computing."""
        words = self._words
        words[W_STEPS_DONE] = words[W_STEPS]
        words[W_SERVED] += computed_ns

    def yielded(self, waited_ns: int) -> None:
        """Account a wait for others, which metrics show."""
        self._words[W_YIELDED] += waited_ns

    def allocator(
        self, *, reserved: int, used: int, inactive_split: int, largest_free: int
    ) -> None:
        """Publish the allocator's figures, in bytes; now and then, not at every step."""
        words = self._words
        words[W_ALLOC_RESERVED], words[W_ALLOC_USED] = reserved, used
        words[W_ALLOC_SPLIT], words[W_ALLOC_LARGEST] = inactive_split, largest_free
        words[W_ALLOC_AT] = time.monotonic_ns()

    @property
    def words(self) -> memoryview:
        """The page itself, for the turns among equals (`arbiter_turn`)."""
        return self._words

    def close(self) -> None:
        """Lower the flag and let go of the page."""
        self.lower_flag()
        self._words[W_WANTS] = self._words[W_TURN] = 0
        self._words.release()  # the mapping holds the file description, and so the lock, as well
        os.close(self._fd)


@dataclass(frozen=True, slots=True)
class Holder:
    """Whose flag is up, and since when (monotonic ns)."""

    slot: str
    priority: int
    since_ns: int


@dataclass(frozen=True, slots=True)
class _Seen:
    slot: str
    priority: int
    fd: int
    words: memoryview


class Watch:
    """The reader's side: asks whether somebody with a higher claim computes now.

    Only pages of strictly higher priority are mapped. An owner that cuts its file short kills the
    processes that map it (SIGBUS), so a lower tier must never be able to do that to a higher one.
    """

    def __init__(self, grants: Path, *, own_slot: str = "") -> None:
        """`grants` is the folder mounted read-only; `own_slot` is left out of every answer."""
        self._grants = grants
        self._own = own_slot
        self._index = read_index(grants)
        self._generation = 0
        self._priority = LOWEST
        self._higher: list[_Seen] = []
        self._flags: list[memoryview] = []

    def higher_raised(self, my_priority: int) -> bool:
        """Whether a live grant of strictly higher priority has its flag up: then do not step.

        Below 2 us with 16 higher grants while no flag is up; call it at every token boundary.
        """
        if self._index[I_GENERATION] != self._generation or my_priority != self._priority:
            self._rescan(my_priority)
        for words in self._flags:
            if words[W_FLAG] & 1:
                return self.holder(my_priority) is not None
        return False

    def holder(self, my_priority: int) -> Holder | None:
        """Who of higher priority holds the GPU; the highest, then the longest waiting, of several.

        A raised flag counts while its owner lives (lock), is not stopped (heartbeat), and has not
        held longer than one request may.
        """
        if self._index[I_GENERATION] != self._generation or my_priority != self._priority:
            self._rescan(my_priority)
        now = time.monotonic_ns()
        held = [
            Holder(slot=seen.slot, priority=seen.priority, since_ns=seen.words[W_SINCE])
            for seen in self._higher
            if self._counts(seen, now)
        ]
        return min(held, key=lambda h: (-h.priority, h.since_ns, h.slot), default=None)

    def _counts(self, seen: _Seen, now: int) -> bool:
        words, stale = seen.words, self._index[I_STALE_NS]
        return bool(
            words[W_FLAG] & 1
            and -stale <= now - words[W_BEAT] <= stale  # a time to come is a forged one
            and -stale <= now - words[W_SINCE] <= self._index[I_HOLD_NS]
            and _locked_by(seen.fd) != fcntl.F_UNLCK
        )

    def _rescan(self, my_priority: int) -> None:
        generation = self._index[I_GENERATION]  # before the look: a change during it is seen next
        self.close()
        for entry in slots(self._grants):
            if entry == self._own:
                continue
            try:
                seen = self._map(entry, my_priority)
            except ArbiterError:
                continue  # a grant that goes away, or a page its owner spoilt: it claims nothing
            if seen is not None:
                self._higher.append(seen)
        self._flags = [seen.words for seen in self._higher]
        self._generation, self._priority = generation, my_priority

    def _map(self, slot: str, my_priority: int) -> _Seen | None:
        tier = read_tier(self._grants, slot)
        if tier.priority <= my_priority:
            return None
        path = self._grants / slot / POD / PAGE
        fd = _open(path, size=PAGE_BYTES)
        try:
            words = _words(fd, count=PAGE_WORDS, path=path)
        except ArbiterError:
            os.close(fd)
            raise
        return _Seen(slot=slot, priority=tier.priority, fd=fd, words=words)

    def close(self) -> None:
        """Let go of the pages; the next question opens them again."""
        for seen in self._higher:
            seen.words.release()
            os.close(seen.fd)
        self._higher, self._flags, self._generation = [], [], 0


def bump(index: memoryview) -> None:
    """Tell every reader that a grant or a tier has changed (the plugin only)."""
    index[I_GENERATION] += 1
