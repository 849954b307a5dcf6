"""A tiny random Llama, small enough for hundreds of forward passes, awkward in every size.

Vocabulary and widths are no multiples of a panel, the key heads are shared, the layers more
than those between two looks at the stop flag.
"""

import json
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sojourn_runtime.model.cpu import CpuRunner
from sojourn_runtime.model.packing import from_bf16, to_bf16
from sojourn_runtime.model.weights import Weights, open_weights
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 301,
    "num_hidden_layers": 6,
    "hidden_size": 80,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "intermediate_size": 112,
    "max_position_embeddings": 640,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "bos_token_id": 256,
    "eos_token_id": 257,
}
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def random_tensors(config: Mapping[str, Any], seed: int = 0) -> dict[str, npt.NDArray[np.float32]]:
    """Weights by Hugging Face's names, scaled so that activations stay near one; already bf16
    values.
    """
    random = np.random.default_rng(seed)
    hidden, inner, head_dim = (
        config["hidden_size"],
        config["intermediate_size"],
        config["head_dim"],
    )
    heads, kv_heads = (
        config["num_attention_heads"] * head_dim,
        config["num_key_value_heads"] * head_dim,
    )

    def matrix(outputs: int, inputs: int, gain: float = 1.0) -> npt.NDArray[np.float32]:
        values = random.normal(0, gain / inputs**0.5, (outputs, inputs)).astype(np.float32)
        kept: npt.NDArray[np.float32] = from_bf16(to_bf16(values))
        return kept

    def norm() -> npt.NDArray[np.float32]:
        values: npt.NDArray[np.float32] = random.uniform(0.5, 1.5, hidden).astype(np.float32)
        return values

    tensors = {
        "model.embed_tokens.weight": matrix(config["vocab_size"], hidden, gain=1.5),
        "model.norm.weight": norm(),
    }
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        tensors |= {
            prefix + "input_layernorm.weight": norm(),
            prefix + "self_attn.q_proj.weight": matrix(heads, hidden, gain=1.5),
            prefix + "self_attn.k_proj.weight": matrix(kv_heads, hidden, gain=1.5),
            prefix + "self_attn.v_proj.weight": matrix(kv_heads, hidden),
            prefix + "self_attn.o_proj.weight": matrix(hidden, heads),
            prefix + "post_attention_layernorm.weight": norm(),
            prefix + "mlp.gate_proj.weight": matrix(inner, hidden),
            prefix + "mlp.up_proj.weight": matrix(inner, hidden),
            prefix + "mlp.down_proj.weight": matrix(hidden, inner),
        }
    return tensors | _of_the_kin(config, random)


def _of_the_kin(
    config: Mapping[str, Any], random: np.random.Generator
) -> dict[str, npt.NDArray[np.float32]]:
    """What Qwen2 and Qwen3 have beyond a Llama."""
    sizes = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]}
    sizes["v"] = sizes["k"]
    found = {}
    for layer in range(config["num_hidden_layers"]):
        for part, heads in sizes.items():
            name = f"model.layers.{layer}.self_attn.{part}"
            if config["architectures"] == ["Qwen2ForCausalLM"]:
                found[f"{name}_proj.bias"] = random.normal(0, 0.5, heads * config["head_dim"])
            if config["architectures"] == ["Qwen3ForCausalLM"] and part != "v":
                found[f"{name}_norm.weight"] = random.uniform(0.5, 1.5, config["head_dim"])
    return {name: values.astype(np.float32) for name, values in found.items()}


def byte_tokenizer() -> Tokenizer:
    """One token per byte, some merges, and the special tokens of ChatML."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(alphabet)}
    vocabulary |= {"<|im_start|>": 256, "<|im_end|>": 257, "he": 258, "ll": 259, "hell": 260}
    merges = [("h", "e"), ("l", "l"), ("he", "ll")]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(t, special=True) for t in ("<|im_start|>", "<|im_end|>")]
    )
    return tokenizer


def write_safetensors(path: Path, tensors: Mapping[str, npt.NDArray[np.float32]]) -> None:
    """Matrices in BF16, vectors in F32."""
    header: dict[str, Any] = {}
    body = bytearray()
    for name, values in tensors.items():
        raw = to_bf16(values) if values.ndim == 2 else values
        header[name] = {
            "dtype": "BF16" if values.ndim == 2 else "F32",
            "shape": list(values.shape),
            "data_offsets": [len(body), len(body) + raw.nbytes],
        }
        body += raw.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def write_model(folder: Path, **changes: Any) -> Path:
    """A Hugging Face folder with random weights; `changes` to the config."""
    config = {**CONFIG, **changes}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    (folder / "tokenizer.json").write_text(byte_tokenizer().to_str())
    write_safetensors(folder / "model.safetensors", random_tensors(config))
    return folder


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def weights(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Weights:
    return open_weights(str(model_folder), cache_dir=tmp_path_factory.mktemp("cache"))


NewRunner = Callable[..., CpuRunner]


@pytest.fixture
def new_runner(weights: Weights) -> Iterator[NewRunner]:
    """Opens runners over the tiny model; one thread and forty blocks unless said otherwise."""
    opened: list[CpuRunner] = []

    def make(*, threads: int = 1, variant: str = "auto", num_blocks: int = 40) -> CpuRunner:
        opened.append(CpuRunner(weights, num_blocks=num_blocks, threads=threads, variant=variant))
        return opened[-1]

    yield make
    for runner in opened:
        runner.close()


@pytest.fixture(scope="session")
def tiny_tensors() -> dict[str, npt.NDArray[np.float32]]:
    """The weights of the tiny model."""
    return random_tensors(CONFIG)


@pytest.fixture(name="write_model", scope="session")
def write_model_fixture() -> Callable[..., Path]:
    """`write_model(folder, **changes to the config)` writes a Hugging Face folder."""
    return write_model


@pytest.fixture(name="random_tensors", scope="session")
def random_tensors_fixture() -> Callable[..., dict[str, npt.NDArray[np.float32]]]:
    """`random_tensors(**changes to the config)`: what `write_model` with the same changes wrote."""
    return lambda **changes: random_tensors({**CONFIG, **changes})
