"""The body of a response, read into a turn: what is said before it, its prompt, its request.

Pure but for the tokenizer and the book of earlier turns.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sojourn_runtime.context.conversation import Item, Response, chat_messages, drop_oldest
from sojourn_runtime.engine.request import Request
from sojourn_runtime.server.book import Book
from sojourn_runtime.server.errors import Json, context_exceeded, invalid, unsupported
from sojourn_runtime.server.fields import Fields
from sojourn_runtime.server.messages import read_input, read_tools
from sojourn_runtime.server.meta import STREAMED, meta_text
from sojourn_runtime.server.params import (
    WITHOUT_EFFECT,
    fit,
    read_form,
    read_priority,
    read_sampling,
    the_one,
)
from sojourn_runtime.server.plans import check_model, new_id
from sojourn_runtime.server.port import Session

ABSENT: Final = {
    "access_programs": "access programs",
    "background_options": "background options",
    "context_management": "context management other than 'truncation'",
    "image": "images",
    "prompt": "prompt templates",
}
ECHOED: Final = (
    "max_tool_calls",
    "prompt_cache_key",
    "safety_identifier",
    "service_tier",
    "user",
)
"""Told back as they came."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A body that was read."""

    response: Response
    request: Request
    streamed: bool


@dataclass(frozen=True, slots=True)
class _Turn:
    """What is said, to whom, and all of it as tokens."""

    items: tuple[Item, ...]
    instructions: str | None
    previous: str | None
    conversation: str | None
    prompt: tuple[int, ...]
    grammar: str


class Turns:
    """Reads turns of one session."""

    def __init__(self, session: Session, book: Book) -> None:
        self._session = session
        self._book = book

    def plan(self, fields: Fields) -> Plan:
        """What to keep and to submit."""
        turn = self._turn(fields)
        session = self._session
        _read_include(fields)
        background = fields.flag("background", default=False)
        streamed = fields.flag("stream", default=False)
        if background and not fields.flag("store", default=True):
            raise invalid("'background' needs 'store'.", param="background")
        room = fit(
            prompt=len(turn.prompt),
            wanted=fields.integer_or_none("max_output_tokens", low=1),
            limit=session.context_length,
            param="input",
            bound="max_output_tokens",
            clip=True,
        )
        params = read_sampling(
            fields,
            max_tokens=room,
            vocabulary=session.tokenizer.vocab_size,
            grammar=turn.grammar,
        )
        response = Response(
            id=new_id("resp"),
            created_at=int(time.time()),
            model=session.model_name,
            items=turn.items,
            prompt_tokens=len(turn.prompt),
            instructions=turn.instructions,
            previous=turn.previous,
            conversation=turn.conversation,
            background=background,
            echo=_echo(fields),
        )
        request = Request(
            id=response.id,
            prompt=turn.prompt,
            params=params,
            priority=read_priority(fields),
            background=background,
            conversation=turn.conversation or response.id,
            meta=STREAMED if streamed or background else meta_text(None),
        )
        _read_stream_options(fields, streamed=streamed)
        fields.ignore(WITHOUT_EFFECT)
        fields.refuse_unknown()
        return Plan(response=response, request=request, streamed=streamed)

    def count(self, fields: Fields) -> int:
        """How many tokens the prompt of a response would have."""
        turn = self._turn(fields)
        fields.ignore(("reasoning",))
        fields.refuse_unknown()
        return len(turn.prompt)

    def _turn(self, fields: Fields) -> _Turn:
        check_model(fields, self._session)
        for name, what in ABSENT.items():
            if fields.raw(name) is not None:
                raise unsupported(what, param=name)
        grammar = ""
        text = fields.object_or_none("text")
        if text is not None:
            text.ignore(("verbosity",))
            grammar = read_form(text, "format", nested=False)
            text.refuse_unknown()
        tools = read_tools(fields, nested=False)
        if tools.shown and not self._session.tokenizer.knows_tools:
            raise unsupported("tools for this model: its chat template has none", param="tools")
        items = read_input(fields, "input", new_id=new_id)
        instructions = fields.text_or_none("instructions")
        previous, conversation, earlier = self._read_history(fields)
        truncate = fields.choice("truncation", ("disabled", "auto"), default="disabled") == "auto"
        prompt = self._prompt(
            (*earlier, *items), instructions=instructions, tools=tools.shown, truncate=truncate
        )
        return _Turn(
            items, instructions, previous, conversation, prompt, the_one(grammar, tools.grammar)
        )

    def _read_history(self, fields: Fields) -> tuple[str | None, str | None, tuple[Item, ...]]:
        """The previous response, the conversation, and what was said in it."""
        previous = fields.text_or_none("previous_response_id")
        given = fields.raw("conversation")
        if isinstance(given, dict):
            conversation: str | None = Fields(given, path="conversation").text("id")
        else:
            conversation = fields.text_or_none("conversation")
        if previous is not None and conversation is not None:
            message = "'previous_response_id' and 'conversation' exclude each other."
            raise invalid(message, param="previous_response_id")
        if previous is not None:
            param = "previous_response_id"
            return previous, None, self._book.history(self._book.response(previous, param=param))
        if conversation is not None:
            items = self._book.conversation(conversation, param="conversation").items
            return None, conversation, items
        return None, None, ()

    def _prompt(
        self,
        items: tuple[Item, ...],
        *,
        instructions: str | None,
        tools: Sequence[Mapping[str, Json]],
        truncate: bool,
    ) -> tuple[int, ...]:
        """Token ids of the whole input; the oldest items are left out if they must and may be."""
        limit = self._session.context_length
        while True:
            messages = chat_messages(items, instructions=instructions)
            try:
                prompt = tuple(self._session.tokenizer.encode_chat(messages, tools=tools))
            except ValueError as error:
                message = f"The model's chat template refuses this input: {error}."
                raise invalid(message, param="input") from error
            shorter = drop_oldest(items)
            if len(prompt) < limit or not truncate:
                return prompt
            if shorter is None:
                raise context_exceeded(prompt=len(prompt), wanted=0, limit=limit, param="input")
            items = shorter


