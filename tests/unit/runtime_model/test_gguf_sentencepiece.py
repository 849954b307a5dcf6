"""A sentencepiece vocabulary in a GGUF header cuts texts as sentencepiece does: the neighbours
whose union has the best score are joined, until none are left.
"""

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sojourn_runtime.model.errors import UnsupportedModel
from sojourn_runtime.model.gguf_tokenizer import build
from tokenizers import Tokenizer

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
JOINED = [SPACE + "t", "he", SPACE + "the", "in", "an", "ing", SPACE + "an", "hin", SPACE * 2]
LETTERS = [SPACE, *"theinagd"]
TOKENS = ["<unk>", "<s>", "</s>", *BYTES, *JOINED, *LETTERS, "<|user|>"]
SCORES = {token: -float(rank) for rank, token in enumerate(JOINED)}
META: dict[str, Any] = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.scores": [SCORES.get(token, -1000.0) for token in TOKENS],
    "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * (len(TOKENS) - 260), 4],
    "tokenizer.ggml.bos_token_id": 1,
}


def vocabulary(**changes: Any) -> Tokenizer:
    meta = META | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return Tokenizer.from_str(build(Path("m.gguf"), meta).tokenizer_json)


def by_definition(text: str) -> list[str]:
    pieces = list(SPACE + text.replace(" ", SPACE))
    while True:
        joined = [left + right for left, right in itertools.pairwise(pieces)]
        known = [(SCORES[union], -at) for at, union in enumerate(joined) if union in SCORES]
        if not known:
            break
        at = -max(known)[1]
        pieces[at : at + 2] = [joined[at]]
    spelled = ([p] if p in TOKENS else [f"<0x{byte:02X}>" for byte in p.encode()] for p in pieces)
    return [token for piece in spelled for token in piece]


@given(text=st.text(st.sampled_from("theinagd é\N{ROCKET}\n"), min_size=1, max_size=40))
def test_texts_are_cut_as_sentencepiece_does(text: str) -> None:
    encoded = vocabulary().encode(text)
    assert encoded.tokens == ["<s>", *by_definition(text)]
    assert vocabulary().decode(encoded.ids) == text


def test_marked_tokens_are_found_before_the_text_is_cut() -> None:
    assert vocabulary().encode("<|user|>the</s>").tokens == [
        "<s>",
        "<|user|>",
        SPACE + "the",
        "</s>",
    ]


def test_the_header_says_what_stands_before_a_text() -> None:
    assert vocabulary(add_bos_token=False).encode("the").tokens == [SPACE + "the"]
    assert vocabulary(add_space_prefix=False).encode("the").tokens == ["<s>", "t", "he"]


def test_other_vocabularies_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedModel, match="tokenizer 't5' is not supported"):
        build(Path("m.gguf"), META | {"tokenizer.ggml.model": "t5"})
