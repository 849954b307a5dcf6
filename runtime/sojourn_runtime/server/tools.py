"""Tool calls in what a model says: `<tool_call>{"name": ..., "arguments": ...}</tool_call>`.

The form that Hermes, Qwen and their kin are trained on. Pure, and a function of the text: what may
become a mark is held back, a call comes when its end mark does, and what is no call stays text.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

OPEN: Final = "<tool_call>"
CLOSE: Final = "</tool_call>"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call; `arguments` is JSON as text, as OpenAI sends it."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Said:
    """What a token added: text for the client, and calls that became complete."""

    text: str
    calls: tuple[ToolCall, ...] = ()


def joined(parts: Iterable[Said]) -> Said:
    """All that was said, as one."""
    found = list(parts)
    return Said(
        "".join(part.text for part in found),
        tuple(call for part in found for call in part.calls),
    )


class Splitter:
    """Tells text from calls as both grow."""

    __slots__ = ("_active", "_behind", "_held", "_inside", "_owner", "made")

    def __init__(self, owner: str, *, active: bool) -> None:
        """`owner` is what the ids of the calls are made from; inactive, all is text."""
        self._owner = owner
        self._active = active
        self._held = ""
        self._inside = False
        self._behind = False
        self.made = 0
        """Calls so far."""

    def push(self, text: str, *, last: bool = False) -> Said:
        """The text of one more token; the `last` one releases what was held back."""
        if not self._active:
            return Said(text)
        self._held += text
        shown = ""
        calls: list[ToolCall] = []
        while True:
            mark = CLOSE if self._inside else OPEN
            before, found, after = self._held.partition(mark)
            if not found:
                break
            if self._inside:
                call = self._call(before)
                if call is None:
                    shown += f"{OPEN}{before}{CLOSE}"
                else:
                    calls.append(call)
            else:
                shown += self._spoken(before)
            self._held = after
            self._inside = not self._inside
        rest, self._held = self._rest(last=last)
        if last and self._inside:
            # some models end the text in place of the end mark
            call = self._call(rest)
            if call is not None:
                calls.append(call)
                rest = ""
            else:
                rest = OPEN + rest
        return Said(shown + self._spoken(rest), tuple(calls))

    def _spoken(self, text: str) -> str:
        """Line breaks between calls and behind them are no text."""
        if self._behind:
            text = text.lstrip()
            self._behind = not text
        return text

    def _rest(self, *, last: bool) -> tuple[str, str]:
        """What can be shown of the text behind the last mark, and what must wait."""
        if last:
            return self._held, ""
        if self._inside:
            return "", self._held
        for size in range(min(len(self._held), len(OPEN) - 1), 0, -1):
            if self._held.endswith(OPEN[:size]):
                return self._held[:-size], self._held[-size:]
        return self._held, ""

    def _call(self, text: str) -> ToolCall | None:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return None
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            return None
        arguments = value.get("arguments", {})
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        self.made += 1
        self._behind = True
        return ToolCall(f"call_{self._owner}_{self.made - 1}", value["name"], arguments)
