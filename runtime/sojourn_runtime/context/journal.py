"""What happened since the last commit, record by record: written before anyone is told.

A record is a length, a checksum and JSON or packed tokens; all of a step are one write. After a
crash the records are read up to the first broken one, and what they say is taken as it is: tokens
are never sampled again. What a record changes is decided in `state`.
"""

import json
import struct
import threading
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from sojourn_runtime.context.store import Log

_HEAD: Final = struct.Struct("<II")
_TOKEN: Final = struct.Struct("<IIIB")
_TOKENS: Final = b"T"
_EVENT: Final = b"J"
LONGEST: Final = 1 << 28
"""A length beyond this is garbage, not a record."""


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """One token: which request (by its number), which position of the output, and how it ended."""

    number: int
    position: int
    token: int
    finish: int


Event: TypeAlias = dict[str, Any]
"""Anything but a token: `{"kind": ...}` and what belongs to it."""


def pack_tokens(records: Sequence[TokenRecord]) -> bytes:
    """One record for all tokens of a step."""
    body = b"".join(_TOKEN.pack(r.number, r.position, r.token, r.finish) for r in records)
    return _frame(_TOKENS + body)


def pack_event(event: Event) -> bytes:
    """One event."""
    return _frame(_EVENT + json.dumps(event, separators=(",", ":")).encode())


def _frame(body: bytes) -> bytes:
    return _HEAD.pack(len(body), zlib.crc32(body)) + body


def unpack(data: bytes) -> Iterator[TokenRecord | Event]:
    """The records up to the first that is cut short or broken."""
    at = 0
    while at + _HEAD.size <= len(data):
        length, checksum = _HEAD.unpack_from(data, at)
        body = data[at + _HEAD.size : at + _HEAD.size + length]
        if length > LONGEST or len(body) != length or not body or zlib.crc32(body) != checksum:
            return
        at += _HEAD.size + length
        if body[:1] == _TOKENS:
            yield from (TokenRecord(*fields) for fields in _TOKEN.iter_unpack(body[1:]))
        else:
            yield json.loads(body[1:])


class Journal:
    """The log in use; written by the engine's thread (tokens) and the server's (documents)."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self.lock = threading.RLock()
        """Held while state and journal change together."""
        self.bytes = 0

    def append(self, records: bytes) -> None:
        with self.lock:
            self._log.append(records)
            self.bytes += len(records)

    def turn(self, log: Log) -> Log:
        """From now on write to `log`; returns the former one, to be closed."""
        with self.lock:
            former, self._log, self.bytes = self._log, log, 0
            return former
