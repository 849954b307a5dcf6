"""The sessions that are known now, and who waits for news of one. For one event loop.

Where they come from is `watch`'s or `file`'s business.
"""

import asyncio
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from sojourn_gateway.session import Session


class Directory:
    """Sessions by NAMESPACE/NAME."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._news: dict[str, asyncio.Event] = {}
        self.filled = False
        """It was read as a whole at least once."""

    @property
    def sessions(self) -> Mapping[str, Session]:
        return MappingProxyType(self._sessions)

    def get(self, key: str) -> Session | None:
        return self._sessions.get(key)

    def put(self, session: Session) -> None:
        if self._sessions.get(session.key) != session:
            self._sessions[session.key] = session
            self._tell(session.key)

    def drop(self, key: str) -> None:
        if self._sessions.pop(key, None) is not None:
            self._tell(key)

    def replace(self, sessions: Iterable[Session]) -> None:
        """These and no others: what went away unseen goes now."""
        found = {session.key: session for session in sessions}
        for key in self._sessions.keys() - found.keys():
            self.drop(key)
        for session in found.values():
            self.put(session)
        self.filled = True

    async def news(self, key: str, *, seconds: float) -> None:
        """Wait until something about the session changes, or so long."""
        event = self._news.setdefault(key, asyncio.Event())
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            return

    def _tell(self, key: str) -> None:
        if (event := self._news.pop(key, None)) is not None:
            event.set()
