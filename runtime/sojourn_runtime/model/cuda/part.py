"""A shard's part of a model's tensors: some outputs of each linear, and some columns of the
embedding.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from sojourn_runtime.model.config import ModelConfig
from sojourn_runtime.model.shards.split import Shard


def own_heads(config: ModelConfig, shard: Shard) -> ModelConfig:
    """The config with the shard's heads alone: what its attention and its KV are like."""
    count = len(shard.kv_heads)
    return replace(config, heads=config.heads // config.kv_heads * count, kv_heads=count)


def widths(config: ModelConfig, shard: Shard) -> Mapping[str, Sequence[int]]:
    """How many columns each shard computes, of each kind."""
    split, per_key_head = shard.split, config.heads // config.kv_heads * config.head_dim
    return {
        "heads": [len(part) * per_key_head for part in split.kv_heads],
        "hidden": [len(part) for part in split.hidden],
        "inner": [len(part) for part in split.inner],
        "vocab": [len(part) for part in split.vocab],
    }


def part(name: str, tensor: torch.Tensor, config: ModelConfig, shard: Shard) -> torch.Tensor:
    """The shard's part of a tensor that is as `Network` wants it of a whole model."""
    split, number = shard.split, shard.number
    hidden, inner = split.hidden[number], split.inner[number]
    rows = {
        "qkv": _fused(config, shard),
        "gate_up": [inner, range(config.inner + inner.start, config.inner + inner.stop)],
        "attention_out": [hidden],
        "down": [hidden],
        "head": [split.vocab[number]],
    }
    kind = name.rpartition(".")[2].removesuffix("_bias")
    if kind == "embedding":
        return tensor[:, hidden.start : hidden.stop].contiguous()
    mine = rows.get(kind)
    return tensor if mine is None else _rows(tensor, mine)


def _fused(config: ModelConfig, shard: Shard) -> list[range]:
    """Queries, keys and values of the shard's key heads."""
    size, group = config.head_dim, config.heads // config.kv_heads
    mine = shard.kv_heads
    keys, values = config.heads, config.heads + config.kv_heads
    return [
        range(mine.start * group * size, mine.stop * group * size),
        *(range((at + mine.start) * size, (at + mine.stop) * size) for at in (keys, values)),
    ]


def _rows(tensor: torch.Tensor, mine: Sequence[range]) -> torch.Tensor:
    return torch.cat([tensor[rows.start : rows.stop] for rows in mine])
