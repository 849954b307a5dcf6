"""What a conversation consists of: items, responses and their ends, as values and as documents.

Pure. The documents hold what clients said and the token ids of what the model said; text is
rebuilt from the ids. HTTP belongs to `server`, bytes and folders to `store`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Final, NotRequired, TypeAlias, TypedDict, cast

from sojourn_runtime.engine.request import Origin

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

RESPONSES: Final = "response"
CONVERSATIONS: Final = "conversation"
"""Kinds of documents."""


class Role(StrEnum):
    USER = "user"
    ASSISTANT = "assistant"
    SYSTEM = "system"
    DEVELOPER = "developer"


@dataclass(frozen=True, slots=True)
class Message:
    """Something said; `texts` are its parts."""

    id: str
    role: Role
    texts: tuple[str, ...]
    complete: bool = True


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A tool that the model asked for; `arguments` is JSON as text."""

    id: str
    call_id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class FunctionOutput:
    """What a tool answered."""

    id: str
    call_id: str
    output: str


Item: TypeAlias = Message | FunctionCall | FunctionOutput


class EndReason(StrEnum):
    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Ending:
    """How a response ended: all that its text and its last events are rebuilt from."""

    reason: EndReason
    at: float
    """Unix seconds."""
    tokens: tuple[int, ...]
    message: str = ""


@dataclass(frozen=True, slots=True)
class Response:
    """One turn: what was asked, and its end once there is one."""

    id: str
    created_at: float
    model: str
    items: tuple[Item, ...]
    """This turn's input; earlier turns are found by `previous` or `conversation`."""
    prompt_tokens: int
    instructions: str | None = None
    previous: str | None = None
    conversation: str | None = None
    background: bool = False
    echo: Mapping[str, Json] = field(default_factory=dict)
    """Settings that are only told back."""
    cached_tokens: int = 0
    origin: Origin = field(default_factory=Origin)
    """In which tiers they were found."""
    ending: Ending | None = None

    @property
    def stored(self) -> bool:
        """Kept beyond its end; while it runs it is kept anyway, or a pause would lose it."""
        return self.echo.get("store") is not False

    @property
    def tools(self) -> bool:
        """The model was told of tools that it may call."""
        return bool(self.echo.get("tools")) and self.echo.get("tool_choice") != "none"

    @property
    def output_id(self) -> str:
        """The id of the message that the model says: a function of the response's, never saved."""
        return "msg_" + self.id.removeprefix("resp_")


@dataclass(frozen=True, slots=True)
class Conversation:
    """A list of items that responses read and extend."""

    id: str
    created_at: int
    metadata: Mapping[str, str]
    items: tuple[Item, ...]

    def extended(self, items: Iterable[Item]) -> "Conversation":
        return replace(self, items=(*self.items, *items))

    def with_metadata(self, metadata: Mapping[str, str]) -> "Conversation":
        return replace(self, metadata=metadata)

    def without(self, item_id: str) -> "Conversation":
        return replace(self, items=tuple(item for item in self.items if item.id != item_id))


# What chat templates take.


class ChatCall(TypedDict):
    name: str
    arguments: Json


class ChatToolCall(TypedDict):
    id: str
    type: str
    function: ChatCall


class ChatMessage(TypedDict, total=False):
    role: str
    content: str
    name: str
    tool_calls: list[ChatToolCall]
    tool_call_id: str


def chat_messages(items: Iterable[Item], *, instructions: str | None) -> list[ChatMessage]:
    """The items as a chat template reads them; instructions come first.

    Calls of tools join the assistant's message before them: templates know them only there.
    """
    messages: list[ChatMessage] = []
    if instructions:
        messages.append({"role": Role.SYSTEM.value, "content": instructions})
    for item in items:
        if isinstance(item, FunctionCall):
            if not messages or messages[-1]["role"] != Role.ASSISTANT:
                messages.append({"role": Role.ASSISTANT.value, "content": ""})
            messages[-1].setdefault("tool_calls", []).append(_chat_call(item))
        else:
            messages.append(_chat_message(item))
    return messages


def _chat_message(item: Message | FunctionOutput) -> ChatMessage:
    if isinstance(item, FunctionOutput):
        return {"role": "tool", "content": item.output, "tool_call_id": item.call_id}
    # templates know no developer role; it is OpenAI's newer word for system
    role = Role.SYSTEM if item.role is Role.DEVELOPER else item.role
    return {"role": role.value, "content": "\n".join(item.texts)}


def _chat_call(call: FunctionCall) -> ChatToolCall:
    arguments = call_arguments(call.arguments)
    function: ChatCall = {"name": call.name, "arguments": arguments}
    return {"id": call.call_id, "type": "function", "function": function}


def call_arguments(text: str) -> Json:
    """A call's arguments as a template wants them: the value, where the text is JSON."""
    try:
        value: Json = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, dict) else text


