"""The bodies of chat completions and completions, read into what to submit and how to answer.

Pure but for the tokenizer. How an answer looks is in `chunks`.
"""

import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sojourn_runtime.engine.request import Request
from sojourn_runtime.server.calls import Submission
from sojourn_runtime.server.chunks import Form
from sojourn_runtime.server.errors import Json, invalid, not_found, unsupported
from sojourn_runtime.server.fields import Fields
from sojourn_runtime.server.messages import read_chat_messages, read_tools
from sojourn_runtime.server.meta import meta_text
from sojourn_runtime.server.params import (
    MOST_CHOICES,
    MOST_LOGPROBS,
    WITHOUT_EFFECT,
    fit,
    read_form,
    read_priority,
    read_sampling,
    the_one,
    token_ids,
)
from sojourn_runtime.server.port import Session

COMPLETION_TOKENS: Final = 16
"""OpenAI's default of `max_tokens` for the old endpoint; chat goes on while the context lasts."""
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

    form: Form
    submissions: Sequence[Submission]
    streamed: bool

    @property
    def param(self) -> str:
        """The field to blame for what is wrong with the prompt."""
        return "messages" if self.form.chat else "prompt"


def read_chat(session: Session, fields: Fields) -> Plan:
    """The body of a chat completion."""
    check_model(fields, session)
    _refuse_absent(fields)
    messages = read_chat_messages(fields)
    tools = read_tools(fields, nested=True)
    if tools.shown and not session.tokenizer.knows_tools:
        raise unsupported("tools for this model: its chat template has none", param="tools")
    grammar = the_one(read_form(fields, "response_format", nested=True), tools.grammar)
    bound = "max_completion_tokens" if fields.has("max_completion_tokens") else "max_tokens"
    wanted = fields.integer_or_none(bound, low=1)
    fields.ignore(("max_tokens", "max_completion_tokens"))
    logprobs = _chat_logprobs(fields)
    try:
        prompt = tuple(session.tokenizer.encode_chat(messages, tools=tools.shown))
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
        grammar=grammar,
    )
    fields.ignore({"reasoning_effort"})
    form = Form(
        id=f"chatcmpl-{secrets.token_hex(12)}",
        created=int(time.time()),
        model=session.model_name,
        chat=True,
        choices=fields.integer("n", low=1, high=MOST_CHOICES, default=1),
        likely=logprobs or 0,
        tools=bool(tools.shown),
        usage_follows=_usage_follows(fields),
    )
    streamed = fields.flag("stream", default=False)
    request = Request(
        id=form.id,
        prompt=prompt,
        params=params,
        priority=read_priority(fields),
        meta=meta_text(form if streamed else None),
    )
    fields.ignore(WITHOUT_EFFECT)
    fields.refuse_unknown()
    return Plan(form=form, submissions=[Submission(request, form.choices)], streamed=streamed)


def read_completion(session: Session, fields: Fields) -> Plan:
    """The body of a completion."""
    check_model(fields, session)
    if fields.text_or_none("suffix"):
        raise unsupported("infilling", param="suffix")
    prompts = _read_prompts(session, fields)
    echo = fields.flag("echo", default=False)
    logprobs = fields.integer_or_none("logprobs", low=0, high=MOST_LOGPROBS)
    if echo and logprobs is not None:
        raise unsupported("log probabilities of the prompt", param="echo")
    wanted = fields.integer("max_tokens", low=1, default=COMPLETION_TOKENS)
    vocabulary = session.tokenizer.vocab_size
    sampling = read_sampling(fields, max_tokens=wanted, vocabulary=vocabulary, logprobs=logprobs)
    choices = fields.integer("n", low=1, high=MOST_CHOICES, default=1)
    if fields.integer("best_of", low=1, high=MOST_CHOICES, default=choices) != choices:
        raise unsupported("choosing the best of several answers", param="best_of")
    form = Form(
        id=f"cmpl-{secrets.token_hex(12)}",
        created=int(time.time()),
        model=session.model_name,
        chat=False,
        choices=choices,
        echoes=tuple(session.tokenizer.decode(prompt) if echo else "" for prompt in prompts),
        likely=logprobs or 0,
        usage_follows=_usage_follows(fields),
    )
    priority = read_priority(fields)
    streamed = fields.flag("stream", default=False)
    fields.ignore(WITHOUT_EFFECT)
    fields.refuse_unknown()
    submissions: list[Submission] = []
    for index, prompt in enumerate(prompts):
        fit(
            prompt=len(prompt),
            wanted=wanted,
            limit=session.context_length,
            param="prompt",
            bound="max_tokens",
        )
        request = Request(
            id=form.id if len(prompts) == 1 else f"{form.id}-{index}",
            prompt=prompt,
            params=sampling,
            priority=priority,
            meta=meta_text(form if streamed else None),
        )
        submissions.append(Submission(request, choices))
    return Plan(form=form, submissions=submissions, streamed=streamed)


def _read_prompts(session: Session, fields: Fields) -> list[tuple[int, ...]]:
    value = fields.required("prompt")
    if not isinstance(value, list) or (value and isinstance(value[0], int)):
        return [_read_prompt(session, fields, "prompt", value)]
    if not 1 <= len(value) <= MOST_PROMPTS:
        message = f"'prompt' must hold 1 to {MOST_PROMPTS} prompts."
        raise invalid(message, param="prompt")
    return [
        _read_prompt(session, fields, f"prompt[{index}]", entry)
        for index, entry in enumerate(value)
    ]


def _read_prompt(session: Session, fields: Fields, name: str, value: Json) -> tuple[int, ...]:
    tokenizer = session.tokenizer
    if isinstance(value, str):
        prompt = tuple(tokenizer.encode(fields.checked_text(name, value)))
    elif isinstance(value, list):
        prompt = token_ids(value, path=name, vocabulary=tokenizer.vocab_size)
    else:
        fields.wrong(name, "a string or an array of token ids", value)
    if not prompt:
        raise invalid(f"'{name}' must not be empty.", param=name)
    return prompt


def _usage_follows(fields: Fields) -> bool:
    options = fields.object_or_none("stream_options")
    if options is None:
        return False
    # obfuscation pads chunks against eavesdroppers who measure them: no answer depends on it
    options.ignore(("include_obfuscation", "continuous_usage_stats"))
    follows = options.flag("include_usage", default=False)
    options.refuse_unknown()
    if not fields.flag("stream", default=False):
        raise invalid("'stream_options' needs 'stream'.", param="stream_options")
    return follows


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
