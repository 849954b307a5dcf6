"""Builds a `tokenizers` tokenizer from the vocabulary and merges of a GGUF header.

Only byte-level BPE; each pre-tokenizer that llama.cpp names has its own way to cut words.
"""

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from sojourn_runtime.model.errors import UnsupportedModel
from sojourn_runtime.model.source import TokenizerData

_CONTROL, _USER_DEFINED = 3, 4
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


def build(path: Path, meta: dict[str, Any]) -> TokenizerData:
    """The tokenizer and the chat template of a GGUF header."""
    model, cut = meta.get("tokenizer.ggml.model"), meta.get("tokenizer.ggml.pre", "default")
    if model != "gpt2":
        raise UnsupportedModel(
            f"{path}: tokenizer {model!r} is not supported; use a model with byte-level BPE"
        )
    try:
        tokenizer = _byte_level(path, meta, cut)
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
    kinds = meta["tokenizer.ggml.token_type"]
    for kind, special in ((_CONTROL, True), (_USER_DEFINED, False)):
        added = [
            AddedToken(t, special=special, normalized=False)
            for t, k in zip(tokens, kinds, strict=True)
            if k == kind
        ]
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(added)
    if meta.get("tokenizer.ggml.add_bos_token", False):
        bos = tokens[meta["tokenizer.ggml.bos_token_id"]]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, vocabulary[bos])]
        )
    return tokenizer


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
