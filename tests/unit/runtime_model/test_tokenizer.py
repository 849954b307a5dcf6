"""Text becomes tokens and comes back unharmed, also piece by piece."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sojourn_runtime.model.tokenizer import ChatTemplateError, Detokenizer, Tokenizer
from sojourn_runtime.model.weights import Weights


@pytest.fixture(scope="module")
def tokenizer(weights: Weights) -> Tokenizer:
    return Tokenizer(weights)


def with_template(weights: Weights, template: str) -> Tokenizer:
    data = dataclasses.replace(weights.tokenizer, chat_template=template)
    return Tokenizer(dataclasses.replace(weights, tokenizer=data))


@given(text=st.text())
def test_text_survives_encoding(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text.replace("<|im_end|>", "")


@given(text=st.text())
def test_pieces_join_to_the_whole(tokenizer: Tokenizer, text: str) -> None:
    pieces = Detokenizer(tokenizer)
    assert "".join(pieces.push(token) for token in tokenizer.encode(text)) + pieces.flush() == text


def test_a_character_comes_with_its_last_byte(tokenizer: Tokenizer) -> None:
    pieces = Detokenizer(tokenizer)
    assert [pieces.push(token) for token in tokenizer.encode("é😀")] == ["", "é", "", "", "", "😀"]


def test_broken_bytes_do_not_hold_text_back_for_ever(tokenizer: Tokenizer) -> None:
    pieces = Detokenizer(tokenizer)
    (first, *_) = tokenizer.encode("é")
    assert "\N{REPLACEMENT CHARACTER}" in "".join(pieces.push(first) for _ in range(8))


def test_an_unfinished_character_is_flushed(tokenizer: Tokenizer) -> None:
    pieces = Detokenizer(tokenizer)
    assert pieces.push(tokenizer.encode("é")[0]) == ""
    assert pieces.flush() == "\N{REPLACEMENT CHARACTER}"


def test_specials_are_one_token_and_no_text(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("he<|im_end|>")
    assert tokens == [258, 257]
    assert tokenizer.decode(tokens) == "he"
    assert tokenizer.token(257) == "<|im_end|>"
    assert tokenizer.eos_ids == {257}


def test_a_chat_follows_the_template(tokenizer: Tokenizer) -> None:
    messages = [{"role": "user", "content": "hell"}]
    text = "<|im_start|>user\nhell<|im_end|>\n"
    assert tokenizer.render_chat(messages, generate=False) == text
    assert tokenizer.render_chat(messages) == text + "<|im_start|>assistant\n"
    assert tokenizer.encode_chat(messages)[0] == 256


def test_a_template_that_refuses_says_why(weights: Weights) -> None:
    tokenizer = with_template(weights, "{{ raise_exception('no system role') }}")
    with pytest.raises(ChatTemplateError, match="no system role"):
        tokenizer.render_chat([])


def test_a_template_that_breaks_is_an_error_of_the_request(weights: Weights) -> None:
    tokenizer = with_template(weights, "{{ messages[0]['content'] + 1 }}")
    with pytest.raises(ChatTemplateError, match="refuses"):
        tokenizer.render_chat([{"role": "user", "content": "x"}])


def test_a_template_cannot_reach_python(weights: Weights) -> None:
    tokenizer = with_template(weights, "{{ messages.__class__.__mro__ }}")
    with pytest.raises(ChatTemplateError):
        tokenizer.render_chat([])


def test_a_model_without_template_says_so(weights: Weights) -> None:
    with pytest.raises(ChatTemplateError, match="no chat template"):
        with_template(weights, "").render_chat([])


def test_tools_and_extra_words_reach_the_template(weights: Weights) -> None:
    tokenizer = with_template(weights, "{{ tools | tojson }} {{ mood }} {{ eos_token }}")
    rendered = tokenizer.render_chat([], tools=[{"name": "<é>"}], mood="good")
    assert rendered == '[{"name": "<é>"}] good <|im_end|>'
