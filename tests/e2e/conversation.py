"""What a client of a session does: chat, start a long background response, leave it, come back.

The OpenAI library only, as any user has it. A `Reading` is what one client saw of one response,
over all attachments.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import openai
from kube import NotInTimeError

PROMPT = "Write a long story about a lighthouse keeper who repairs clocks."


@dataclass(slots=True)
class Reading:
    """Of one response: its id, the numbers of all events seen, and the text as received."""

    id: str = ""
    numbers: list[int] = field(default_factory=list)
    deltas: list[str] = field(default_factory=list)
    status: str = "in_progress"

    @property
    def text(self) -> str:
        """All deltas, joined."""
        return "".join(self.deltas)

    def take(self, event: Any) -> None:
        """Note one event of the stream."""
        self.numbers.append(event.sequence_number)
        if event.type == "response.created":
            self.id = event.response.id
        elif event.type == "response.output_text.delta":
            self.deltas.append(event.delta)
        elif event.type in {"response.completed", "response.incomplete", "response.failed"}:
            self.status = event.type.removeprefix("response.")


def client_of(base: str, api_key: str) -> openai.OpenAI:
    """A client of one session, to be closed (`with`); `base` is the address without /v1."""
    return openai.OpenAI(base_url=f"{base}/v1", api_key=api_key, max_retries=0, timeout=120)


def chat(client: openai.OpenAI, model: str, question: str, *, tokens: int = 48) -> str:
    """One streamed chat turn."""
    return "".join(chat_parts(client, model, question, tokens=tokens))


def chat_parts(
    client: openai.OpenAI, model: str, question: str, *, tokens: int, seed: int | None = None
) -> Iterator[str]:
    """The same as it comes. Greedy without a seed."""
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        stream=True,
        max_completion_tokens=tokens,
        **_sampling(seed),
    )
    with stream:
        for chunk in stream:
            if chunk.choices:
                yield chunk.choices[0].delta.content or ""


def _sampling(seed: int | None) -> dict[str, Any]:
    if seed is None:
        return {"temperature": 0}
    return {"temperature": 0.9, "extra_body": {"seed": seed}}


def begin(
    client: openai.OpenAI, model: str, *, tokens: int, seed: int | None, read: int
) -> Reading:
    """Start a background response and read `read` tokens of it. Greedy without a seed."""
    reading = Reading()
    with client.responses.create(
        model=model,
        input=PROMPT,
        background=True,
        stream=True,
        max_output_tokens=tokens,
        **_sampling(seed),
    ) as stream:
        for event in stream:
            reading.take(event)
            if len(reading.deltas) >= read:
                break
    return reading


def go_on(client: openai.OpenAI, reading: Reading, *, read: int | None = None) -> None:
    """Attach again where this client left off; to the end, or for `read` more tokens."""
    until = None if read is None else len(reading.deltas) + read
    stream = client.responses.retrieve(reading.id, stream=True, starting_after=reading.numbers[-1])
    with stream:
        for event in stream:
            reading.take(event)
            if until is not None and len(reading.deltas) >= until:
                return
    if reading.status == "in_progress":
        raise NotInTimeError(f"the stream of {reading.id} ended without its last event")


def listen(
    client: openai.OpenAI, model: str, reading: Reading, *, tokens: int, seed: int | None
) -> None:
    """Read a foreground response to its end, on one connection."""
    with client.responses.create(
        model=model, input=PROMPT, stream=True, max_output_tokens=tokens, **_sampling(seed)
    ) as stream:
        for event in stream:
            reading.take(event)


def whole(client: openai.OpenAI, model: str, *, tokens: int, seed: int | None) -> Reading:
    """The same response, read from start to end without leaving."""
    return begin(client, model, tokens=tokens, seed=seed, read=tokens + 1)
