"""Bodies and chunks of chat completions and completions, as pure functions of the tokens' events.

Nothing here sends or waits.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sojourn_runtime.engine.request import Finish
from sojourn_runtime.server.errors import Json
from sojourn_runtime.stream import TokenEvent

Spell = Callable[[int], str]
"""The text of one token id."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one call, over all its choices."""

    prompt: int
    output: int
    cached: int

    def body(self) -> dict[str, Json]:
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.output,
            "total_tokens": self.prompt + self.output,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }


@dataclass(frozen=True, slots=True)
class Head:
    """What every chunk of a call repeats."""

    id: str
    created: int
    model: str
    chat: bool
    usage_follows: bool = False
    """The client asked for usage, so each chunk says that its own is null."""

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


def finish_reason(finish: Finish) -> str | None:
    """OpenAI's word, which exists for `stop` and `length` only."""
    return finish.word if finish in (Finish.STOP, Finish.LENGTH) else None


def chat_opening(index: int) -> Json:
    """The choice of the first chunk, which says who speaks."""
    delta: Json = {"role": "assistant", "content": ""}
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def chat_choice(index: int, event: TokenEvent, *, spell: Spell) -> Json:
    """One token."""
    logprobs = None if event.logprob is None else chat_logprobs([event], spell=spell)
    delta: Json = {"content": event.text}
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": None}


def chat_closing(index: int, finish: Finish) -> Json:
    return {
        "index": index,
        "delta": {},
        "logprobs": None,
        "finish_reason": finish_reason(finish),
    }


def chat_whole(index: int, events: Sequence[TokenEvent], *, spell: Spell) -> Json:
    """The choice of an answer that is not streamed."""
    wanted = bool(events) and events[0].logprob is not None
    return {
        "index": index,
        "message": {
            "role": "assistant",
            "content": "".join(event.text for event in events),
            "refusal": None,
            "annotations": [],
        },
        "logprobs": chat_logprobs(events, spell=spell) if wanted else None,
        "finish_reason": finish_reason(events[-1].finish) if events else "length",
    }


def chat_logprobs(events: Sequence[TokenEvent], *, spell: Spell) -> Json:
    content: list[Json] = [
        {
            **_chat_logprob(event.token, event.logprob or 0.0, spell=spell),
            "top_logprobs": [
                _chat_logprob(token, logprob, spell=spell) for token, logprob in event.top
            ],
        }
        for event in events
    ]
    return {"content": content, "refusal": None}


def _chat_logprob(token: int, logprob: float, *, spell: Spell) -> dict[str, Json]:
    text = spell(token)
    # a token that is part of a character has no text of its own, and its bytes are not known here
    known: Json = None if "\ufffd" in text else list(text.encode())
    return {"token": text, "logprob": logprob, "bytes": known}


def completion_choice(
    index: int, event: TokenEvent, *, offset: int, spell: Spell, chosen: int
) -> Json:
    """One token; `offset` is where its text begins, `chosen` how many likely ones were asked
    for.
    """
    return {
        "index": index,
        "text": event.text,
        "logprobs": completion_logprobs([event], offset=offset, spell=spell, chosen=chosen),
        "finish_reason": finish_reason(event.finish),
    }


def completion_whole(
    index: int, events: Sequence[TokenEvent], *, echo: str, spell: Spell, chosen: int
) -> Json:
    return {
        "index": index,
        "text": echo + "".join(event.text for event in events),
        "logprobs": completion_logprobs(events, offset=len(echo), spell=spell, chosen=chosen),
        "finish_reason": finish_reason(events[-1].finish) if events else "length",
    }


def completion_logprobs(
    events: Sequence[TokenEvent], *, offset: int, spell: Spell, chosen: int
) -> Json:
    """The older form, with parallel lists; null when none were asked for."""
    if not events or events[0].logprob is None:
        return None
    offsets: list[Json] = []
    for event in events:
        offsets.append(offset)
        offset += len(event.text)
    tops: list[Json] = [{spell(token): logprob for token, logprob in event.top} for event in events]
    return {
        "text_offset": offsets,
        "token_logprobs": [event.logprob for event in events],
        "tokens": [spell(event.token) for event in events],
        "top_logprobs": tops if chosen else None,
    }
