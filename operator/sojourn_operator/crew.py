"""Carries out work on objects side by side, a few at a time, but for each object in its order.

Each piece of work is a handful of requests, of which the most part is waiting for the API server.
How many at once is what keeps the API server healthy, with what `patience` does once it complains.
"""

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Final

WRITERS: Final = 16
"""With benchmarks/scale.py on two quiet cores eight place as fast; where others use the cores too,
each request takes longer, and eight leave the operator waiting for three quarters of the time.
"""


class Crew:
    """`do` begins work, `rest` waits for all of it. Both are for one thread to call."""

    def __init__(self, writers: int = WRITERS) -> None:
        self._pool = ThreadPoolExecutor(writers, thread_name_prefix="writer")
        self._free = threading.Semaphore(writers)
        self._under_way: dict[str, Future[None]] = {}

    def do(self, keys: Iterable[str], work: Callable[[], None]) -> None:
        """Begin the work once a writer is free and all that was begun for these keys has ended."""
        wait([self._under_way[key] for key in keys if key in self._under_way])
        self._free.acquire()
        self._under_way |= dict.fromkeys(keys, self._pool.submit(self._work, work))

    def rest(self) -> None:
        """Until everything has ended; an error of the latest work for any key is raised then."""
        ended, self._under_way = self._under_way, {}
        errors = [error for one in ended.values() if (error := one.exception()) is not None]
        if errors:
            raise errors[0]

    def close(self) -> None:
        """After the last `rest`."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _work(self, work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            self._free.release()