def drop_oldest(items: Sequence[Item]) -> tuple[Item, ...] | None:
    """The items without the oldest droppable one, or None when only what must stay is left.

    System messages and the last item stay; a tool's answer goes with its call, since templates
    refuse one without the other.
    """
    for index, item in enumerate(items[:-1]):
        if isinstance(item, Message) and item.role in (Role.SYSTEM, Role.DEVELOPER):
            continue
        gone = item.call_id if isinstance(item, FunctionCall) else None
        rest = (*items[:index], *items[index + 1 :])
        return tuple(
            other
            for other in rest
            if gone is None or not isinstance(other, FunctionOutput) or other.call_id != gone
        )
    return None


# Documents. Their shape is OpenAI's where OpenAI has one.


def item_to_json(item: Item) -> dict[str, Json]:
    match item:
        case Message():
            return {
                "type": "message",
                "id": item.id,
                "role": item.role.value,
                "status": "completed" if item.complete else "incomplete",
                "content": [_part(item.role, text) for text in item.texts],
            }
        case FunctionCall():
            return {
                "type": "function_call",
                "id": item.id,
                "call_id": item.call_id,
                "name": item.name,
                "arguments": item.arguments,
                "status": "completed",
            }
        case FunctionOutput():
            return {
                "type": "function_call_output",
                "id": item.id,
                "call_id": item.call_id,
                "output": item.output,
                "status": "completed",
            }


def _part(role: Role, text: str) -> Json:
    if role is Role.ASSISTANT:
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "input_text", "text": text}


def item_from_json(value: Mapping[str, Json]) -> Item:
    """The reverse of `item_to_json`, for documents that were written by it."""
    kind = value["type"]
    if kind == "message":
        parts = cast("list[dict[str, str]]", value["content"])
        return Message(
            id=str(value["id"]),
            role=Role(str(value["role"])),
            texts=tuple(part["text"] for part in parts),
            complete=value["status"] == "completed",
        )
    if kind == "function_call":
        return FunctionCall(
            id=str(value["id"]),
            call_id=str(value["call_id"]),
            name=str(value["name"]),
            arguments=str(value["arguments"]),
        )
    return FunctionOutput(
        id=str(value["id"]), call_id=str(value["call_id"]), output=str(value["output"])
    )


def response_to_json(response: Response) -> dict[str, Json]:
    ending = response.ending
    return {
        "id": response.id,
        "created_at": response.created_at,
        "model": response.model,
        "items": [item_to_json(item) for item in response.items],
        "prompt_tokens": response.prompt_tokens,
        "instructions": response.instructions,
        "previous": response.previous,
        "conversation": response.conversation,
        "background": response.background,
        "echo": dict(response.echo),
        "cached_tokens": response.cached_tokens,
        "origin": asdict(response.origin),
        "ending": None
        if ending is None
        else {
            "reason": ending.reason.value,
            "at": ending.at,
            "tokens": list(ending.tokens),
            "message": ending.message,
        },
    }


class _EndingDocument(TypedDict):
    reason: str
    at: float
    tokens: list[int]
    message: str


class _ResponseDocument(TypedDict):
    id: str
    created_at: float
    model: str
    items: list[dict[str, Json]]
    prompt_tokens: int
    instructions: str | None
    previous: str | None
    conversation: str | None
    background: bool
    echo: dict[str, Json]
    cached_tokens: int
    origin: NotRequired[dict[str, int]]
    """Absent in documents of earlier releases."""
    ending: _EndingDocument | None


class _ConversationDocument(TypedDict):
    id: str
    created_at: int
    metadata: dict[str, str]
    items: list[dict[str, Json]]


def response_from_json(value: Mapping[str, Json]) -> Response:
    document = cast("_ResponseDocument", value)
    ending = document["ending"]
    return Response(
        id=document["id"],
        created_at=document["created_at"],
        model=document["model"],
        items=tuple(item_from_json(item) for item in document["items"]),
        prompt_tokens=document["prompt_tokens"],
        instructions=document["instructions"],
        previous=document["previous"],
        conversation=document["conversation"],
        background=document["background"],
        echo=document["echo"],
        cached_tokens=document["cached_tokens"],
        origin=Origin(**document.get("origin", {})),
        ending=None
        if ending is None
        else Ending(
            reason=EndReason(ending["reason"]),
            at=ending["at"],
            tokens=tuple(ending["tokens"]),
            message=ending["message"],
        ),
    )


def conversation_to_json(conversation: Conversation) -> dict[str, Json]:
    return {
        "id": conversation.id,
        "created_at": conversation.created_at,
        "metadata": dict(conversation.metadata),
        "items": [item_to_json(item) for item in conversation.items],
    }


def conversation_from_json(value: Mapping[str, Json]) -> Conversation:
    document = cast("_ConversationDocument", value)
    return Conversation(
        id=document["id"],
        created_at=document["created_at"],
        metadata=document["metadata"],
        items=tuple(item_from_json(item) for item in document["items"]),
    )
