"""Text to token ids and back, and messages to a prompt.

The vocabulary comes from the converted weights; Jinja is imported when the first chat is rendered.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from typing import Any, NoReturn

from tokenizers import Tokenizer as Vocabulary

from sojourn_runtime.model.weights import Weights

Message = Mapping[str, Any]
_BROKEN = "\N{REPLACEMENT CHARACTER}"


class ChatTemplateError(ValueError):
    """The model has no chat template, or its template refuses these messages; the text is for
    the client.
    """


class Tokenizer:
    """The vocabulary and the chat template of one model."""

    def __init__(self, weights: Weights) -> None:
        self._vocabulary = Vocabulary.from_str(weights.tokenizer.tokenizer_json)
        self._vocabulary.no_truncation()
        self._vocabulary.no_padding()
        self._template = weights.tokenizer.chat_template
        self._bos_id = weights.config.bos_id
        self.eos_ids = frozenset(weights.config.eos_ids)

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """`special`: add what the model wants around a bare text, such as its begin token."""
        return list(self._vocabulary.encode(text, add_special_tokens=special).ids)

    def decode(self, tokens: Sequence[int], *, skip_special: bool = True) -> str:
        return str(self._vocabulary.decode(list(tokens), skip_special_tokens=skip_special))

    def token(self, token_id: int) -> str:
        """The text of one token alone, specials included."""
        return self.decode([token_id], skip_special=False)

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        generate: bool = True,
        **extra: Any,
    ) -> str:
        """The prompt of a conversation; `generate` opens the assistant's turn."""
        from jinja2 import TemplateError  # noqa: PLC0415 - completions never need it

        try:
            return self._render(
                messages=list(messages),
                tools=list(tools) if tools else None,
                add_generation_prompt=generate,
                bos_token=self._special(self._bos_id),
                eos_token=self._special(min(self.eos_ids, default=None)),
                **extra,
            )
        except (TemplateError, TypeError, KeyError) as error:
            raise ChatTemplateError(f"the chat template refuses these messages: {error}") from error

    def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        generate: bool = True,
        **extra: Any,
    ) -> list[int]:
        """Token ids of a conversation; the template writes the special tokens itself."""
        text = self.render_chat(messages, tools=tools, generate=generate, **extra)
        return self.encode(text, special=False)

    @cached_property
    def _render(self) -> Callable[..., str]:
        from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415

        if not self._template:
            raise ChatTemplateError("the model has no chat template; use /v1/completions")
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: (
            datetime.now().astimezone().strftime(form)
        )
        return environment.from_string(self._template).render

    def _special(self, token_id: int | None) -> str:
        return "" if token_id is None else str(self._vocabulary.id_to_token(token_id) or "")


class Detokenizer:
    """Text of a growing token list, piece by piece; a character split over tokens comes with
    its last one.

    Decoding starts a few tokens back, since a tokenizer may write a token differently at the
    beginning.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._context = 0
        self._done = 0

    def push(self, token: int) -> str:
        """The text that this token completes, possibly empty."""
        self._tokens.append(token)
        before = self._tokenizer.decode(self._tokens[self._context : self._done])
        after = self._tokenizer.decode(self._tokens[self._context :])
        if after.endswith(_BROKEN) and len(self._tokens) - self._done < 4:
            # UTF-8 has at most four bytes: a longer run is broken text, no unfinished character.
            return ""
        self._context, self._done = self._done, len(self._tokens)
        return after[len(before) :]

    def flush(self) -> str:
        """What an unfinished character leaves at the end."""
        before = self._tokenizer.decode(self._tokens[self._context : self._done])
        after = self._tokenizer.decode(self._tokens[self._context :])
        self._context, self._done = self._done, len(self._tokens)
        return after[len(before) :]


def _to_json(value: Any, indent: int | None = None) -> str:
    """Jinja's own filter escapes for HTML, which models have not seen."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _refuse(message: str) -> NoReturn:
    raise ChatTemplateError(message)
