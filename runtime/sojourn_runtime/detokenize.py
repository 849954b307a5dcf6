"""The text of an output as it grows, and where a stop string ends it.

A function of the token ids alone, so nothing of it is saved: after a pause the events are made
again from the tokens. Text that may still become a stop string is held back; half a character is
held back by the decoder.
"""

from collections.abc import Sequence
from typing import Protocol


class Decoder(Protocol):
    """Text of a growing token list, piece by piece (`model.tokenizer.Detokenizer`)."""

    def push(self, token: int, /) -> str: ...

    def flush(self) -> str: ...


class TextStream:
    """The text of one output."""

    __slots__ = ("_decoder", "_held", "_stops", "stopped")

    def __init__(self, decoder: Decoder, *, stops: Sequence[str] = ()) -> None:
        self._decoder = decoder
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False
        """A stop string is complete: the text ended before it."""

    def push(self, token: int, *, silent: bool = False, last: bool = False) -> str:
        """The text that `token` makes certain.

        A `silent` token has no text (end of sequence); the `last` one releases what was held back.
        """
        self._held += "" if silent else self._decoder.push(token)
        if last:
            self._held += self._decoder.flush()
        found = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        self.stopped = bool(found)
        safe = min(found) if found else len(self._held) - (0 if last else self._possible_stop())
        text, self._held = self._held[:safe], self._held[safe:]
        return text

    def _possible_stop(self) -> int:
        """Characters at the end that are the beginning of a stop string."""
        return max((_overlap(self._held, stop) for stop in self._stops), default=0)


def _overlap(text: str, stop: str) -> int:
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
