"""The events of a response, derived from its record and its tokens.

Pure: the same record and tokens give the same events with the same sequence numbers, wherever a
stream was cut, on whichever node it goes on. One delta per token position, even when a token adds
no text, makes the number of an event a function of its token.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sojourn_runtime.context.conversation import EndReason, Item, Response, item_to_json
from sojourn_runtime.server.bodies import (
    IN_PROGRESS,
    QUEUED,
    ended_body,
    output_items,
    running_body,
)
from sojourn_runtime.server.errors import Json
from sojourn_runtime.server.tools import Said, joined

# OpenAI's stream has no event of its own for a cancelled response; its clients stop at this one,
# and the status in it says what happened.
TERMINAL = {
    EndReason.STOP: "response.completed",
    EndReason.LENGTH: "response.incomplete",
    EndReason.CANCELLED: "response.incomplete",
    EndReason.FAILED: "response.failed",
}


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event."""

    sequence: int
    kind: str
    fields: dict[str, Json]

    def body(self) -> dict[str, Json]:
        return {"type": self.kind, "sequence_number": self.sequence, **self.fields}


def opening(response: Response) -> list[Event]:
    """What comes before the first token."""
    first = running_body(response, status=QUEUED if response.background else IN_PROGRESS)
    kinds: list[tuple[str, dict[str, Json]]] = [("response.created", {"response": first})]
    if response.background:
        kinds.append(("response.queued", {"response": first}))
    running = running_body(response, status=IN_PROGRESS)
    item: dict[str, Json] = {
        "type": "message",
        "id": response.output_id,
        "role": "assistant",
        "status": "in_progress",
        "content": [],
    }
    kinds += [
        ("response.in_progress", {"response": running}),
        ("response.output_item.added", {"output_index": 0, "item": item}),
        ("response.content_part.added", {**_place(response), "part": _part("")}),
    ]
    return [Event(sequence, kind, fields) for sequence, (kind, fields) in enumerate(kinds)]


def first_delta(response: Response) -> int:
    """The sequence number of the first token's event."""
    return 5 if response.background else 4


def delta(response: Response, *, position: int, text: str) -> Event:
    """The event of one token."""
    fields: dict[str, Json] = {**_place(response), "delta": text, "logprobs": []}
    return Event(first_delta(response) + position, "response.output_text.delta", fields)


def closing(response: Response, said: Said) -> list[Event]:
    """What comes after the last token of an ended response that said all of `said`.

    A cancelled or failed one has no done events: its output is not whole.
    """
    ending = response.ending
    if ending is None:
        raise ValueError(f"response {response.id} has not ended")
    kinds: list[tuple[str, dict[str, Json]]] = []
    if ending.reason in (EndReason.STOP, EndReason.LENGTH):
        place = _place(response)
        message, *calls = output_items(response, said)
        kinds += [
            ("response.output_text.done", {**place, "text": said.text, "logprobs": []}),
            ("response.content_part.done", {**place, "part": _part(said.text)}),
            ("response.output_item.done", {"output_index": 0, "item": item_to_json(message)}),
        ]
        for index, call in enumerate(calls, start=1):
            kinds += _call(call, index=index)
    kinds.append((TERMINAL[ending.reason], {"response": ended_body(response, said)}))
    start = first_delta(response) + len(ending.tokens)
    return [Event(start + index, kind, fields) for index, (kind, fields) in enumerate(kinds)]


def _call(call: Item, *, index: int) -> list[tuple[str, dict[str, Json]]]:
    """A call of a tool, told at once: half of its JSON would be of no use to anybody."""
    item = item_to_json(call)
    arguments = item["arguments"]
    empty: dict[str, Json] = {**item, "arguments": "", "status": "in_progress"}
    place: dict[str, Json] = {"output_index": index, "item_id": item["id"]}
    whole: dict[str, Json] = {**place, "name": item["name"], "arguments": arguments}
    return [
        ("response.output_item.added", {"output_index": index, "item": empty}),
        ("response.function_call_arguments.delta", {**place, "delta": arguments}),
        ("response.function_call_arguments.done", whole),
        ("response.output_item.done", {"output_index": index, "item": item}),
    ]


def replay(response: Response, parts: Sequence[Said]) -> Iterator[Event]:
    """All events of an ended response, from what each token added."""
    yield from opening(response)
    for position, part in enumerate(parts):
        yield delta(response, position=position, text=part.text)
    yield from closing(response, joined(parts))


def position_after(response: Response, sequence: int) -> int:
    """The last token position whose event has a number up to `sequence`; -1 for none."""
    return max(-1, sequence - first_delta(response))


def _place(response: Response) -> dict[str, Json]:
    return {"item_id": response.output_id, "output_index": 0, "content_index": 0}


def _part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