def _echo(fields: Fields) -> dict[str, Json]:
    """The settings that a response tells back; each was checked where it is used."""
    echo: dict[str, Json] = {
        "temperature": _or(fields.raw("temperature"), 1.0),
        "top_p": _or(fields.raw("top_p"), 1.0),
        "max_output_tokens": fields.raw("max_output_tokens"),
        "truncation": _or(fields.raw("truncation"), "disabled"),
        "tools": _or(fields.raw("tools"), []),
        "tool_choice": _or(fields.raw("tool_choice"), "auto"),
        "parallel_tool_calls": fields.flag("parallel_tool_calls", default=True),
        "store": fields.flag("store", default=True),
        "metadata": dict(fields.metadata()),
        "text": _text(fields),
        "reasoning": {"effort": None, "summary": None},
    }
    fields.ignore(("reasoning",))
    for name in ECHOED:
        if fields.has(name):
            echo[name] = fields.raw(name)
    return echo


def _text(fields: Fields) -> dict[str, Json]:
    plain: dict[str, Json] = {"format": {"type": "text"}}
    return plain | fields.mapping("text") if fields.has("text") else plain


def _or(value: Json, default: Json) -> Json:
    return default if value is None else value


def _read_include(fields: Fields) -> None:
    wanted = fields.texts("include", most=32)
    if "message.output_text.logprobs" in wanted:
        raise unsupported("log probabilities of responses", param="include")
    if fields.integer("top_logprobs", low=0, high=20, default=0):
        raise unsupported("log probabilities of responses", param="top_logprobs")


def _read_stream_options(fields: Fields, *, streamed: bool) -> None:
    options = fields.object_or_none("stream_options")
    if options is None:
        return
    if not streamed:
        raise invalid("'stream_options' needs 'stream'.", param="stream_options")
    options.ignore(("include_obfuscation",))
    options.refuse_unknown()
