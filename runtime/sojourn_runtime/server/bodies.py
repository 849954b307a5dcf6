"""Responses and conversations as JSON bodies, in OpenAI's form. Pure."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from sojourn_runtime.context.conversation import (
    Conversation,
    EndReason,
    FunctionCall,
    Item,
    Message,
    Response,
    Role,
    item_to_json,
)
from sojourn_runtime.server.errors import Json
from sojourn_runtime.server.tools import Said

QUEUED: Final = "queued"
IN_PROGRESS: Final = "in_progress"
STATUS: Final = {
    EndReason.STOP: "completed",
    EndReason.LENGTH: "incomplete",
    EndReason.CANCELLED: "cancelled",
    EndReason.FAILED: "failed",
}


def output_items(response: Response, said: Said) -> list[Item]:
    """What the model said and called in an ended response."""
    whole = response.ending is not None and response.ending.reason is EndReason.STOP
    message = Message(
        id=response.output_id, role=Role.ASSISTANT, texts=(said.text,), complete=whole
    )
    calls = [
        FunctionCall(
            id="fc_" + call.id.removeprefix("call_"),
            call_id=call.id,
            name=call.name,
            arguments=call.arguments,
        )
        for call in said.calls
    ]
    return [message, *calls]


def ended_body(response: Response, said: Said) -> dict[str, Json]:
    """An ended response; nothing was said when it was cancelled before its first token."""
    ending = response.ending
    if ending is None:
        raise ValueError(f"response {response.id} has not ended")
    body = running_body(response, status=STATUS[ending.reason])
    if ending.tokens or ending.reason is EndReason.STOP:
        body["output"] = [item_to_json(item) for item in output_items(response, said)]
    body["usage"] = _usage(response, output=len(ending.tokens))
    if ending.reason is EndReason.STOP:
        body["completed_at"] = ending.at
    elif ending.reason is EndReason.LENGTH:
        body["incomplete_details"] = {"reason": "max_output_tokens"}
    elif ending.reason is EndReason.FAILED:
        body["error"] = {"code": "server_error", "message": ending.message}
    return body


def running_body(response: Response, *, status: str) -> dict[str, Json]:
    """A response without its output, which is told by events while it runs."""
    conversation: Json = {"id": response.conversation} if response.conversation else None
    return {
        "id": response.id,
        "object": "response",
        "created_at": response.created_at,
        "status": status,
        "background": response.background,
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "instructions": response.instructions,
        "model": response.model,
        "output": [],
        "previous_response_id": response.previous,
        "conversation": conversation,
        **response.echo,
        "usage": None,
    }


def _usage(response: Response, *, output: int) -> Json:
    return {
        "input_tokens": response.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": response.cached_tokens,
            "cache_write_tokens": response.prompt_tokens - response.cached_tokens,
            **asdict(response.origin),
        },
        "output_tokens": output,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": response.prompt_tokens + output,
    }


def conversation_body(conversation: Conversation) -> dict[str, Json]:
    return {
        "id": conversation.id,
        "object": "conversation",
        "created_at": conversation.created_at,
        "metadata": dict(conversation.metadata),
    }


def page(
    items: Sequence[Item], *, after: str | None, limit: int, newest_first: bool
) -> dict[str, Json] | None:
    """A page of a list of items, oldest first in `items`; None when no item is called `after`."""
    ordered = list(reversed(items)) if newest_first else list(items)
    if after is not None:
        places = [place for place, item in enumerate(ordered) if item.id == after]
        if not places:
            return None
        ordered = ordered[places[0] + 1 :]
    shown = ordered[:limit]
    return {
        "object": "list",
        "data": [item_to_json(item) for item in shown],
        # OpenAI's clients take both for strings, so an empty page has empty ones
        "first_id": shown[0].id if shown else "",
        "last_id": shown[-1].id if shown else "",
        "has_more": len(ordered) > limit,
    }
