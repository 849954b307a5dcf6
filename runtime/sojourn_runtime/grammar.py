"""Which tokens may come next in a structured output.

A thin coat over llguidance, imported when the first such request comes: most sessions never see
one. The text of a grammar is ours (kept with the request and read again after a pause), the state
of one is rebuilt from the request's tokens and never saved.
"""

import json
import threading
from collections.abc import Collection, Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

SEPARATORS: Final[Any] = {
    # free white space lets small models write line breaks until their limit
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}


class GrammarError(ValueError):
    """The schema cannot be followed; the text is for the client."""


def grammar_of_schema(schema: Mapping[str, Any]) -> str:
    """The grammar of JSON texts that a schema allows, as requests hold it."""
    return json.dumps({"schema": schema}, separators=(",", ":"))


def grammar_of_calls(functions: Mapping[str, Mapping[str, Any]], *, one: bool) -> str:
    """The grammar of calls of functions (schema of the arguments by name): one, or several."""
    return json.dumps({"calls": dict(functions), "one": one}, separators=(",", ":"))


class Grammars:
    """Makes matchers for one vocabulary."""

    def __init__(self, tokenizer_json: str, *, vocabulary: int, eos: Collection[int]) -> None:
        self._tokenizer_json = tokenizer_json
        self._vocabulary = vocabulary
        self._eos = sorted(eos)
        self._lock = threading.Lock()
        self._tokens: Any = None

    def check(self, text: str) -> None:
        """GrammarError if the grammar cannot be followed. The first call takes a second."""
        from llguidance import LLMatcher  # noqa: PLC0415

        failed, messages = LLMatcher.validate_grammar_with_warnings(_compiled(text), self._known())
        if failed:
            raise GrammarError(" ".join(" ".join(messages).split()))

    def __call__(self, text: str) -> "Matcher":
        """The grammar at its beginning. A broken one ends the text at once."""
        from llguidance import LLMatcher  # noqa: PLC0415

        matcher = LLMatcher(self._known(), _compiled(text), log_level=0)
        return Matcher(matcher, vocabulary=self._vocabulary, eos=self._eos)

    def _known(self) -> Any:
        """The vocabulary as llguidance wants it; from whichever thread asks first."""
        from llguidance import LLTokenizer  # noqa: PLC0415

        with self._lock:
            if self._tokens is None:
                self._tokens = LLTokenizer(
                    self._tokenizer_json, n_vocab=self._vocabulary, eos_token=self._eos
                )
            return self._tokens


def _compiled(text: str) -> str:
    from llguidance import LLMatcher  # noqa: PLC0415

    try:
        value = json.loads(text)
        if "calls" in value:
            return str(LLMatcher.grammar_from_lark(_calls(value["calls"], one=value["one"])))
        return str(LLMatcher.grammar_from_json_schema(value["schema"], overrides=SEPARATORS))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise GrammarError(f"this is no schema: {error}") from error


def _calls(functions: Mapping[str, Any], *, one: bool) -> str:
    """Calls in the marks that models are trained on; the server tells them from text by these."""
    forms = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, "arguments": schema},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for name, schema in functions.items()
    ]
    schema = {"anyOf": forms, "x-guidance": SEPARATORS}
    more = "" if one else ' ("\\n" call)*'
    return f"""start: call{more}
call: "<tool_call>\\n" value "\\n</tool_call>"
value: %json {json.dumps(schema)}
"""


class Matcher:
    """One structured output as it grows."""

    def __init__(self, matcher: Any, *, vocabulary: int, eos: Collection[int]) -> None:
        self._matcher = matcher
        self._vocabulary = vocabulary
        self._eos = list(eos)

    def allowed(self) -> npt.NDArray[np.bool_]:
        """A mask over the vocabulary; at the end, and after an error, only the end is allowed."""
        if not self._matcher.is_error():
            bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
            mask = np.unpackbits(bits, bitorder="little")[: self._vocabulary].astype(np.bool_)
            if mask.any():
                return mask
        end = np.zeros(self._vocabulary, np.bool_)
        end[self._eos] = True
        return end

    def push(self, token: int, /) -> None:
        """The next token; one that the grammar does not allow puts it into error."""
        self._matcher.consume_token(token)
