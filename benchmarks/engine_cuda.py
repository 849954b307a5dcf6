"""Decode on a GPU against what its memory bandwidth allows, prefill, how prompt a yield is, and
copies between the tiers: `benchmarks/engine.py --device cuda`.

Weights are random, in the shapes of known models, and made on the GPU: nothing is downloaded.
The bandwidth is measured beside it, by copying; the peer is the same pass without CUDA graphs,
with a row more.
"""

import json
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from jsonfile import save
from sojourn_runtime.model.config import BLOCK_TOKENS, ModelConfig
from sojourn_runtime.model.cuda import runner as cuda
from sojourn_runtime.model.cuda.runner import CudaRunner
from sojourn_runtime.model.protocol import Interrupted, Segment, StopFlag

BATCHES = (1, 8, 32)
CONTEXTS = (256, 4096)
STEPS = 32
GIB = 1 << 30


def config(**sizes: int) -> ModelConfig:
    return ModelConfig(
        architecture="llama",
        max_positions=8192,
        rope_theta=1e5,
        rms_epsilon=1e-5,
        tied_embeddings=False,
        bos_id=None,
        eos_ids=(),
        **sizes,  # type: ignore[arg-type]
    )


MODELS = {
    "SmolLM2-135M": config(
        vocab_size=49152, layers=30, hidden=576, heads=9, kv_heads=3, head_dim=64, inner=1536
    ),
    "Llama-3.1-8B": config(
        vocab_size=128256, layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, inner=14336
    ),
}


def weights(model: ModelConfig) -> dict[str, Any]:
    where = cuda.device()

    def matrix(outputs: int, inputs: int) -> Any:
        values = torch.randn((outputs, inputs), dtype=torch.bfloat16, device=where)
        return values * inputs**-0.5

    mixed, kv = model.heads * model.head_dim, model.kv_heads * model.head_dim
    found = {name: matrix(model.vocab_size, model.hidden) for name in ("embedding", "head")}
    found["final_norm"] = torch.ones(model.hidden, device=where)
    for layer in range(model.layers):
        found |= {
            f"{layer}.attention_norm": torch.ones(model.hidden, device=where),
            f"{layer}.qkv": matrix(mixed + 2 * kv, model.hidden),
            f"{layer}.attention_out": matrix(model.hidden, mixed),
            f"{layer}.mlp_norm": torch.ones(model.hidden, device=where),
            f"{layer}.gate_up": matrix(2 * model.inner, model.hidden),
            f"{layer}.down": matrix(model.hidden, model.inner),
        }
    return found


def table_length(context: int) -> int:
    """Blocks of one sequence that is decoded from there."""
    return -(-(context + STEPS) // BLOCK_TOKENS)


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def seconds(action: Callable[[], object]) -> float:
    wait()
    begin = time.perf_counter()
    action()
    wait()
    return time.perf_counter() - begin


def bandwidth() -> float:
    """Bytes a second read and written by a copy, the best of ten."""
    source = torch.zeros(GIB, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    target.copy_(source)
    return 2 * GIB / min(seconds(lambda: target.copy_(source)) for _ in range(10))


def decode(runner: CudaRunner, batch: int, context: int, *, per_second: float) -> dict[str, Any]:
    """The KV is whatever lies in the blocks: the time does not depend on it."""
    each = table_length(context)
    tables = [range(n * each, (n + 1) * each) for n in range(batch)]

    spare = Segment([1], 0, [batch * each], "none")  # such a batch is not recorded

    def timed(*more: Segment) -> float:
        def step(position: int) -> None:
            runner.forward([*(Segment([1], position, table) for table in tables), *more])

        step(context)  # recorded, or compiled
        return median(seconds(partial(step, context + at)) for at in range(1, STEPS))

    with_graph, without = timed(), timed(spare)
    head = {"embedding"} if "head" in runner.tensors else set()
    read = sum(t.nbytes for name, t in runner.tensors.items() if name not in head)
    read += batch * context * runner.config.kv_bytes_per_token
    return {
        "batch": batch,
        "context": context,
        "step_ms": round(with_graph * 1e3, 3),
        "tokens_per_second": round(batch / with_graph),
        "without_graphs_ms": round(without * 1e3, 3),
        "share_of_bandwidth": round(read / with_graph / per_second, 3),
    }


def prefill(runner: CudaRunner, length: int = 2048) -> dict[str, float]:
    segment = Segment(np.ones(length, np.int32), 0, range(length // BLOCK_TOKENS))
    runner.forward([segment])
    taken = min(seconds(lambda: runner.forward([segment])) for _ in range(3))
    waits = []
    for share in np.linspace(0.05, 0.85, 30):
        stop, at = StopFlag(), [0.0]

        def raise_flag(stop: StopFlag = stop, at: list[float] = at) -> None:
            at[0] = time.perf_counter()
            stop.set()

        timer = threading.Timer(share * taken, raise_flag)
        timer.start()
        ended = isinstance(runner.forward([segment], stop=stop), Interrupted)
        if ended:
            waits.append(time.perf_counter() - at[0])
        timer.join()
    return {
        "tokens_per_second": round(length / taken),
        "layer_ms": round(taken / runner.config.layers * 1e3, 3),
        "yields": len(waits),
        "yield_max_ms": round(max(waits, default=float("nan")) * 1e3, 3),
    }


def tiers(runner: CudaRunner, blocks: int = 64) -> dict[str, float]:
    """GB/s between device and host, by the pool's pinned copies and by plain ones."""
    host = np.zeros((blocks, runner.block_bytes), np.uint8)
    size = host.nbytes / 1e9

    def each(move: Callable[[int], object]) -> float:
        return round(
            size / min(seconds(lambda: [move(n) for n in range(blocks)]) for _ in "123"), 1
        )

    plain_out = each(lambda n: host.__setitem__(n, runner.kv[n]))
    plain_in = each(lambda n: runner.kv.__setitem__(n, host[n]))
    runner.pool.host(blocks)
    out = each(lambda n: runner.pool.stash(n, n))
    into = each(lambda n: runner.pool.fetch(n, n))
    return {"stash": out, "fetch": into, "plain_stash": plain_out, "plain_fetch": plain_in}


def measure(out: Path | None) -> None:
    """Print what was found, model after model; all of it as JSON into `out`."""
    cuda.device()
    per_second = bandwidth()
    report: dict[str, Any] = {
        "device": torch.cuda.get_device_properties(0).name,
        "torch": torch.__version__,
        "copy_gb_per_s": round(per_second / 1e9),
    }
    for name, model in MODELS.items():
        report[name] = one(name, model, per_second=per_second)
        print(json.dumps({name: report[name]}, indent=1), flush=True)
        torch.cuda.empty_cache()
    save(report, out)


def one(name: str, model: ModelConfig, *, per_second: float) -> dict[str, Any]:
    blocks = max(BATCHES) * table_length(max(CONTEXTS)) + 1
    begin = time.perf_counter()
    runner = CudaRunner(model, weights(model), weights_digest=name, num_blocks=blocks)
    opening = time.perf_counter() - begin
    speeds = [
        decode(runner, batch, context, per_second=per_second)
        for context in CONTEXTS
        for batch in BATCHES
    ]
    found = {
        "kernel_class": runner.kernel_class,
        "row_exact": runner.row_exact,
        "opening_s": round(opening, 1),
        "decode": speeds,
        "prefill": prefill(runner),
        "tiers_gb_per_s": tiers(runner),
    }
    runner.close()
    return found
