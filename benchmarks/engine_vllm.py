"""The peer of `engine`: vLLM's CPU build, compiled, on the same weights and in its own process.

It reads a safetensors copy of the weights that our kernels use, written here into a folder of its
own. Needs vLLM and torch on PYTHONPATH; `engine` puts them there and asks for rounds.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from engine_round import BATCHES, CONTEXT, PROMPTS, answer_rounds, prompts_of
from engine_weights import config_of, state_dict
from sojourn_runtime.model.weights import Weights, open_weights

ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "2",
}
"""No network, and the engine in this process, where its steps can be timed."""
ROOM: Final = 512
"""Tokens that a sequence may have beside the longest prompt."""


def write_folder(weights: Weights, folder: Path) -> None:
    """The model as vLLM reads it, in bf16."""
    import torch  # noqa: PLC0415 - after the environment is set
    from safetensors.torch import save_file  # noqa: PLC0415

    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config | config_of(weights)))
    state = {
        name: torch.from_numpy(np.array(values)).to(torch.bfloat16).contiguous()
        for name, values in state_dict(weights)
    }
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})


class Engine:
    """vLLM with nothing between its scheduler and our clock."""

    def __init__(self, folder: Path) -> None:
        from vllm import LLM  # noqa: PLC0415 - reads the environment

        longest = max(PROMPTS) + ROOM
        self._engine: Any = LLM(
            model=str(folder),
            dtype="bfloat16",
            skip_tokenizer_init=True,
            max_model_len=longest,
            max_num_seqs=max(BATCHES),
            max_num_batched_tokens=max(BATCHES) * CONTEXT,
            enable_prefix_caching=False,
            seed=0,
        ).llm_engine

    def times(self, prompts: Sequence[Sequence[int]], new: int) -> list[float]:
        """When the prompts were given, and when each token of all of them had come."""
        from vllm import SamplingParams  # noqa: PLC0415

        params = SamplingParams(
            temperature=0, max_tokens=new, min_tokens=new, ignore_eos=True, detokenize=False
        )
        times = [time.perf_counter()]
        for number, prompt in enumerate(prompts):
            self._engine.add_request(str(number), {"prompt_token_ids": list(prompt)}, params)
        came = 0
        while self._engine.has_unfinished_requests():
            outputs = self._engine.step()
            least = min((len(each.outputs[0].token_ids) for each in outputs), default=0)
            if len(outputs) == len(prompts) and least > came:
                came = least
                times.append(time.perf_counter())
        return times


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("cache", type=Path)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    given = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))[: given.threads]
    os.environ.update(
        ENVIRONMENT,
        VLLM_CACHE_ROOT=str(given.cache.parent / "vllm-compiled"),
        VLLM_CPU_OMP_THREADS_BIND=",".join(map(str, cores)),
    )
    weights = open_weights(str(given.model), cache_dir=given.cache)
    vocabulary = weights.config.vocab_size
    with tempfile.TemporaryDirectory() as folder:
        write_folder(weights, Path(folder))
        engine = Engine(Path(folder))

        def times(batch: int, length: int, new: int) -> list[float]:
            return engine.times(prompts_of(batch, length, vocabulary=vocabulary).tolist(), new)

        answer_rounds(times, tokens=given.tokens)


if __name__ == "__main__":
    main()
