"""The preemption hooks: pause on SIGTERM, yield to the node's arbiter, a last word to the kubelet.

Imports nothing heavy: `PauseSwitch.install` runs before everything else, so that a SIGTERM at any
moment is a pause and not a death. What a pause saves is decided in `session`.
"""

import contextlib
import itertools
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

from sojourn_api.arbiter import PAGE, POD, ArbiterError, slots
from sojourn_api.arbiter_page import Page
from sojourn_api.arbiter_turn import Turns
from sojourn_api.arbiter_watch import Watch

MESSAGE_BYTES: Final = 4096
"""The kubelet keeps no more of a termination message."""
BEAT_SECONDS: Final = 0.2
"""Between signs of life: a fifth of the time after which readers take us for stopped."""
RECORD_BEATS: Final = 25
"""Beats between two records of the allocator: 5 s; readers take one of a minute ago for stale."""
TELL_SECONDS: Final = 0.25
"""A wait shows while it lasts, not only when it is over."""
LOOK_SECONDS: Final = 0.0005
"""Between looks at a raised flag: small against a step (15 ms), large against a look (2 us)."""


class PauseSwitch:
    """SIGTERM, turned into a flag and one call. A second signal changes nothing."""

    def __init__(self) -> None:
        self.at: float | None = None
        """`perf_counter` of the first signal."""
        self._then: Callable[[], None] | None = None

    def install(self) -> None:
        """From here on SIGTERM (and Ctrl-C, for people who try it out) pauses.

        Python handles signals in the main thread alone, which a stalled volume may hold in the
        middle of a write: so another thread is told as well.
        """
        told, tell = os.pipe()
        os.set_blocking(tell, False)
        threading.Thread(target=self._listen, args=(told,), name="signals", daemon=True).start()
        signal.signal(signal.SIGTERM, self._signal)
        signal.signal(signal.SIGINT, self._signal)
        signal.set_wakeup_fd(tell, warn_on_full_buffer=False)

    def _listen(self, told: int) -> None:
        while True:
            for number in os.read(told, 64):
                if number in (signal.SIGTERM, signal.SIGINT):
                    self._signal(number, None)

    def then(self, call: Callable[[], None]) -> None:
        """What to do at the signal; at once if it has come already."""
        self._then = call
        if self.at is not None:
            call()

    def _signal(self, _number: int, _frame: FrameType | None) -> None:
        if self.at is None:
            self.at = time.perf_counter()
            if self._then is not None:
                self._then()


def last_word(path: Path, words: Mapping[str, Any]) -> None:
    """Write the termination message in place: the kubelet has mounted this very file.

    One line; the human text is cut rather than the facts.
    """
    content = dict(words)
    line = json.dumps(content).encode()
    if len(line) > MESSAGE_BYTES:
        text = str(content.get("message", ""))
        content["message"] = text[: max(0, len(text) - (len(line) - MESSAGE_BYTES) - 3)] + "..."
        line = json.dumps(content).encode()[:MESSAGE_BYTES]
    with path.open("wb") as file:
        file.write(line)


@dataclass(frozen=True, slots=True)
class Inside:
    """What this process's allocator holds of the GPU, in bytes; None where it does not count."""

    reserved: int
    used: int
    inactive_split: int | None
    largest_free: int | None


