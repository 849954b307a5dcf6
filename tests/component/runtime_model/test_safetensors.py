"""The same real model from a Hugging Face folder, in several files, is the same to the bit."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sojourn_runtime.model.config import ModelConfig
from sojourn_runtime.model.gguf import GgufSource
from sojourn_runtime.model.packing import to_bf16
from sojourn_runtime.model.tokenizer import Tokenizer
from sojourn_runtime.model.weights import Weights, open_weights

HEAD, MIDDLE, TAIL = ("embed_tokens", "norm"), range(15), range(15, 30)


def layer_names(layer: int) -> list[str]:
    parts = [f"self_attn.{part}_proj" for part in "qkvo"]
    parts += [f"mlp.{part}_proj" for part in ("gate", "up", "down")]
    parts += ["input_layernorm", "post_attention_layernorm"]
    return [f"model.layers.{layer}.{part}.weight" for part in parts]


def shards() -> list[list[str]]:
    return [
        [f"model.{part}.weight" for part in HEAD],
        [name for layer in MIDDLE for name in layer_names(layer)],
        [name for layer in TAIL for name in layer_names(layer)],
    ]


def write_shard(path: Path, tensors: Mapping[str, npt.NDArray[np.float32]]) -> None:
    header: dict[str, Any] = {}
    bodies: list[bytes] = []
    end = 0
    for name, values in tensors.items():
        bodies.append(to_bf16(values).tobytes())
        place = [end, end := end + len(bodies[-1])]
        header[name] = {"dtype": "BF16", "shape": list(values.shape), "data_offsets": place}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(bodies))


def config_json(config: ModelConfig) -> dict[str, Any]:
    """As Hugging Face's folder of this model has it."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": config.vocab_size,
        "num_hidden_layers": config.layers,
        "hidden_size": config.hidden,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "intermediate_size": config.inner,
        "max_position_embeddings": config.max_positions,
        "rope_theta": config.rope_theta,
        "rms_norm_eps": config.rms_epsilon,
        "tie_word_embeddings": True,
        "bos_token_id": config.bos_id,
        "eos_token_id": list(config.eos_ids),
    }


@pytest.fixture(scope="module")
def folder(model_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("smollm2")
    source = GgufSource(model_file)
    for number, names in enumerate(shards(), start=1):
        name = f"model-{number:05}-of-00003.safetensors"
        write_shard(path / name, {name: source.tensor(name) for name in names})
    tokenizer = source.tokenizer()
    (path / "config.json").write_text(json.dumps(config_json(source.config)))
    (path / "tokenizer.json").write_text(tokenizer.tokenizer_json)
    (path / "chat_template.jinja").write_text(tokenizer.chat_template)
    return path


def test_the_folder_gives_the_same_weights_as_the_gguf_file(
    folder: Path, smollm2: Weights, tmp_path: Path
) -> None:
    found = open_weights(str(folder), cache_dir=tmp_path)
    assert found.config == smollm2.config
    assert found.tensors.keys() == smollm2.tensors.keys()
    assert all(np.array_equal(found.tensors[name], t) for name, t in smollm2.tensors.items())


def test_the_folder_renders_and_cuts_chats_as_the_gguf_file_does(
    folder: Path, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    found = Tokenizer(open_weights(str(folder), cache_dir=tmp_path))
    messages = [
        {"role": "user", "content": "Wie viele Schiffe sind 14.610 + 3 Schiffe? \N{ROCKET}"}
    ]
    assert found.encode_chat(messages) == tokenizer.encode_chat(messages)
