"""What the server and the session say to each other; neither knows more of the other.

The session (`session.Session`) runs the engine in its own thread; the server lives in an asyncio
loop of the main thread. Every method here may be called from the loop, returns at once (a journal
record at most, written to the page cache) and never waits for a step.

A call, in the server's words:

    request = Request(id="chatcmpl-1", prompt=tuple(ids), params=SamplingParams(max_tokens=100))
    stream = session.submit(request)              # raises Refused: 400, or 503 with Retry-After
    reader = stream.reader()                      # lead=None to collect a whole answer
    try:
        async for event in reader:                # one event per token position
            await send(event.text)                # slow client: the request slows down, no growth
    except StreamClosed as closed:                # "Pausing": close without a final chunk
        ...                                       # "Cancelled", "Failed": say so
    except ConnectionError:
        if not request.background and not session.pausing:
            session.cancel(request.id)
    finally:
        reader.close()
    session.release(request.id)                   # tokens and events may be forgotten

`position` counts output tokens from 0 and is a function of the tokens alone: a `sequence_number`
derived from it is the same before and after a pause, a crash and a move. `GET
/v1/responses/{id}?stream=true&starting_after=N` is `session.stream(id).reader(after=position)`.

The server's own state (responses, conversations) are documents: `put_document` before the answer
that speaks of them. They survive kill -9 and are part of every snapshot. At start the server reads
`documents(kind)` and follows each `restored()` request to its end, as if it had just submitted it
(its `meta` says what it was); those that are not `background` and that nobody reads are cancelled
by the session after a grace time. A request is kept until `release`, also when it is finished.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from sojourn_runtime.engine.request import Request
from sojourn_runtime.stream import Stream

Json = Any
"""What `json.dumps` takes."""
STALLED: Final = "EngineStalled"
"""The reason of a session whose engine does not get on."""


class Refused(Exception):  # noqa: N818 - an answer, not a mistake
    """The session does not take this request; the message is for the client."""

    def __init__(self, reason: str, message: str, *, retry: bool) -> None:
        super().__init__(message)
        self.reason = reason
        """One word: ContextTooLong, Busy, Pausing, DuplicateRequest, UnsupportedParameter."""
        self.retry = retry
        """True: 503, it may come again; False: 400, it is wrong as it is."""


class Tokenizer(Protocol):
    """The part of `model.tokenizer` that turning tokens into text needs."""

    def decode(self, tokens: Sequence[int], /) -> str: ...


class SessionPort(Protocol):
    """The session as the server sees it."""

    @property
    def ready(self) -> str:
        """Empty when requests are answered, else one word: Loading, Restoring, Pausing,
        EngineStalled.
        """

    @property
    def stalled(self) -> str:
        """What the engine has waited for too long, as "the store"; empty when it gets on."""

    @property
    def pausing(self) -> bool:
        """SIGTERM came: a disconnect is no cancel any more, new requests are refused."""

    def submit(self, request: Request) -> Stream:
        """Journal the request and queue it; raises Refused."""

    def cancel(self, request_id: str) -> None:
        """End it: its readers get StreamClosed("Cancelled"). Unknown or finished: nothing."""

    def release(self, request_id: str) -> None:
        """Forget the request (cancel it first if it runs)."""

    def stream(self, request_id: str) -> Stream | None:
        """The stream of a request not yet released."""

    def restored(self) -> Sequence[Stream]:
        """Requests that a pause or a crash left, with the events of their tokens so far."""

    def put_document(self, kind: str, document_id: str, value: Json) -> None:
        """Keep `value` (and never change it afterwards); journalled on return."""

    def delete_document(self, kind: str, document_id: str) -> None:
        """Forget it; unknown: nothing happens."""

    def documents(self, kind: str) -> Mapping[str, Json]:
        """All of a kind by id, as last put. Kinds are the server's: `response`, `conversation`."""

    def status(self) -> dict[str, Json]:
        """The body of `GET /sojourn/v1/status`."""

    def gauges(self) -> Mapping[str, float]:
        """Numbers for `/metrics` by short name: counters end in `_total`."""

    def hand_over(self) -> tuple[Sequence[int], float]:
        """Steps by what they took beside the pass (see `stats.HAND_OVER`), and the seconds of
        all.
        """
