"""The preemption hooks: pause on SIGTERM, yield to the node's arbiter, a last word to the kubelet.

Imports nothing heavy: `PauseSwitch.install` runs before everything else, so that a SIGTERM at any
moment is a pause and not a death. What a pause saves is decided in `session`.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Final

from sojourn_api.arbiter import PAGE, POD, ArbiterError, Page, Watch, slots
from sojourn_api.arbiter_turn import Turns

MESSAGE_BYTES: Final = 4096
"""The kubelet keeps no more of a termination message."""
BEAT_SECONDS: Final = 0.2
"""Between signs of life: a fifth of the time after which readers take us for stopped."""
LOOK_SECONDS: Final = 0.0005
"""Between looks at a raised flag: small against a step (15 ms), large against a look (2 us)."""


class PauseSwitch:
    """SIGTERM, turned into a flag and one call. A second signal changes nothing."""

    def __init__(self) -> None:
        self.at: float | None = None
        """`perf_counter` of the first signal."""
        self._then: Callable[[], None] | None = None

    def install(self) -> None:
        """From here on SIGTERM (and Ctrl-C, for people who try it out) pauses."""
        signal.signal(signal.SIGTERM, self._signal)
        signal.signal(signal.SIGINT, self._signal)

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
            if own.is_dir() and everybody.is_dir():
                page, slot = Page(own), _slot(own, everybody)
                self._pages.append(page)
                self._watches.append(Watch(everybody, own_slot=slot))
                self._turns.append(Turns(everybody, page, own_slot=slot))
        self._raised = False
        self._stop = threading.Event()
        self.yielded = 0.0
        """Seconds waited for others."""
        if self._pages:
            threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()

    @property
    def alone(self) -> bool:
        """No shared GPU."""
        return not self._watches

    def must_stop(self) -> bool:
        """Somebody of a higher tier computes now."""
        return any(watch.higher_raised(self._priority) for watch in self._watches)

    def _go(self) -> bool:
        """No higher tier computes, and among equals it is this pod's turn."""
        return not self.must_stop() and all(turns.mine() for turns in self._turns)

    def wait(self, *, unless: Callable[[], bool]) -> None:
        """Stand still while others have the right of way, `unless` something else calls."""
        if not self._raised or self._go():
            return
        begin = time.perf_counter()
        while not unless() and not self._go():
            time.sleep(LOOK_SECONDS)
        waited = time.perf_counter() - begin
        self.yielded += waited
        for page in self._pages:
            page.yielded(int(waited * 1e9))

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
        for page in self._pages:
            page.step_done(int(seconds * 1e9))
        for turns in self._turns:
            turns.spent(int(seconds * 1e9))

    def close(self) -> None:
        """Lower the flag and leave; the heartbeat ends by itself."""
        self._stop.set()
        self.lower_flag()

    def _beat(self) -> None:
        while not self._stop.wait(BEAT_SECONDS):
            for page in self._pages:
                page.beat()


def _slot(own: Path, everybody: Path) -> str:
    """The name of this pod's grant: the one whose page is the very file mounted as its own."""
    for slot in slots(everybody):
        if (everybody / slot / POD / PAGE).samefile(own / PAGE):
            return slot
    raise ArbiterError(f"{own}: its page is none of {everybody}; let the device plugin mount both")


def open_arbiter(root: Path, *, priority: int) -> tuple[Arbiter, str]:
    """The arbiter, and why it is alone if a page could not be used."""
    try:
        return Arbiter(root, priority=priority), ""
    except (ArbiterError, OSError) as error:
        return Arbiter(Path(os.devnull), priority=priority), str(error)
