"""The events of one request, and the places of those who read them.

One thread (the engine's) appends, any number of asyncio readers follow. A reader is a position,
not a queue: a late one, or one that comes back after a pause, replays what it asks for, and nobody
copies anything. What bounds the memory is `max_tokens`; what slows the engine down to a slow reader
is `lagging`. No HTTP here.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from sojourn_runtime.engine.request import Finish, Origin, Request

LEAD = 64
"""Events that a request may be ahead of its slowest reader: about one second of fast decode."""


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """One position of the output: exactly one event per token, in order, never repeated.

    `text` is what this token made certain; it may be empty (half a character, or the possible
    beginning of a stop string), and the last event carries what was held back.
    """

    position: int
    """0 for the first token that the request made."""
    token: int
    text: str
    finish: Finish = Finish.NONE
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    """(token id, log probability) of the likeliest, when asked for."""


class StreamClosed(Exception):  # noqa: N818 - a state, not a mistake
    """The stream ends here without a finish; the message is one word: why.

    `Pausing`: the session is being saved and the request goes on after the resume: close the
    client's connection without a final event, so that it attaches again. `Cancelled`: by `cancel`,
    or because nobody came back. `Failed`: the engine cannot go on with it, for this `cause`.
    """

    def __init__(self, why: str, cause: Exception | None = None) -> None:
        super().__init__(why)
        self.cause = cause


class Stream:
    """Every event of one request so far. Made by the session, kept until it is released."""

    __slots__ = (
        "_readers",
        "cached_tokens",
        "cause",
        "closed",
        "events",
        "origin",
        "request",
        "started",
    )

    def __init__(self, request: Request) -> None:
        self.request = request
        self.events: list[TokenEvent] = []
        self.closed = ""
        self.cause: Exception | None = None
        """What made the engine give up."""
        self.started = False
        """It has left the queue at least once (set by the engine's thread)."""
        self.cached_tokens = 0
        """Tokens of the prompt whose KV was there already when it started."""
        self.origin = Origin()
        """In which tiers they were found."""
        self._readers: tuple[Reader, ...] = ()

    @property
    def finish(self) -> Finish:
        """Why it ended; NONE while it runs, and for a request cancelled before its first token."""
        return self.events[-1].finish if self.events else Finish.NONE

    @property
    def done(self) -> bool:
        """No event will follow."""
        return bool(self.closed) or self.finish is not Finish.NONE

    @property
    def followed(self) -> bool:
        """Somebody reads it on behalf of a client."""
        return any(not reader.watch for reader in self._readers)

    def reader(self, *, after: int = -1, lead: int | None = LEAD, watch: bool = False) -> "Reader":
        """A reader of the events behind position `after`, for the running event loop.

        `lead` None: this reader may lag at will (it collects the whole answer). `watch`: it keeps
        the books for nobody in particular, so the stream does not count as followed for it.
        """
        reader = Reader(self, after=after, lead=lead, watch=watch)
        self._readers = (*self._readers, reader)  # replaced, not changed: the engine may iterate
        return reader

    def leave(self, reader: "Reader") -> None:
        """The reader is gone; twice is as good as once."""
        self._readers = tuple(other for other in self._readers if other is not reader)

    # -- the engine's thread --

    def lagging(self) -> bool:
        """Some reader is as far behind as it may be."""
        made = len(self.events)
        return any(
            reader.lead is not None and made - reader.position >= reader.lead
            for reader in self._readers
        )

    def put(self, event: TokenEvent) -> None:
        """Append and wake the readers."""
        self.events.append(event)
        self._wake()

    def close(self, why: str, cause: Exception | None = None) -> None:
        """End the stream without a finish."""
        self.cause = cause
        self.closed = why
        self._wake()

    def _wake(self) -> None:
        for reader in self._readers:
            reader.wake()


class Reader:
    """A place in a stream: `async for event in reader`, or `await reader.batch()`.

    Ends after the event with a finish; raises StreamClosed where the stream was closed without.
    """

    __slots__ = ("_loop", "_news", "_pending", "_stream", "lead", "position", "watch")

    def __init__(self, stream: Stream, *, after: int, lead: int | None, watch: bool) -> None:
        self._stream = stream
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()
        self._pending = False
        self.position = after + 1
        self.lead = lead
        self.watch = watch

    def __aiter__(self) -> AsyncIterator[TokenEvent]:
        return self

    async def __anext__(self) -> TokenEvent:
        while self.position >= len(self._stream.events):
            await self._more()
        event = self._stream.events[self.position]
        self.position += 1
        return event

    async def batch(self) -> list[TokenEvent]:
        """All events not yet seen, at least one; empty at the end."""
        try:
            while self.position >= len(self._stream.events):
                await self._more()
        except StopAsyncIteration:
            return []
        events = self._stream.events[self.position :]
        self.position += len(events)
        return events

    def close(self) -> None:
        """Stop reading."""
        self._stream.leave(self)

    def wake(self) -> None:
        """From the engine's thread: there is news. One wake-up is under way at most."""
        if not self._pending:
            self._pending = True
            try:
                self._loop.call_soon_threadsafe(self._news.set)
            except RuntimeError:  # the loop is closed: this reader will never read again
                self._stream.leave(self)

    async def _more(self) -> None:
        self._news.clear()
        self._pending = False  # from here on every event wakes again, so none is missed
        if self.position < len(self._stream.events):
            return
        if self._stream.finish is not Finish.NONE:
            self.close()
            raise StopAsyncIteration
        if self._stream.closed:
            self.close()
            raise StreamClosed(self._stream.closed, self._stream.cause)
        await self._news.wait()
