"""Tiny random models of every family, small enough for hundreds of forward passes, awkward in every
size.

Vocabulary and widths are no multiples of a panel, the key heads are shared, the layers more
than those between two looks at the stop flag.
"""

import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sojourn_runtime.model.packing import from_bf16, to_bf16
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
    hidden, head_dim = config["hidden_size"], config["head_dim"]
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
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = matrix(config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        tensors |= {
            prefix + "input_layernorm.weight": norm(),
            prefix + "self_attn.q_proj.weight": matrix(heads, hidden, gain=1.5),
            prefix + "self_attn.k_proj.weight": matrix(kv_heads, hidden, gain=1.5),
            prefix + "self_attn.v_proj.weight": matrix(kv_heads, hidden),
            prefix + "self_attn.o_proj.weight": matrix(hidden, heads),
            prefix + "post_attention_layernorm.weight": norm(),
        }
        tensors |= {prefix + name: matrix(*size) for name, size in mlp_sizes(config)}
    return tensors | _of_the_kin(config, random)


def mlp_sizes(config: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, int]]]:
    """The matrices of a layer's MLP, or of its experts with their router."""
    hidden, family = config["hidden_size"], config["architectures"][0]
    count = config.get("num_experts", config.get("num_local_experts", 0))
    inner = config["moe_intermediate_size" if "Qwen" in family and count else "intermediate_size"]
    widths = {f"experts.{number}.": inner for number in range(count)} or {"": inner}
    if "shared_expert_intermediate_size" in config:
        widths["shared_expert."] = config["shared_expert_intermediate_size"]
        yield "mlp.shared_expert_gate.weight", (1, hidden)
    if count:
        yield "mlp.gate.weight", (count, hidden)
    for part, width in widths.items():
        yield f"mlp.{part}gate_proj.weight", (width, hidden)
        yield f"mlp.{part}up_proj.weight", (width, hidden)
        yield f"mlp.{part}down_proj.weight", (hidden, width)


def _of_the_kin(
    config: Mapping[str, Any], random: np.random.Generator
) -> dict[str, npt.NDArray[np.float32]]:
    """What Qwen and OLMoE have beyond a Llama: biases, and norms of queries and keys."""
    sizes = {"q": config["num_attention_heads"], "k": config["num_key_value_heads"]}
    sizes["v"] = sizes["k"]
    (family,) = config["architectures"]
    found = {}
    for layer in range(config["num_hidden_layers"]):
        for part, heads in sizes.items():
            name = f"model.layers.{layer}.self_attn.{part}"
            if family.startswith("Qwen2") or config.get("attention_bias"):
                found[f"{name}_proj.bias"] = random.normal(0, 0.5, heads * config["head_dim"])
            if family.startswith(("Qwen3", "Olmoe")) and part != "v":
                size = config["head_dim"] * (heads if family.startswith("Olmoe") else 1)
                found[f"{name}_norm.weight"] = random.uniform(0.5, 1.5, size)
        if config.get("attention_bias"):
            name = f"model.layers.{layer}.self_attn.o_proj.bias"
            found[name] = random.normal(0, 0.5, config["hidden_size"])
    return {name: values.astype(np.float32) for name, values in found.items()}


def as_stored(
    config: Mapping[str, Any], tensors: Mapping[str, npt.NDArray[np.float32]]
) -> dict[str, npt.NDArray[np.float32]]:
    """By the names and in the pieces in which the family's folders have them."""
    (family,) = config["architectures"]
    stored = dict(tensors)
    if family == "Phi3ForCausalLM":
        for layer in range(config["num_hidden_layers"]):
            for whole, parts in (("self_attn.qkv", "qkv"), ("mlp.gate_up", ("gate", "up"))):
                prefix = f"model.layers.{layer}.{whole.partition('.')[0]}."
                pieces = [stored.pop(f"{prefix}{part}_proj.weight") for part in parts]
                stored[f"model.layers.{layer}.{whole}_proj.weight"] = np.concatenate(pieces)
    if family == "MixtralForCausalLM":
        own = {"mlp.": "block_sparse_moe.", "gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
        for name in [name for name in stored if ".mlp." in name]:
            renamed = name
            for ours, theirs in own.items():
                renamed = renamed.replace(ours, theirs)
            stored[renamed] = stored.pop(name)
    return stored


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


def write_model(
    folder: Path, *, tensors: Mapping[str, npt.NDArray[np.float32]] | None = None, **changes: Any
) -> Path:
    """A Hugging Face folder with random weights but for `tensors`; `changes` to the config."""
    config = {**CONFIG, **changes}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    (folder / "tokenizer.json").write_text(byte_tokenizer().to_str())
    stored = as_stored(config, {**random_tensors(config), **(tensors or {})})
    write_safetensors(folder / "model.safetensors", stored)
    return folder
