"""Bounds of what is here at once: requests, those of them that are held, and bytes of bodies.

Whoever is over a bound is refused at once; nobody queues for a place.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from sojourn_gateway.errors import ApiError, unavailable

FULL: Final = "gateway_full"


class Doorway:
    """Requests under way, open streams among them: each takes sockets and buffers."""

    def __init__(self, *, most: int) -> None:
        self._most = most
        self.inside = 0

    @contextmanager
    def passage(self) -> Iterator[None]:
        """Inside while the block runs; 503 when it is full."""
        if self.inside >= self._most:
            raise unavailable(FULL, "Too many requests are under way in this gateway.")
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1


class Lobby:
    """Places for held requests: so many in all, and so many for one session.

    The second bound keeps the clients of one session from taking everybody's places.
    """

    def __init__(self, *, most: int, most_per_session: int) -> None:
        self._most = most
        self._most_per_session = most_per_session
        self._held: Counter[str] = Counter()

    @property
    def held(self) -> int:
        return self._held.total()

    @contextmanager
    def place(self, key: str) -> Iterator[None]:
        """A place while the block runs; 503 when there is none."""
        if self.held >= self._most or self._held[key] >= self._most_per_session:
            message = f"Session {key} does not answer now, and too many requests wait already."
            raise unavailable(FULL, message)
        self._held[key] += 1
        try:
            yield
        finally:
            self._held[key] -= 1
            if not self._held[key]:
                del self._held[key]


class Memory:
    """Bytes of bodies that are here at once, over all requests."""

    def __init__(self, *, most: int, most_per_body: int) -> None:
        self._most = most
        self._most_per_body = most_per_body
        self._used = 0

    @property
    def used(self) -> int:
        return self._used

    @contextmanager
    def account(self) -> Iterator["Account"]:
        """What one request takes, given back at the end of the block."""
        account = Account()
        try:
            yield account
        finally:
            self._used -= account.taken

    def take(self, account: "Account", count: int) -> None:
        """Raises 413 for a body that is too large, 503 when all bodies together are."""
        if account.taken + count > self._most_per_body:
            message = f"The request's body is larger than {self._most_per_body} bytes."
            raise ApiError(message, status=413, code="request_too_large")
        if self._used + count > self._most:
            raise unavailable(FULL, "The bodies of waiting requests fill the gateway's memory.")
        account.taken += count
        self._used += count


class Account:
    """Bytes that one request holds."""

    __slots__ = ("taken",)

    def __init__(self) -> None:
        self.taken = 0
