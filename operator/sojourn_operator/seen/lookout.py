"""What is listed now and then rather than watched, in a thread of its own."""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Final, Generic, TypeVar

from sojourn_operator import metrics
from sojourn_operator.act.api import ApiError

RETRY_SECONDS: Final = 1.0
"""After a look that failed, and between two questions whether this replica leads."""

log = logging.getLogger(__name__)

Value = TypeVar("Value")


class Lookout(Generic[Value]):
    """Looks every `seconds` while this replica leads, and wakes the loop when it finds news.

    `look` may raise ApiError: what was found last then stays. `what` it reads is for the log.
    """

    def __init__(
        self,
        look: Callable[[], Mapping[str, Value]],
        *,
        name: str,
        what: str,
        seconds: float,
        leads: Callable[[], bool],
        wake: Callable[[], None],
    ) -> None:
        self._look = look
        self._name = name
        self._what = what
        self._seconds = seconds
        self._leads = leads
        self._wake = wake
        self._found: Mapping[str, Value] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def found(self) -> Mapping[str, Value]:
        """What was seen last; nothing before the first look."""
        return self._found

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(timeout=1)

    def alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        while not self._stopping.is_set():
            looked = self._leads() and self._try()
            self._stopping.wait(self._seconds if looked else RETRY_SECONDS)

    def _try(self) -> bool:
        try:
            found = self._look()
        except ApiError as error:
            metrics.ERRORS.labels(self._name).inc()
            log.warning("cannot read %s: %s", self._what, error)
            return False
        if found != self._found:
            self._found = found
            self._wake()
        return True
