"""Joins the parts of a stream that a pause, a move or a crash has cut. Pure.

`Frames` makes whole server-sent events of bytes; a thread knows what the client has of one answer,
lets everything pass once and in order, and says where to take up the rest.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Protocol
from urllib.parse import quote

from sojourn_api import names

from sojourn_gateway.calls import Call, Kind

END: Final = b"\n\n"
MAX_FRAME: Final = 16 * 1024 * 1024
"""The last event of a response holds its whole text, which a context of 1 Mi tokens fits into."""
PAUSED: Final = f": {names.STREAM_PAUSED}".encode()
DONE: Final = b"[DONE]"
TERMINAL: Final = frozenset({"response.completed", "response.incomplete", "response.failed"})


class SpliceError(Exception):
    """What came does not fit behind what the client has."""


class Frames:
    """Bytes in, whole events out; what is not whole yet is kept, up to MAX_FRAME."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, data: bytes) -> Iterator[bytes]:
        searched = max(len(self._rest) - 1, 0)
        self._rest += data
        while (end := self._rest.find(END, searched)) >= 0:
            frame = bytes(self._rest[: end + len(END)])
            del self._rest[: end + len(END)]
            searched = 0
            yield frame
        if len(self._rest) > MAX_FRAME:
            raise SpliceError(f"an event is larger than {MAX_FRAME} bytes")


class Thread(Protocol):
    """What the client has of one answer."""

    @property
    def ended(self) -> bool:
        """Nothing more is to come."""

    @property
    def paused(self) -> bool:
        """The session has said that the rest comes after a pause."""

    def take(self, frame: bytes) -> bool:
        """Whether the client gets this event; SpliceError if one before it is missing."""

    def cut(self) -> str | None:
        """The target that gives the rest; None if it cannot be had."""


def thread_of(call: Call) -> Thread | None:
    """None for answers that are passed on as they come."""
    match call.kind:
        case Kind.RESPONSE:
            path = call.target.partition("?")[0]
            known = path.rpartition("/")[2] if call.method == "GET" else ""
            return ResponseThread(name=known, last=call.after)
        case Kind.CHAT | Kind.COMPLETION:
            return ChunkThread(path=call.target.partition("?")[0], chat=call.kind is Kind.CHAT)
        case Kind.OTHER:
            return None


def payload(frame: bytes) -> bytes:
    """The data of an event; empty for a comment."""
    found = (line[5:].strip() for line in frame.splitlines() if line.startswith(b"data:"))
    return b"\n".join(found)


def read(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except ValueError as error:
        raise SpliceError("an event is no JSON") from error
    if not isinstance(value, dict):
        raise SpliceError("an event is no object")
    return value


@dataclass(slots=True)
class ResponseThread:
    """Events that carry a `sequence_number`, which is a function of the tokens."""

    name: str = ""
    """Of the response, as soon as it is known."""
    last: int = -1
    ended: bool = False
    paused: bool = False

    def take(self, frame: bytes) -> bool:
        data = payload(frame)
        if not data:
            self.paused = frame.startswith(PAUSED)
            return not self.paused
        event = read(data)
        number = event.get("sequence_number")
        if not isinstance(number, int):
            self.ended = True  # an error: nothing follows
            return True
        if number <= self.last:
            return False
        if number > self.last + 1:
            raise SpliceError(f"event {number} follows {self.last}")
        self.last = number
        self.ended = event.get("type") in TERMINAL
        if not self.name and isinstance(response := event.get("response"), dict):
            self.name = quote(str(response.get("id", "")), safe="")
        return True

    def cut(self) -> str | None:
        self.paused = False
        if not self.name:
            return None
        return f"/v1/responses/{self.name}?stream=true&starting_after={self.last}"


@dataclass(slots=True)
class ChunkThread:
    """Chunks of one choice. They have no numbers, but are made anew alike, token by token.

    After a cut the last token is taken up again, and the chunks of it that the client has are left
    out: one token may make several chunks, and a crash may fall between them.
    """

    path: str
    chat: bool
    name: str = ""
    token: int = -1
    """Position of the last token of which the client has a chunk."""
    chunks: int = 0
    """How many it has from there on."""
    ended: bool = False
    paused: bool = False
    _skip: int = 0
    _opened: bool = False
    """The last chunk was the role, which comes before the text of the first token."""

    def take(self, frame: bytes) -> bool:
        data = payload(frame)
        if not data:
            self.paused = frame.startswith(PAUSED)
            return not self.paused
        if data == DONE:
            self.ended = True
            return True
        chunk = read(data)
        if "choices" not in chunk:
            self.ended = True  # an error: nothing follows
            return True
        if self._skip:
            self._skip -= 1
            return False
        self._count(chunk)
        return True

    def _count(self, chunk: dict[str, Any]) -> None:
        self.name = quote(str(chunk.get("id", "")), safe="")
        if self._begins(chunk["choices"]):
            self.token += 1
            self.chunks = 0
        self.chunks += 1

    def _begins(self, choices: list[dict[str, Any]]) -> bool:
        """Whether a chunk is the first one of a token; that of the usage has no choice."""
        if not choices or not self.chat:
            return bool(choices)
        delta = choices[0].get("delta") or {}
        after_role, self._opened = self._opened, "role" in delta
        return self._opened or ("content" in delta and not after_role)

    def cut(self) -> str | None:
        self.paused = False
        if not self.name:
            return None
        self._skip = self.chunks
        return f"{self.path}/{self.name}?stream=true&starting_after={self.token - 1}"
