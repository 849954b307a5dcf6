"""A structured output follows its schema to the letter, and a grammar is rebuilt from tokens."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sojourn_runtime.grammar import (
    GrammarError,
    Grammars,
    Matcher,
    grammar_of_calls,
    grammar_of_schema,
)
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
EOS = len(BYTES)
PRINTED = st.characters(exclude_categories=("Cc", "Cs"))
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """One token per byte, and one that ends the text."""
    made = Tokenizer(models.BPE({char: at for at, char in enumerate(BYTES)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<end>"])
    return made


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> Grammars:
    return Grammars(tokenizer.to_str(), vocabulary=EOS + 1, eos=[EOS])


def follow(matcher: Matcher, tokens: list[int]) -> list[bool]:
    """Whether each token was allowed when its turn came."""
    found = []
    for token in tokens:
        found.append(bool(matcher.allowed()[token]))
        matcher.push(token)
    return found


@given(name=st.text(PRINTED, max_size=8), age=st.integers(-999, 999))
def test_every_text_of_the_schema_is_allowed(
    grammars: Grammars, tokenizer: Tokenizer, *, name: str, age: int
) -> None:
    text = json.dumps({"name": name, "age": age}, ensure_ascii=False)
    matcher = grammars(grammar_of_schema(SCHEMA))
    tokens = tokenizer.encode(text, add_special_tokens=False).ids
    assert all(follow(matcher, tokens))
    assert list(matcher.allowed().nonzero()[0]) == [EOS]


@pytest.mark.parametrize(
    "text", ["[", "{'", '{"age"', '{"name": 3', '{"name": "a", "age": "', '{"name": "a"}', "\n"]
)
def test_no_other_text_is_allowed(grammars: Grammars, tokenizer: Tokenizer, text: str) -> None:
    matcher = grammars(grammar_of_schema(SCHEMA))
    tokens = tokenizer.encode(text, add_special_tokens=False).ids
    assert not all(follow(matcher, tokens))


def test_the_end_is_allowed_at_the_end_only(grammars: Grammars) -> None:
    assert not grammars(grammar_of_schema(SCHEMA)).allowed()[EOS]


def test_the_state_is_a_function_of_the_tokens(grammars: Grammars, tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode('{"name": "Grüße', add_special_tokens=False).ids
    lived, rebuilt = (grammars(grammar_of_schema(SCHEMA)) for _ in range(2))
    follow(lived, tokens)
    for token in tokens:
        rebuilt.push(token)
    assert (lived.allowed() == rebuilt.allowed()).all()


CALL = '<tool_call>\n{"name": "look", "arguments": {"name": "a", "age": 3}}\n</tool_call>'
OTHER = '<tool_call>\n{"name": "go", "arguments": {}}\n</tool_call>'


@pytest.mark.parametrize(
    ("one", "text", "allowed"),
    [
        (True, CALL, True),
        (True, OTHER, True),
        (True, f"{CALL}\n{OTHER}", False),
        (False, f"{CALL}\n{OTHER}", True),
        (False, "Hello", False),
        (False, CALL.replace("look", "go"), False),
        (False, CALL.replace("look", "fly"), False),
    ],
)
def test_calls_have_their_marks_names_and_arguments(
    grammars: Grammars, tokenizer: Tokenizer, *, one: bool, text: str, allowed: bool
) -> None:
    nothing = {"type": "object", "additionalProperties": False}
    grammar = grammar_of_calls({"look": SCHEMA, "go": nothing}, one=one)
    grammars.check(grammar)
    matcher = grammars(grammar)
    tokens = tokenizer.encode(text, add_special_tokens=False).ids
    assert all(follow(matcher, tokens)) is allowed
    if allowed:
        assert matcher.allowed()[EOS]


@pytest.mark.parametrize("schema", [{"type": "strange"}, {"pattern": "(?=x)", "type": "string"}])
def test_what_cannot_be_followed_is_refused(grammars: Grammars, schema: dict[str, Any]) -> None:
    with pytest.raises(GrammarError):
        grammars.check(grammar_of_schema(schema))


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"schema": 3}'])
def test_what_is_no_grammar_is_refused(grammars: Grammars, text: str) -> None:
    with pytest.raises(GrammarError):
        grammars.check(text)


def test_a_broken_grammar_ends_the_text_rather_than_the_engine(grammars: Grammars) -> None:
    matcher = grammars(grammar_of_schema({"type": "strange"}))
    matcher.push(3)
    assert list(matcher.allowed().nonzero()[0]) == [EOS]
