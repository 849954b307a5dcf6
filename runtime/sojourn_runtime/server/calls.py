"""One call of a client as requests of the session: submitted, read and let go of together.

Knows neither HTTP nor the form of the answer.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Final, Self

from sojourn_runtime.context.errors import ContextError
from sojourn_runtime.engine.request import Origin, Request
from sojourn_runtime.protocol import Refused
from sojourn_runtime.server.chunks import Usage
from sojourn_runtime.server.errors import (
    ApiError,
    broken,
    invalid,
    store_failed,
    unavailable,
    unsupported,
)
from sojourn_runtime.server.metrics import Metrics, Stopwatch
from sojourn_runtime.server.port import Session
from sojourn_runtime.stream import LEAD, Reader, Stream, StreamClosed, TokenEvent

HEARTBEAT_SECONDS: Final = 15.0
"""Below the 60 s after which common proxies cut a silent connection."""

Batch = Sequence[tuple[int, TokenEvent]]
"""Events with the index of their choice; empty after a silence of HEARTBEAT_SECONDS."""


def refusal(refused: Refused, *, param: str) -> ApiError:
    """The session's answer in the client's terms."""
    if refused.retry:
        return unavailable(refused.reason.lower(), str(refused))
    if refused.reason == "ContextTooLong":
        return invalid(str(refused), param=param, code="context_length_exceeded")
    if refused.reason == "UnsupportedParameter":
        return unsupported(str(refused))
    return invalid(str(refused), param=param, code=refused.reason.lower())


async def check_grammar(session: Session, grammar: str, *, param: str) -> None:
    """Refuses a form that cannot be had, by the name of its field."""
    if not grammar:
        return
    try:
        # the first one of a session builds tables of the vocabulary, which takes a second
        await asyncio.to_thread(session.check_grammar, grammar)
    except Refused as refused:
        if refused.retry:
            raise refusal(refused, param=param) from refused
        raise unsupported("structured output", param=param) from refused
    except ValueError as error:
        message = f"The schema in '{param}' cannot be followed: {error}"
        raise invalid(message, param=param, code="invalid_json_schema") from error


def closed_error(closed: StreamClosed) -> ApiError:
    """For a client that waits for a whole answer."""
    if isinstance(closed.cause, ContextError):
        return store_failed(closed.cause.reason)
    why = str(closed)
    if why == "Pausing":
        return unavailable("pausing", "The session is being paused; ask again in a moment.")
    if why == "Cancelled":
        return ApiError("The request was cancelled.", status=409, code="cancelled")
    return broken("The engine could not go on with this request.")


async def read_batches(readers: Sequence[Reader]) -> AsyncGenerator[Batch]:
    """The events of all readers as they come, until each has ended.

    Raises StreamClosed when one was closed without a finish.
    """
    pending = {asyncio.ensure_future(reader.batch()): i for i, reader in enumerate(readers)}
    try:
        while pending:
            done, _ = await asyncio.wait(
                pending, timeout=HEARTBEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            found: list[tuple[int, TokenEvent]] = []
            for task in done:
                index = pending.pop(task)
                events = task.result()
                if events:
                    found.extend((index, event) for event in events)
                    pending[asyncio.ensure_future(readers[index].batch())] = index
            if found or not done:
                yield found
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class Submission:
    """What the choices of one call have in common; `request.id` is the call's."""

    request: Request
    choices: int

    def requests(self) -> Iterable[Request]:
        for choice in range(self.choices):
            params = replace(self.request.params, choice=choice)
            yield replace(self.request, id=f"{self.request.id}-{choice}", params=params)


class Call:
    """The running choices of one or several prompts; a context manager that lets go of them."""

    def __init__(self, session: Session, metrics: Metrics) -> None:
        self._session = session
        self._metrics = metrics
        self._readers: list[Reader] = []
        self._watches: list[Stopwatch] = []
        self._prompt = 0
        self._passed: Batch = ()
        self.streams: list[Stream] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Also after a disconnect, which ends the requests unless the session is being saved."""
        for reader in self._readers:
            reader.close()
        for stream, watch in zip(self.streams, self._watches, strict=True):
            cut = stream.closed in ("Pausing", "Failed")  # the next process goes on with it
            if not cut and (stream.done or not self._session.pausing):
                if not stream.done:
                    watch.ended("cancelled")
                self._session.release(stream.request.id)

    def submit(self, submission: Submission, *, whole: bool, param: str) -> None:
        """`whole`: the answer is collected, so no reader can be slow."""
        self._prompt += len(submission.request.prompt)
        for request in submission.requests():
            try:
                stream = self._session.submit(request)
            except Refused as refused:
                raise refusal(refused, param=param) from refused
            self.streams.append(stream)
            self._readers.append(stream.reader(lead=None if whole else LEAD))
            self._watches.append(Stopwatch(self._metrics))

    def attach(self, stream: Stream, *, after: int) -> None:
        """Take up a request that runs already, behind token position `after`."""
        self._prompt += len(stream.request.prompt)
        self._passed = [(0, event) for event in stream.events[: after + 1]]
        self.streams.append(stream)
        self._readers.append(stream.reader(after=after))
        self._watches.append(Stopwatch(self._metrics, seen=len(stream.events)))

    def passed(self) -> Batch:
        """Events before the place where a request was taken up."""
        return self._passed

    async def batches(self) -> AsyncGenerator[Batch]:
        """Every event of every choice, once."""
        async with aclosing(read_batches(self._readers)) as batches:
            async for batch in batches:
                for index, event in batch:
                    self._watches[index].tokens((event,))
                yield batch

    def usage(self) -> Usage:
        """What the call has cost so far; one prompt counts once, however many choices it has."""
        # the first choice of a prompt computes it; the others find it there
        first = [stream for stream in self.streams if stream.request.params.choice == 0]
        return Usage(
            prompt=self._prompt,
            output=sum(len(stream.events) for stream in self.streams),
            cached=sum(stream.cached_tokens for stream in first),
            origin=sum((stream.origin for stream in first), start=Origin()),
        )

    def count(self) -> None:
        """To be called once, at the end."""
        usage = self.usage()
        self._metrics.prompt(tokens=usage.prompt, cached=usage.cached, origin=usage.origin)
