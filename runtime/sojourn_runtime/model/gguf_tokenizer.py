"""Builds a `tokenizers` tokenizer from the vocabulary and merges of a GGUF header.

Byte-level BPE, where each pre-tokenizer that llama.cpp names has its own way to cut words; and
sentencepiece's BPE, which writes spaces as underlines and merges by scores.
"""

from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)

from sojourn_runtime.model.errors import UnsupportedModel
from sojourn_runtime.model.source import TokenizerData

_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
_SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def build(path: Path, meta: dict[str, Any]) -> TokenizerData:
    """The tokenizer and the chat template of a GGUF header."""
    model, cut = meta.get("tokenizer.ggml.model"), meta.get("tokenizer.ggml.pre", "default")
    if model not in {"gpt2", "llama"}:
        raise UnsupportedModel(
            f"{path}: tokenizer {model!r} is not supported; use a model with BPE, or safetensors "
            "with tokenizer.json"
        )
    try:
        tokenizer = _byte_level(path, meta, cut) if model == "gpt2" else _sentencepiece(meta)
        _add_marked(tokenizer, meta)
        if meta.get("tokenizer.ggml.add_bos_token", model == "llama"):
            _begin_with(tokenizer, meta["tokenizer.ggml.bos_token_id"])
    except KeyError as error:
        raise UnsupportedModel(
            f"{path}: the GGUF header lacks {error}; convert the model again"
        ) from error
    return TokenizerData(
        tokenizer_json=tokenizer.to_str(), chat_template=meta.get("tokenizer.chat_template", "")
    )


def _byte_level(path: Path, meta: dict[str, Any], cut: str) -> Tokenizer:
    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in meta["tokenizer.ggml.merges"]]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = _pre_tokenizer(path, cut)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(meta: dict[str, Any]) -> Tokenizer:
    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    scores = dict(zip(tokens, meta["tokenizer.ggml.scores"], strict=True))
    kinds = zip(tokens, meta["tokenizer.ggml.token_type"], strict=True)
    unknown = next((token for token, kind in kinds if kind == _UNKNOWN), None)
    vocabulary = {token: number for number, token in enumerate(tokens)}
    model = models.BPE(
        vocab=vocabulary,
        merges=_merges(scores, vocabulary),
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    begins = meta.get("tokenizer.ggml.add_space_prefix", True)
    prefix = [normalizers.Prepend(_SPACE)] if begins else []
    tokenizer.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", _SPACE)])
    strip = [decoders.Strip(" ", 1, 0)] if begins else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return tokenizer


def _merges(scores: dict[str, float], vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """Every way to make a token of two, those of the best score first."""
    ways = [
        (-score, vocabulary[token[:cut]], token[:cut], token[cut:])
        for token, score in scores.items()
        for cut in range(1, len(token))
        if token[:cut] in vocabulary and token[cut:] in vocabulary
    ]
    return [(left, right) for _, _, left, right in sorted(ways)]


def _add_marked(tokenizer: Tokenizer, meta: dict[str, Any]) -> None:
    """Tokens that are found in the text before it is cut, special or not."""
    tokens = meta["tokenizer.ggml.tokens"]
    kinds = meta["tokenizer.ggml.token_type"]
    for kind, special in ((_CONTROL, True), (_USER_DEFINED, False)):
        added = [
            AddedToken(t, special=special, normalized=False)
            for t, k in zip(tokens, kinds, strict=True)
            if k == kind
        ]
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(added)


def _begin_with(tokenizer: Tokenizer, number: int) -> None:
    token = tokenizer.id_to_token(number)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{token} $A", special_tokens=[(token, number)]
    )


def _pre_tokenizer(path: Path, cut: str) -> Any:
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if cut in {"gpt-2", "default"}:
        return words
    if cut == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
    pattern = {"llama-bpe": _LLAMA3, "llama3": _LLAMA3, "qwen2": _QWEN2}.get(cut)
    if pattern is None:
        raise UnsupportedModel(
            f"{path}: pre-tokenizer {cut!r} is not supported; use safetensors with tokenizer.json"
        )
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
