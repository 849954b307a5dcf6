"""The peer of `engine`: transformers on the same weights, run in a process of its own.

Needs torch and transformers on PYTHONPATH; `engine` puts them there and asks for rounds.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from engine_round import answer_rounds, prompts_of
from engine_weights import config_of, state_dict
from sojourn_runtime.model.weights import Weights, open_weights
from transformers.generation.streamers import BaseStreamer


def llama(weights: Weights) -> Any:
    """transformers' Llama with the very weights that our kernels use."""
    config = transformers.LlamaConfig(**config_of(weights), attn_implementation="sdpa")
    model = transformers.LlamaForCausalLM(config)
    state = {name: torch.from_numpy(np.array(values)) for name, values in state_dict(weights)}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected, unexpected
    assert set(missing) <= {"lm_head.weight"}, missing
    model.tie_weights()
    return model.to(torch.bfloat16).eval()


class Stamps(BaseStreamer):  # type: ignore[misc]
    """Notes when each token comes; the first call brings the prompt."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.times: list[float] = []

    def put(self, value: Any) -> None:
        del value
        self.times.append(self.clock())

    def end(self) -> None:
        pass


def generate(model: Any, prompt: torch.Tensor, new: int, clock: Callable[[], float]) -> list[float]:
    """When the prompt was taken, and when each new token came."""
    stamps = Stamps(clock)
    model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=new,
        min_new_tokens=new,
        do_sample=False,
        pad_token_id=0,
        streamer=stamps,
    )
    return stamps.times


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("cache", type=Path)
    parser.add_argument("--tokens", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--logits", type=Path, help="where to put the logits of the text's ids")
    parser.add_argument("--ids", type=int, nargs="*", default=[])
    parser.add_argument("--cpu-clock", action="store_true", help="count this thread's time alone")
    given = parser.parse_args()
    clock = time.thread_time if given.cpu_clock else time.perf_counter
    torch.set_num_threads(given.threads)
    model = llama(open_weights(str(given.model), cache_dir=given.cache))
    if given.logits:
        with torch.inference_mode():
            logits = model(torch.tensor([given.ids])).logits[0].float().numpy()
        np.save(given.logits, logits)

    def times(batch: int, length: int, new: int) -> list[float]:
        prompts = prompts_of(batch, length, vocabulary=model.config.vocab_size)
        return generate(model, torch.from_numpy(prompts), new, clock)

    answer_rounds(times, tokens=given.tokens)


if __name__ == "__main__":
    main()