class Arbiter:
    """This pod's place among those that share its GPUs: it looks before a step, and shows itself.

    Without the plugin's mounts there is nobody to yield to, and every question costs one `if`.
    """

    def __init__(self, root: Path, *, priority: int) -> None:
        self._priority = priority
        self._pages: list[Page] = []
        self._watches: list[Watch] = []
        self._turns: list[Turns] = []
        for folder in sorted(root.glob("gpu-*")):
            own, everybody = folder / "own", folder / "all"
            page, slot = Page(own), _slot(own, everybody)
            self._pages.append(page)
            self._watches.append(Watch(everybody, own_slot=slot))
            self._turns.append(Turns(everybody, page, own_slot=slot))
        self._accounts = tuple(zip(self._pages, self._turns, strict=True))
        self._raised = False
        self._inside: Callable[[], Inside] | None = None
        self._stop = threading.Event()
        self.yielded = 0.0
        """Seconds waited for others."""
        if self._pages:
            threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    @property
    def alone(self) -> bool:
        """No shared GPU."""
        return not self._watches

    @property
    def slice_left(self) -> float:
        """Seconds until its equals may have their turn; 0 while it is not this pod's."""
        return min((turns.left_ns for turns in self._turns), default=0) / 1e9

    def must_stop(self) -> bool:
        """Somebody of a higher tier computes now."""
        for watch in self._watches:  # noqa: SIM110 - any()'s generator costs as much as the look
            if watch.higher_raised(self._priority):
                return True
        return False

    def _go(self) -> bool:
        """No higher tier computes, and among equals it is this pod's turn."""
        for watch in self._watches:  # as `must_stop`, of which the call costs as much as a look
            if watch.higher_raised(self._priority):
                return False
        for turns in self._turns:  # noqa: SIM110 - see above
            if not turns.mine():
                return False
        return True

    def wait(self, *, unless: Callable[[], bool]) -> None:
        """Stand still while others have the right of way, `unless` something else calls."""
        if not self._raised or self._go():
            return
        begin = time.perf_counter()
        while not unless() and not self._go():
            time.sleep(LOOK_SECONDS)
            if time.perf_counter() - begin > TELL_SECONDS:
                begin = self._waited(begin)
        self._waited(begin)

    def _waited(self, begin: float) -> float:
        """Account a wait, or the part of it until now."""
        now = time.perf_counter()
        self.yielded += now - begin
        for page in self._pages:
            page.yielded(int((now - begin) * 1e9))
        return now

    def raise_flag(self) -> None:
        """A request begins: lower tiers stop at their next token boundary."""
        self._raised = True
        for page in self._pages:
            page.raise_flag()
        for turns in self._turns:
            turns.want(wants=True)

    def lower_flag(self) -> None:
        """Nothing to compute now."""
        if self._raised:
            self._raised = False
            for page in self._pages:
                page.lower_flag()
            for turns in self._turns:
                turns.want(wants=False)

    def step(self) -> None:
        """A step begins."""
        if not self._raised:
            self.raise_flag()
        for page in self._pages:
            page.step()

    def step_done(self, seconds: float) -> None:
        nanoseconds = int(seconds * 1e9)
        for page, turns in self._accounts:
            page.step_done(nanoseconds)
            turns.spent(nanoseconds)

    def close(self) -> None:
        """Lower the flag and leave; the heartbeat ends by itself."""
        self._stop.set()
        self.lower_flag()

    def tells(self, inside: Callable[[], Inside]) -> None:
        """From now on the node's device plugin is told of the allocator, every few seconds."""
        self._inside = inside

    def _beat(self) -> None:
        for beat in itertools.count():
            if self._stop.wait(BEAT_SECONDS):
                return
            for page in self._pages:
                page.beat()
            if beat % RECORD_BEATS == 0:
                self._record()

    def _record(self) -> None:
        """On one GPU only: nobody here knows how a pool on several is spread over them."""
        if self._inside is None or len(self._pages) != 1:
            return
        found = self._inside()
        self._pages[0].allocator(
            reserved=found.reserved,
            used=found.used,
            inactive_split=found.inactive_split,
            largest_free=found.largest_free,
        )


def _slot(own: Path, everybody: Path) -> str:
    """The name of this pod's grant: the one whose page is the very file mounted as its own."""
    for slot in slots(everybody):
        # A neighbour's folder may lack its page: its grant ends, or the container runtime made the
        # folder of one that is over again, for a container that it started once more.
        with contextlib.suppress(FileNotFoundError):
            if (everybody / slot / POD / PAGE).samefile(own / PAGE):
                return slot
    raise ArbiterError(f"{own}: its page is none of {everybody}; let the device plugin mount both")


class ArbiterUnavailable(Exception):  # noqa: N818 - named as the reason is
    """A GPU was granted, and its page cannot be used: the tiers beside us would not be heeded."""

    reason = "ArbiterUnavailable"
    retry = True


def open_arbiter(root: Path, *, granted: Iterable[int], priority: int) -> Arbiter:
    """The arbiter of the GPUs granted; without any grant it is alone, and nobody minds."""
    missing = [f"gpu-{n}" for n in granted if not (root / f"gpu-{n}").is_dir()]
    if missing:
        raise _unavailable(f"{root / missing[0]} is not mounted")
    try:
        return Arbiter(root, priority=priority)
    except (ArbiterError, OSError) as error:
        raise _unavailable(str(error)) from error


def _unavailable(why: str) -> ArbiterUnavailable:
    return ArbiterUnavailable(
        f"{why}; a GPU was granted, but without its page higher tiers would not be heeded: see "
        "whether the device plugin of this node runs and what it logs; another start gets a new "
        "grant"
    )
