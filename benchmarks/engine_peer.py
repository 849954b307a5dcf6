"""The peer of `engine`: transformers on the same weights, run in a process of its own.

Prints one JSON line per measurement. Needs torch and transformers on PYTHONPATH; `engine` puts
them there.
"""

import argparse
import itertools
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from sojourn_runtime.model.packing import unpack, unpack_gate_up
from sojourn_runtime.model.weights import Weights, open_weights
from transformers.generation.streamers import BaseStreamer


def llama(weights: Weights) -> Any:
    """transformers' Llama with the very weights that our kernels use."""
    config = weights.config
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden,
            intermediate_size=config.inner,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            head_dim=config.head_dim,
            max_position_embeddings=config.max_positions,
            rms_norm_eps=config.rms_epsilon,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            tie_word_embeddings=True,
            attn_implementation="sdpa",
        )
    )
    state = {name: torch.from_numpy(np.array(values)) for name, values in state_dict(weights)}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected, unexpected
    assert set(missing) <= {"lm_head.weight"}, missing
    model.tie_weights()
    return model.to(torch.bfloat16).eval()


def state_dict(weights: Weights) -> Iterator[tuple[str, Any]]:
    config, tensors = weights.config, weights.tensors
    mixed = config.heads * config.head_dim
    keys = config.kv_heads * config.head_dim
    yield "model.embed_tokens.weight", unpack(tensors["embedding"], config.vocab_size)
    yield "model.norm.weight", tensors["final_norm"]
    for layer in range(config.layers):
        prefix = f"model.layers.{layer}."
        yield prefix + "input_layernorm.weight", tensors[f"{layer}.attention_norm"]
        yield prefix + "post_attention_layernorm.weight", tensors[f"{layer}.mlp_norm"]
        qkv = np.split(unpack(tensors[f"{layer}.qkv"], mixed + 2 * keys), [mixed, mixed + keys])
        for part, matrix in zip("qkv", qkv, strict=True):
            yield f"{prefix}self_attn.{part}_proj.weight", matrix
        yield (
            prefix + "self_attn.o_proj.weight",
            unpack(tensors[f"{layer}.attention_out"], config.hidden),
        )
        gate, up = unpack_gate_up(tensors[f"{layer}.gate_up"])
        yield prefix + "mlp.gate_proj.weight", gate
        yield prefix + "mlp.up_proj.weight", up
        yield prefix + "mlp.down_proj.weight", unpack(tensors[f"{layer}.down"], config.hidden)


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
    parser.add_argument("--batches", type=int, nargs="+", required=True)
    parser.add_argument("--context", type=int, required=True)
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
    random = np.random.default_rng(0)
    for batch in given.batches:
        ids = random.integers(0, model.config.vocab_size, (batch, given.context))
        prompt = torch.from_numpy(ids)
        generate(model, prompt, 2, clock)
        times = generate(model, prompt, 1 + given.tokens, clock)
        steps = [after - before for before, after in itertools.pairwise(times[1:])]
        line = {"batch": batch, "step_s": steps, "prefill_s": times[1] - times[0]}
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
