"""Bodies and chunks of chat completions and completions, as pure functions of the tokens' events.

Nothing here sends or waits.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from sojourn_runtime.engine.request import Finish, Origin
from sojourn_runtime.server.errors import Json
from sojourn_runtime.server.tools import Splitter, ToolCall
from sojourn_runtime.stream import TokenEvent

Spell = Callable[[int], str]
"""The text of one token id."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call, over all its choices."""

    prompt: int
    output: int
    cached: int
    origin: Origin = field(default_factory=Origin)
    """In which tiers the cached ones were."""

    def body(self) -> dict[str, Json]:
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.output,
            "total_tokens": self.prompt + self.output,
            "prompt_tokens_details": {"cached_tokens": self.cached, **asdict(self.origin)},
        }


@dataclass(frozen=True, slots=True)
class Form:
    """How a call is to be answered; kept with its requests, so that it goes on after a pause."""

    id: str
    created: int
    model: str
    chat: bool
    choices: int = 1
    """Per prompt."""
    echoes: tuple[str, ...] = ("",)
    """Per prompt, the text to begin with."""
    likely: int = 0
    """How many log probabilities beside the chosen token's were asked for."""
    tools: bool = False
    """Calls of tools are told apart from the text."""
    usage_follows: bool = False
    """The client asked for usage, so each chunk says that its own is null."""

    def to_json(self) -> dict[str, Json]:
        return {**asdict(self), "echoes": list(self.echoes)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        return cls(**{**value, "echoes": tuple(value["echoes"])})

    def chunk(self, choices: list[Json], *, usage: Usage | None = None) -> dict[str, Json]:
        body: dict[str, Json] = {
            "id": self.id,
            "object": "chat.completion.chunk" if self.chat else "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }
        if self.usage_follows:
            body["usage"] = None if usage is None else usage.body()
        return body

    def whole(self, choices: list[Json], *, usage: Usage) -> dict[str, Json]:
        return {
            "id": self.id,
            "object": "chat.completion" if self.chat else "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "usage": usage.body(),
        }


class Writer:
    """The choices of one call, token by token; chunks and the whole come from the same words."""

    def __init__(self, form: Form, *, spell: Spell) -> None:
        self._form = form
        self._spell = spell
        self._splitters: dict[int, Splitter] = {}
        self._offsets: dict[int, int] = {}

    def token(self, index: int, event: TokenEvent) -> list[Json]:
        """What one token of choice `index` adds to a stream."""
        return self._chat(index, event) if self._form.chat else self._completion(index, event)

    def whole(self, index: int, events: Sequence[TokenEvent]) -> Json:
        """A choice of an answer that is not streamed."""
        if self._form.chat:
            return self._chat_whole(index, events)
        echo = self._echo(index)
        return {
            "index": index,
            "text": echo + "".join(event.text for event in events),
            "logprobs": self._completion_logprobs(events, offset=len(echo)),
            "finish_reason": _finish_reason(events[-1].finish),
        }

    # -- chat --

    def _chat(self, index: int, event: TokenEvent) -> list[Json]:
        splitter = self._splitter(index)
        first = splitter.made
        said = splitter.push(event.text, last=bool(event.finish))
        made: list[Json] = []
        if event.position == 0:
            # not before the first token, or clients would time the wrong thing
            made.append(_chat_choice(index, {"role": "assistant", "content": ""}))
        logprobs = None if event.logprob is None else self._chat_logprobs([event])
        made.append(_chat_choice(index, {"content": said.text}, logprobs=logprobs))
        if said.calls:
            calls: list[Json] = [
                {"index": number, **_call(call)}
                for number, call in enumerate(said.calls, start=first)
            ]
            made.append(_chat_choice(index, {"tool_calls": calls}))
        if event.finish:
            reason = _finish_reason(event.finish, calls=splitter.made)
            made.append(_chat_choice(index, {}, reason=reason))
        return made

    def _chat_whole(self, index: int, events: Sequence[TokenEvent]) -> Json:
        splitter = self._splitter(index)
        parts = [splitter.push(event.text, last=bool(event.finish)) for event in events]
        text = "".join(part.text for part in parts)
        calls: list[Json] = [_call(call) for part in parts for call in part.calls]
        message: dict[str, Json] = {
            "role": "assistant",
            "content": None if calls and not text else text,
            "refusal": None,
            "annotations": [],
        }
        if calls:
            message["tool_calls"] = calls
        return {
            "index": index,
            "message": message,
            "logprobs": None if events[0].logprob is None else self._chat_logprobs(events),
            "finish_reason": _finish_reason(events[-1].finish, calls=len(calls)),
        }

    def _splitter(self, index: int) -> Splitter:
        if index not in self._splitters:
            owner = f"{self._form.id.partition('-')[2]}_{index}"
            self._splitters[index] = Splitter(owner, active=self._form.tools)
        return self._splitters[index]

    def _chat_logprobs(self, events: Sequence[TokenEvent]) -> Json:
        content: list[Json] = [
            {
                **self._chat_logprob(event.token, event.logprob or 0.0),
                "top_logprobs": [
                    self._chat_logprob(token, logprob) for token, logprob in event.top
                ],
            }
            for event in events
        ]
        return {"content": content, "refusal": None}

    def _chat_logprob(self, token: int, logprob: float) -> dict[str, Json]:
        text = self._spell(token)
        # part of a character has no text of its own, and its bytes are not known here
        known: Json = None if "\ufffd" in text else list(text.encode())
        return {"token": text, "logprob": logprob, "bytes": known}

    # -- completions --

    def _echo(self, index: int) -> str:
        return self._form.echoes[index // self._form.choices]

    def _completion(self, index: int, event: TokenEvent) -> list[Json]:
        echo = self._echo(index) if event.position == 0 else ""
        offset = self._offsets.get(index, len(self._echo(index)))
        self._offsets[index] = offset + len(event.text)
        made: list[Json] = []
        if echo:
            made.append({"index": index, "text": echo, "logprobs": None, "finish_reason": None})
        made.append(
            {
                "index": index,
                "text": event.text,
                "logprobs": self._completion_logprobs([event], offset=offset),
                "finish_reason": _finish_reason(event.finish),
            }
        )
        return made

    def _completion_logprobs(self, events: Sequence[TokenEvent], *, offset: int) -> Json:
        """The older form, with parallel lists; null when none were asked for."""
        if events[0].logprob is None:
            return None
        offsets: list[Json] = []
        for event in events:
            offsets.append(offset)
            offset += len(event.text)
        tops: list[Json] = [
            {self._spell(token): logprob for token, logprob in event.top} for event in events
        ]
        return {
            "text_offset": offsets,
            "token_logprobs": [event.logprob for event in events],
            "tokens": [self._spell(event.token) for event in events],
            "top_logprobs": tops if self._form.likely else None,
        }


def _chat_choice(
    index: int, delta: dict[str, Json], *, logprobs: Json = None, reason: str | None = None
) -> Json:
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}


def _call(call: ToolCall) -> dict[str, Json]:
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


def _finish_reason(finish: Finish, *, calls: int = 0) -> str | None:
    """OpenAI's word, which exists for `stop` and `length` only."""
    if finish is Finish.STOP and calls:
        return "tool_calls"
    return finish.word if finish in (Finish.STOP, Finish.LENGTH) else None
