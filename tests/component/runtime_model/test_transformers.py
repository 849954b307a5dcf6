"""Every family and every rope beside `transformers`: tiny random models, which it makes and saves
itself, so that its names and its config are those that are read here.

In float32 the logits agree to 1e-4 and the greedy text to the token; the exact kernels round to
bf16 in between and are near.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sojourn_runtime.model.calibrate import TEXT
from sojourn_runtime.model.cpu import CpuRunner
from sojourn_runtime.model.gguf import GgufSource
from sojourn_runtime.model.protocol import Interrupted, Runner, Segment
from sojourn_runtime.model.quality import logits_of, quality
from sojourn_runtime.model.tokenizer import Tokenizer as OwnTokenizer
from sojourn_runtime.model.weights import Weights, open_weights
from tokenizers import Tokenizer, models

pytestmark = pytest.mark.torch
TOKENS = [int(t) for t in np.random.default_rng(3).integers(0, 301, 150)]
BLOCKS = (2, 0, 3)
MADE = 32
SMALL: dict[str, Any] = {
    "vocab_size": 301,
    "num_hidden_layers": 3,
    "hidden_size": 192,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 112,
    "max_position_embeddings": 640,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
MOE = {"num_experts": 5, "num_experts_per_tok": 2}
QWEN_MOE = MOE | {"moe_intermediate_size": 48}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama-tied": ("Llama", {"tie_word_embeddings": True}),
    "llama-all-heads": ("Llama", {"num_key_value_heads": 6}),
    "llama-biases": ("Llama", {"attention_bias": True}),
    "qwen3-biases": ("Qwen3", {"attention_bias": True}),
    "llama-linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0}}),
    "llama-llama3": ("Llama", {"rope_parameters": LLAMA3}),
    "llama-yarn": ("Llama", {"rope_parameters": YARN}),
    "llama-yarn-mscale": (
        "Llama",
        {"rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 1.3, "beta_fast": 16}},
    ),
    "mistral": ("Mistral", {"sliding_window": None}),
    "mistral-window": ("Mistral", {"sliding_window": 50}),
    "qwen2": ("Qwen2", {}),
    "qwen2-window": (
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 70, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3", {"head_dim": 64}),
    "qwen3-yarn": ("Qwen3", {"head_dim": 32, "rope_parameters": YARN}),
    "phi3": ("Phi3", {"sliding_window": 64}),
    "mixtral": ("Mixtral", {"num_local_experts": 4, "sliding_window": None}),
    "mixtral-window": ("Mixtral", {"num_local_experts": 4, "sliding_window": 33}),
    "olmoe": ("Olmoe", MOE),
    "qwen2moe": ("Qwen2Moe", QWEN_MOE | {"shared_expert_intermediate_size": 80}),
    "qwen3moe": ("Qwen3Moe", QWEN_MOE | {"norm_topk_prob": True, "head_dim": 32}),
}


@dataclass(frozen=True, slots=True)
class Peer:
    """`transformers`' model, and what we read from the folder that it saved."""

    model: Any
    weights: Weights

    def logits(self, tokens: list[int]) -> npt.NDArray[np.float32]:
        import torch  # noqa: PLC0415

        with torch.inference_mode():
            found: npt.NDArray[np.float32] = self.model(torch.tensor([tokens])).logits[0].numpy()
        return found


@pytest.fixture(params=FAMILIES)
def peer(request: pytest.FixtureRequest, transformers: Any, tmp_path: Path) -> Peer:
    import torch  # noqa: PLC0415

    name, changes = FAMILIES[request.param]
    torch.manual_seed(4)
    config = getattr(transformers, f"{name}Config")(**{**SMALL, **changes})
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            random = torch.randn_like(parameter)
            drawn = 1 + random / 4 if parameter.dim() == 1 else random / parameter.shape[-1] ** 0.5
            parameter.copy_(drawn.to(torch.bfloat16))
    model.save_pretrained(tmp_path / "model", max_shard_size="100KB")
    tokens = {f"<{number}>": number for number in range(301)}
    Tokenizer(models.WordLevel(tokens, "<0>")).save(str(tmp_path / "model" / "tokenizer.json"))
    assert len(list((tmp_path / "model").glob("*.safetensors"))) > 1
    return Peer(model, open_weights(str(tmp_path / "model"), cache_dir=tmp_path / "cache"))


def test_the_real_model_in_bf16_predicts_as_in_float32(
    transformers: Any, model_file: Path, smollm2: Weights, tokenizer: OwnTokenizer
) -> None:
    import torch  # noqa: PLC0415

    config, source = smollm2.config, GgufSource(model_file)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=config.vocab_size,
            num_hidden_layers=config.layers,
            hidden_size=config.hidden,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            intermediate_size=config.inner,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            rms_norm_eps=config.rms_epsilon,
            tie_word_embeddings=True,
        )
    ).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(source.tensor(name).copy()))
    tokens = list(tokenizer.encode(TEXT.read_text()))[:400]
    expected = Peer(model, smollm2).logits(tokens)
    found = quality(logits_of(smollm2, tokens, threads=1), expected, tokens)
    assert found.kl <= 0.003
    assert found.top1 >= 0.95


def forward(runner: Runner, *segments: Segment) -> npt.NDArray[np.float32]:
    logits = runner.forward(segments)
    assert not isinstance(logits, Interrupted)
    return logits


def greedy(step: Callable[[list[int]], npt.NDArray[np.float32]]) -> list[int]:
    tokens = list(TOKENS)
    for _ in range(MADE):
        tokens.append(int(step(tokens).argmax()))
    return tokens[len(TOKENS) :]


def test_logits_and_text_are_those_of_transformers(peer: Peer) -> None:
    import torch  # noqa: PLC0415
    from sojourn_runtime.model.eager import EagerRunner  # noqa: PLC0415

    runner = EagerRunner(peer.weights, num_blocks=4, device="eager", threads=1, dtype=torch.float32)
    expected = peer.logits(TOKENS)
    assert expected.std() > 0.3
    found = forward(runner, Segment(TOKENS, 0, BLOCKS, "all"))
    np.testing.assert_allclose(found, expected, atol=1e-4)
    text = greedy(lambda t: forward(runner, Segment(t[-1:], len(t) - 1, BLOCKS))[0])
    assert text == greedy(lambda t: peer.logits(t)[-1])

    exact = CpuRunner(peer.weights, num_blocks=4, threads=1)
    near = forward(exact, Segment(TOKENS, 0, BLOCKS, "all"))
    # In the mean a router's close call that goes the other way would weigh too much.
    assert np.median(np.abs(near - expected)) < 0.02 * expected.std()
