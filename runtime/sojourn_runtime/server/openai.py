"""The stateless endpoints: models, chat completions, completions.

Each reads a body into requests of the session (`params`, `messages`), reads their events (`calls`)
and answers in OpenAI's form (`chunks`). What remembers earlier turns is in `responses`.
"""

import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from sojourn_runtime.engine.request import Request, SamplingParams
from sojourn_runtime.server import chunks
from sojourn_runtime.server.calls import Call, Submission, closed_error
from sojourn_runtime.server.errors import Json, invalid, not_found, unsupported
from sojourn_runtime.server.fields import Fields, parse_object
from sojourn_runtime.server.messages import read_chat_messages, read_tools
from sojourn_runtime.server.metrics import Metrics
from sojourn_runtime.server.params import (
    MOST_CHOICES,
    MOST_LOGPROBS,
    WITHOUT_EFFECT,
    fit,
    read_priority,
    read_sampling,
    read_text_format,
    token_ids,
)
from sojourn_runtime.server.port import Session
from sojourn_runtime.server.stream import DONE, PAUSED, EventStream, encode_event
from sojourn_runtime.stream import StreamClosed, TokenEvent

COMPLETION_TOKENS: Final = 16
"""OpenAI's default of `max_tokens` for the old endpoint; chat goes on as long as the context
allows.
"""
MOST_PROMPTS: Final = 256


def new_id(prefix: str) -> str:
    """An id that nobody can guess."""
    return f"{prefix}_{secrets.token_hex(16)}"


def check_model(fields: Fields, session: Session) -> None:
    """A session has one model; another name is 404, as OpenAI answers."""
    name = fields.text("model")
    if name != session.model_name:
        raise not_found("model", name, param="model", code="model_not_found")


@dataclass(frozen=True, slots=True)
class Plan:
    """A body that was read: what to submit and how to answer."""

    head: chunks.Head
    submissions: Sequence[Submission]
    streamed: bool
    echoes: Sequence[str] = ("",)
    """Per prompt, the text to begin with."""

    @property
    def param(self) -> str:
        return "messages" if self.head.chat else "prompt"

    @property
    def params(self) -> SamplingParams:
        return self.submissions[0].request.params


