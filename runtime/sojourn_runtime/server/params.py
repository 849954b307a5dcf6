"""Sampling parameters as the three endpoints share them, read into the engine's values.

Pure. Fields that OpenAI knows and that change nothing here are accepted; those that would change
the answer and are not there are refused by name.
"""

from typing import Final

from sojourn_runtime.engine.request import SamplingParams
from sojourn_runtime.grammar import grammar_of_schema
from sojourn_runtime.server.errors import context_exceeded, invalid
from sojourn_runtime.server.fields import Fields

WITHOUT_EFFECT: Final = frozenset(
    {
        "metadata",
        "moderation",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
        "verbosity",
    }
)
"""Book-keeping of OpenAI's own service: clients send it by habit, and no answer depends on it."""

MOST_STOPS: Final = 16
"""OpenAI says 4, vLLM has no bound; each costs a search per token."""
MOST_CHOICES: Final = 128
MOST_LOGPROBS: Final = 20
SEED_LIMIT: Final = 2**63


def read_sampling(
    fields: Fields,
    *,
    max_tokens: int,
    vocabulary: int,
    logprobs: int | None = None,
    grammar: str = "",
) -> SamplingParams:
    """Everything that chooses tokens, for choice 0."""
    seed = fields.integer_or_none("seed", low=-SEED_LIMIT, high=SEED_LIMIT - 1)
    return SamplingParams(
        max_tokens=max_tokens,
        temperature=fields.number("temperature", low=0, high=2, default=1.0),
        top_p=_top_p(fields),
        top_k=max(0, fields.integer("top_k", low=-1, default=0)),
        min_p=fields.number("min_p", low=0, high=1, default=0.0),
        # the generator's key is unsigned
        seed=None if seed is None else seed % SEED_LIMIT,
        presence_penalty=fields.number("presence_penalty", low=-2, high=2, default=0.0),
        frequency_penalty=fields.number("frequency_penalty", low=-2, high=2, default=0.0),
        repetition_penalty=_repetition_penalty(fields),
        logit_bias=_logit_bias(fields, vocabulary=vocabulary),
        logprobs=logprobs,
        stop=_stops(fields),
        stop_tokens=_stop_tokens(fields, vocabulary=vocabulary),
        ignore_eos=fields.flag("ignore_eos", default=False),
        grammar=grammar,
    )


def read_priority(fields: Fields) -> int:
    """The field as vLLM has it: 0 is the tier's own, larger is less important."""
    return fields.integer("priority", low=-(2**31), high=2**31 - 1, default=0)


def fit(
    *, prompt: int, wanted: int | None, limit: int, param: str, bound: str, clip: bool = False
) -> int:
    """How many tokens may be made after a prompt; `wanted` None asks for as many as fit.

    `clip`: `wanted` is an upper bound rather than a demand.
    """
    room = limit - prompt
    if room < 1:
        raise context_exceeded(prompt=prompt, wanted=0, limit=limit, param=param)
    if wanted is None:
        return room
    if wanted > room and not clip:
        raise context_exceeded(prompt=prompt, wanted=wanted, limit=limit, param=bound)
    return min(wanted, room)


def the_one(form: str, calls: str) -> str:
    """The grammar of a request, which cannot follow two."""
    if form and calls:
        raise invalid(
            "'tool_choice' and a form of the text exclude each other.", param="tool_choice"
        )
    return form or calls


def read_form(fields: Fields, name: str, *, nested: bool) -> str:
    """The grammar of a structured output; empty for plain text. `nested` as chat spells it."""
    form = fields.object_or_none(name)
    if form is None:
        return ""
    kinds = ("text", "json_object", "json_schema")
    form.required("type")
    kind = form.choice("type", kinds, default="text")
    grammar = ""
    if kind == "json_object":
        grammar = grammar_of_schema({"type": "object"})
    elif kind == "json_schema":
        grammar = _schema(form.object("json_schema") if nested else form)
    form.refuse_unknown()
    return grammar


def _schema(fields: Fields) -> str:
    fields.text("name", longest=64)
    fields.text_or_none("description")
    # what strict asks for is done in any case: the schema is followed to the letter
    fields.flag("strict", default=False)
    fields.object("schema")
    return grammar_of_schema(fields.mapping("schema"))


def _top_p(fields: Fields) -> float:
    value = fields.number("top_p", low=0, high=1, default=1.0)
    if value == 0:
        # no token has probability 0 to start from: the likeliest alone, as others read it
        return 1e-9
    return value


def _repetition_penalty(fields: Fields) -> float:
    value = fields.number("repetition_penalty", low=0, high=10, default=1.0)
    if value == 0:
        param = "repetition_penalty"
        raise invalid(f"'{param}' must be larger than 0.", param=param)
    return value


def _stops(fields: Fields) -> tuple[str, ...]:
    stops = fields.texts("stop", most=MOST_STOPS)
    if any(not stop for stop in stops):
        raise invalid("'stop' may not hold an empty string.", param="stop")
    return stops


def _stop_tokens(fields: Fields, *, vocabulary: int) -> tuple[int, ...]:
    value = fields.raw("stop_token_ids")
    if value is None:
        return ()
    return token_ids(value, path="stop_token_ids", vocabulary=vocabulary)


def _logit_bias(fields: Fields, *, vocabulary: int) -> tuple[tuple[int, float], ...]:
    biases = fields.object_or_none("logit_bias")
    if biases is None:
        return ()
    pairs: list[tuple[int, float]] = []
    for name in biases.names():
        if not name.isascii() or not name.isdigit() or int(name[:10]) >= vocabulary:
            message = f"'logit_bias' names tokens by id, below {vocabulary}; got '{name[:32]}'."
            raise invalid(message, param="logit_bias")
        pairs.append((int(name), biases.number(name, low=-100, high=100, default=0.0)))
    return tuple(sorted(pairs))


def token_ids(value: object, *, path: str, vocabulary: int) -> tuple[int, ...]:
    """An array of token ids of this model."""
    if not isinstance(value, list):
        raise invalid(f"'{path}' must be an array of token ids.", param=path, code="invalid_type")
    for index, token in enumerate(value):
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocabulary:
            param = f"{path}[{index}]"
            message = f"'{param}' must be a token id between 0 and {vocabulary - 1}."
            raise invalid(message, param=param)
    return tuple(value)
