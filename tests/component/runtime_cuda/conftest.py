"""The CUDA kernels on tiny random models: on the GPU where there is one, else in Triton's
interpreter, with the same assertions.

A process either compiles Triton kernels or interprets them, so one of the two is skipped.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports Triton's kernels

from sojourn_runtime.model.config import ModelConfig  # noqa: E402
from sojourn_runtime.model.cuda.kernels import INTERPRETED  # noqa: E402
from sojourn_runtime.model.cuda.runner import CudaRunner, device  # noqa: E402

BOTH = ["interpreter", pytest.param("cuda", marks=pytest.mark.gpu)]
TINY = {
    "architecture": "llama",
    "vocab_size": 75,
    "layers": 1,
    "hidden": 48,
    "heads": 3,
    "kv_heads": 1,
    "head_dim": 32,
    "inner": 80,
    "max_positions": 2048,
    "rope_theta": 10000.0,
    "rms_epsilon": 1e-5,
    "tied_embeddings": True,
    "bos_id": None,
    "eos_ids": (),
}


@pytest.fixture(params=BOTH, autouse=True)
def place(request: pytest.FixtureRequest) -> Any:
    """The device of this run."""
    if (request.param == "interpreter") != INTERPRETED:
        pytest.skip("no CUDA device" if INTERPRETED else "the kernels are compiled here")
    return device()


def random_tensors(config: ModelConfig) -> dict[str, Any]:
    """What `Network` wants, scaled so that activations stay near one."""
    generator = torch.Generator().manual_seed(0)
    heads, kv_heads = config.heads * config.head_dim, config.kv_heads * config.head_dim

    def matrix(outputs: int, inputs: int) -> Any:
        values = torch.randn((outputs, inputs), generator=generator) * (1.5 / inputs**0.5)
        return values.to(device(), torch.bfloat16)

    def vector(size: int) -> Any:
        return (torch.rand(size, generator=generator) + 0.5).to(device())

    found = {"embedding": matrix(config.vocab_size, config.hidden)}
    found["embedding"] *= config.hidden**0.5
    found["final_norm"] = vector(config.hidden)
    for layer in range(config.layers):
        found |= {
            f"{layer}.attention_norm": vector(config.hidden),
            f"{layer}.qkv": matrix(heads + 2 * kv_heads, config.hidden),
            f"{layer}.attention_out": matrix(config.hidden, heads),
            f"{layer}.mlp_norm": vector(config.hidden),
            f"{layer}.gate_up": matrix(2 * config.inner, config.hidden),
            f"{layer}.down": matrix(config.hidden, config.inner),
        }
        if config.qkv_bias:
            found[f"{layer}.qkv_bias"] = vector(heads + 2 * kv_heads)
        if config.attention_out_bias:
            found[f"{layer}.attention_out_bias"] = vector(config.hidden)
        if config.qk_norm:
            found |= {f"{layer}.{part}_norm": vector(config.head_dim) for part in "qk"}
    return found


@pytest.fixture(scope="module")
def new_runner() -> Iterator[Callable[..., CudaRunner]]:
    """Opens runners over a tiny model with `changes` to its config."""
    opened: list[CudaRunner] = []

    def make(*, num_blocks: int = 16, head_dim: int = 32, **changes: Any) -> CudaRunner:
        given: Mapping[str, Any] = {**TINY, **changes}
        config = ModelConfig(**given)
        object.__setattr__(config, "head_dim", head_dim)  # the CPU kernels refuse some sizes
        tensors = random_tensors(config)
        runner = CudaRunner(config, tensors, weights_digest="tiny", num_blocks=num_blocks)
        opened.append(runner)
        return runner

    yield make
    for runner in opened:
        runner.close()


@pytest.fixture(scope="session")
def tokens() -> list[int]:
    return [int(t) for t in np.random.default_rng(1).integers(0, 75, 1200)]