class OpenAi:
    """The handlers; one object per server."""

    def __init__(self, session: Session, metrics: Metrics) -> None:
        self._session = session
        self._metrics = metrics

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/models", self.models),
            web.get("/v1/models/{model:.+}", self.model),
            web.post("/v1/chat/completions", self.chat_completions),
            web.post("/v1/completions", self.completions),
        ]

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [self._model()]})

    async def model(self, request: web.Request) -> web.Response:
        name = request.match_info["model"]
        if name != self._session.model_name:
            raise not_found("model", name, param="model", code="model_not_found")
        return web.json_response(self._model())

    def _model(self) -> dict[str, Json]:
        return {
            "id": self._session.model_name,
            "object": "model",
            "created": self._session.created,
            "owned_by": "sojourn",
            # vLLM's field, which benchmarks and clients read to learn the context's size
            "max_model_len": self._session.context_length,
        }

    async def chat_completions(self, request: web.Request) -> web.StreamResponse:
        fields = Fields(parse_object(await request.read()))
        return await self._answer(request, self._read_chat(fields))

    async def completions(self, request: web.Request) -> web.StreamResponse:
        fields = Fields(parse_object(await request.read()))
        return await self._answer(request, self._read_completion(fields))

    # -- reading --

    def _read_chat(self, fields: Fields) -> Plan:
        session = self._session
        check_model(fields, session)
        _refuse_absent(fields)
        messages = read_chat_messages(fields)
        tools = read_tools(fields, nested=True)
        if tools and not session.tokenizer.knows_tools:
            raise unsupported("tools for this model: its chat template has none", param="tools")
        read_text_format(fields, "response_format")
        bound = "max_completion_tokens" if fields.has("max_completion_tokens") else "max_tokens"
        wanted = fields.integer_or_none(bound, low=1)
        fields.ignore(("max_tokens", "max_completion_tokens"))
        logprobs = _chat_logprobs(fields)
        try:
            prompt = tuple(session.tokenizer.encode_chat(messages, tools=tools))
        except ValueError as error:
            message = f"The model's chat template refuses these messages: {error}."
            raise invalid(message, param="messages") from error
        limit = session.context_length
        room = fit(prompt=len(prompt), wanted=wanted, limit=limit, param="messages", bound=bound)
        params = read_sampling(
            fields,
            max_tokens=room,
            vocabulary=session.tokenizer.vocab_size,
            logprobs=logprobs,
        )
        fields.ignore({"parallel_tool_calls", "reasoning_effort"})
        head = _read_head(fields, prefix="chatcmpl", chat=True)
        choices = fields.integer("n", low=1, high=MOST_CHOICES, default=1)
        request = Request(id=head.id, prompt=prompt, params=params, priority=read_priority(fields))
        streamed = fields.flag("stream", default=False)
        fields.ignore(WITHOUT_EFFECT)
        fields.refuse_unknown()
        return Plan(head=head, submissions=[Submission(request, choices)], streamed=streamed)

    def _read_completion(self, fields: Fields) -> Plan:
        session = self._session
        check_model(fields, session)
        if fields.text_or_none("suffix"):
            raise unsupported("infilling", param="suffix")
        prompts = self._read_prompts(fields)
        echo = fields.flag("echo", default=False)
        logprobs = fields.integer_or_none("logprobs", low=0, high=MOST_LOGPROBS)
        if echo and logprobs is not None:
            raise unsupported("log probabilities of the prompt", param="echo")
        wanted = fields.integer("max_tokens", low=1, default=COMPLETION_TOKENS)
        vocabulary = session.tokenizer.vocab_size
        sampling = read_sampling(
            fields, max_tokens=wanted, vocabulary=vocabulary, logprobs=logprobs
        )
        choices = fields.integer("n", low=1, high=MOST_CHOICES, default=1)
        if fields.integer("best_of", low=1, high=MOST_CHOICES, default=choices) != choices:
            raise unsupported("choosing the best of several answers", param="best_of")
        head = _read_head(fields, prefix="cmpl", chat=False)
        priority = read_priority(fields)
        submissions: list[Submission] = []
        for index, prompt in enumerate(prompts):
            fit(
                prompt=len(prompt),
                wanted=wanted,
                limit=session.context_length,
                param="prompt",
                bound="max_tokens",
            )
            name = head.id if len(prompts) == 1 else f"{head.id}-{index}"
            request = Request(id=name, prompt=prompt, params=sampling, priority=priority)
            submissions.append(Submission(request, choices))
        streamed = fields.flag("stream", default=False)
        fields.ignore(WITHOUT_EFFECT)
        fields.refuse_unknown()
        echoes = [session.tokenizer.decode(prompt) if echo else "" for prompt in prompts]
        return Plan(head=head, submissions=submissions, streamed=streamed, echoes=echoes)

    def _read_prompts(self, fields: Fields) -> list[tuple[int, ...]]:
        value = fields.required("prompt")
        if not isinstance(value, list) or (value and isinstance(value[0], int)):
            return [self._read_prompt(fields, "prompt", value)]
        if not 1 <= len(value) <= MOST_PROMPTS:
            message = f"'prompt' must hold 1 to {MOST_PROMPTS} prompts."
            raise invalid(message, param="prompt")
        return [
            self._read_prompt(fields, f"prompt[{index}]", entry)
            for index, entry in enumerate(value)
        ]

    def _read_prompt(self, fields: Fields, name: str, value: Json) -> tuple[int, ...]:
        tokenizer = self._session.tokenizer
        if isinstance(value, str):
            prompt = tuple(tokenizer.encode(fields.checked_text(name, value)))
        elif isinstance(value, list):
            prompt = token_ids(value, path=name, vocabulary=tokenizer.vocab_size)
        else:
            fields.wrong(name, "a string or an array of token ids", value)
        if not prompt:
            raise invalid(f"'{name}' must not be empty.", param=name)
        return prompt

    # -- answering --

    async def _answer(self, request: web.Request, plan: Plan) -> web.StreamResponse:
        with Call(self._session, self._metrics) as call:
            for submission in plan.submissions:
                call.submit(submission, whole=not plan.streamed, param=plan.param)
            if plan.streamed:
                return await self._stream(request, plan, call)
            return await self._whole(plan, call)

    async def _whole(self, plan: Plan, call: Call) -> web.Response:
        try:
            async with aclosing(call.batches()) as batches:
                async for _ in batches:
                    pass
        except StreamClosed as closed:
            raise closed_error(closed) from closed
        call.count()
        choices = [
            self._whole_choice(plan, index, stream.events)
            for index, stream in enumerate(call.streams)
        ]
        return web.json_response(plan.head.whole(choices, usage=call.usage()))

    def _whole_choice(self, plan: Plan, index: int, events: Sequence[TokenEvent]) -> Json:
        if plan.head.chat:
            return chunks.chat_whole(index, events, spell=self._spell)
        echo = plan.echoes[index // plan.submissions[0].choices]
        chosen = plan.params.logprobs or 0
        return chunks.completion_whole(index, events, echo=echo, spell=self._spell, chosen=chosen)

    async def _stream(self, request: web.Request, plan: Plan, call: Call) -> web.StreamResponse:
        stream = EventStream(request)
        try:
            async with aclosing(self._frames(plan, call)) as frames:
                async for frame in frames:
                    await stream.send(frame)
        except StreamClosed as closed:
            if str(closed) == "Pausing":
                await stream.comment(PAUSED)
            else:
                await stream.send([encode_event(closed_error(closed).body())])
        await stream.close()
        return stream.response

    async def _frames(self, plan: Plan, call: Call) -> AsyncGenerator[list[bytes]]:
        """What to write after each batch; a comment after a silence."""
        head = plan.head
        write = _Writer(plan, spell=self._spell)
        async with aclosing(call.batches()) as batches:
            async for batch in batches:
                if not batch:
                    yield [b": keep-alive\n\n"]
                yield [
                    encode_event(head.chunk([choice]))
                    for index, event in batch
                    for choice in write.token(index, event)
                ]
        call.count()
        tail: list[bytes] = []
        if head.usage_follows:
            tail.append(encode_event(head.chunk([], usage=call.usage())))
        yield [*tail, DONE]

    def _spell(self, token: int) -> str:
        return self._session.tokenizer.token(token)


class _Writer:
    """The choices of a stream's chunks, token by token."""

    def __init__(self, plan: Plan, *, spell: chunks.Spell) -> None:
        self._chat = plan.head.chat
        self._spell = spell
        self._chosen = plan.params.logprobs or 0
        per_prompt = plan.submissions[0].choices
        self._echoes = [echo for echo in plan.echoes for _ in range(per_prompt)]
        self._offsets = [len(echo) for echo in self._echoes]

    def opening(self, index: int) -> list[Json]:
        """What comes with the first token; not before it, or clients would time the wrong thing."""
        if self._chat:
            return [chunks.chat_opening(index)]
        echo = self._echoes[index]
        if not echo:
            return []
        return [{"index": index, "text": echo, "logprobs": None, "finish_reason": None}]

    def token(self, index: int, event: TokenEvent) -> list[Json]:
        made = self.opening(index) if event.position == 0 else []
        if self._chat:
            made.append(chunks.chat_choice(index, event, spell=self._spell))
            if event.finish:
                made.append(chunks.chat_closing(index, event.finish))
            return made
        offset = self._offsets[index]
        self._offsets[index] += len(event.text)
        made.append(
            chunks.completion_choice(
                index, event, offset=offset, spell=self._spell, chosen=self._chosen
            )
        )
        return made


def _read_head(fields: Fields, *, prefix: str, chat: bool) -> chunks.Head:
    usage_follows = False
    options = fields.object_or_none("stream_options")
    if options is not None:
        usage_follows = options.flag("include_usage", default=False)
        # padding against eavesdroppers who measure chunks: not there, and nothing in the answer
        # depends on it
        options.ignore(("include_obfuscation", "continuous_usage_stats"))
        options.refuse_unknown()
        if not fields.flag("stream", default=False):
            raise invalid("'stream_options' needs 'stream'.", param="stream_options")
    return chunks.Head(
        id=f"{prefix}-{secrets.token_hex(12)}",
        created=int(time.time()),
        model=fields.text("model"),
        chat=chat,
        usage_follows=usage_follows,
    )


def _chat_logprobs(fields: Fields) -> int | None:
    wanted = fields.flag("logprobs", default=False)
    top = fields.integer_or_none("top_logprobs", low=0, high=MOST_LOGPROBS)
    if top is not None and not wanted:
        raise invalid("'top_logprobs' needs 'logprobs': true.", param="top_logprobs")
    return (top or 0) if wanted else None


def _refuse_absent(fields: Fields) -> None:
    """What would change the answer and is not there."""
    modalities = fields.texts("modalities", most=8)
    if set(modalities) - {"text"}:
        raise unsupported("output other than text", param="modalities")
    for name in ("audio", "functions", "function_call", "prediction", "web_search_options"):
        if fields.raw(name) is not None:
            raise unsupported(f"'{name}'", param=name)
