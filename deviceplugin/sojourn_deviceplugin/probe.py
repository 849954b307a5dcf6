"""The two threads that call NVML, so that nobody else waits for it: one reads, one hears events.

When NVML hangs they hang with it; `latest` then says so once the patience is over.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from sojourn_deviceplugin.facts import NodeFacts, Xid
from sojourn_deviceplugin.nvml import REMEDY, Events, Nvml, NvmlError

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.1
EVENT_MILLISECONDS: Final = 1000
"""How long one wait for events lasts; ending the plugin takes as long at most."""


class Reader(threading.Thread):
    """Reads all facts every `every` seconds. `fresh` is set when there are new ones."""

    def __init__(
        self,
        nvml: Nvml,
        *,
        known: Callable[[], Iterable[str]],
        every: float,
        patience: float,
        then: Callable[[NodeFacts], None] = lambda _: None,
    ) -> None:
        """`then` is called with what was read: the place for other calls of NVML."""
        super().__init__(name="nvml-reader", daemon=True)
        self._nvml = nvml
        self._known = known
        self._every = every
        self._patience = patience
        self._then = then
        self._facts = NodeFacts(error="NVML has not been asked yet")
        self._done = time.monotonic()
        self._end = threading.Event()
        self.fresh = threading.Event()

    def run(self) -> None:
        while not self._end.is_set():
            self._facts = self._nvml.read(self._known())
            self._done = time.monotonic()
            self.fresh.set()
            self._then(self._facts)
            self._end.wait(self._every)
        self._nvml.close()

    def stop(self) -> None:
        self._end.set()

    def latest(self) -> NodeFacts:
        """The newest facts, or that NVML does not answer."""
        if not self.silent:
            return self._facts
        text = f"NVML has not answered for over {self._patience:.0f} s; {REMEDY}"
        return NodeFacts(error=text, session=self._facts.session)

    @property
    def silent(self) -> bool:
        """Whether the patience is over."""
        return time.monotonic() - self._done > self._patience + self._every


class Listener(threading.Thread):
    """Collects XIDs; `drain` takes them."""

    def __init__(self, session: Callable[[], int]) -> None:
        """`session` tells when NVML was initialised anew, so that events are asked for again."""
        super().__init__(name="nvml-events", daemon=True)
        self._session = session
        self._events = Events()
        self._heard: queue.SimpleQueue[Xid] = queue.SimpleQueue()
        self._end = threading.Event()
        self.registered = 0
        """The session whose events are heard; 0 is none."""

    def run(self) -> None:
        while not self._end.is_set():
            session = self._session()
            if session == 0:
                self._end.wait(RETRY_SECONDS)
                continue
            try:
                if session != self.registered:
                    self._events.open()
                    self.registered = session
                xid = self._events.wait(milliseconds=EVENT_MILLISECONDS)
            except NvmlError as error:
                log.debug("events", extra={"error": str(error)})
                self.registered = 0
                self._end.wait(RETRY_SECONDS)
                continue
            if xid is not None:
                self._heard.put(xid)

    def stop(self) -> None:
        self._end.set()

    def drain(self) -> list[Xid]:
        """All XIDs heard since the last call."""
        found = []
        while not self._heard.empty():
            found.append(self._heard.get())
        return found
