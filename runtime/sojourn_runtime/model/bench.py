"""`sojourn-runtime bench MODEL`: measures how fast this device decodes and prefills, fits the rate
model, and writes both as a patch of the LLMModel.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from sojourn_api.names import ANNOTATION_MEASURED

from sojourn_runtime.model.errors import InvalidConfiguration, ModelError
from sojourn_runtime.model.pace import Measured, Sizes, measure
from sojourn_runtime.model.quantization import read_plan
from sojourn_runtime.model.rates import LEAST_POINTS, RateModel, decode_fraction, fit
from sojourn_runtime.model.runner import make_runner, usable_cpus
from sojourn_runtime.model.weights import open_weights

CONTEXTS: Final = (128, 256, 512, 1024, 2048, 4096)
MIB: Final = 1024**2


@dataclass(frozen=True, slots=True)
class Cell:
    """Decode of `batch` sequences behind `context` tokens each, in tokens/s of all together;
    `fitted` is what the rate model of this batch says, None if it has too few lengths.
    """

    batch: int
    context: int
    measured: float
    fitted: float | None


def fits(measured: Measured) -> dict[int, RateModel]:
    """By batch, where enough lengths were measured."""
    found = {}
    for batch in dict.fromkeys(batch for batch, _ in measured.decode):
        points = [(c, rate) for (b, c), rate in measured.decode.items() if b == batch]
        if len(points) >= LEAST_POINTS:
            found[batch] = fit(*zip(*points, strict=True))
    return found


def cells(measured: Measured, models: Mapping[int, RateModel]) -> list[Cell]:
    return [
        Cell(batch, context, rate, models[batch].at(context) if batch in models else None)
        for (batch, context), rate in measured.decode.items()
    ]


def table(found: Sequence[Cell], models: Mapping[int, RateModel], measured: Measured) -> str:
    lines = [
        "| batch | context | decode tok/s, measured | fitted | error |",
        "| --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {c.batch} | {c.context} | {c.measured:.1f} | "
        + (f"{c.fitted:.1f} | {c.fitted / c.measured - 1:+.1%} |" if c.fitted else "- | - |")
        for c in found
    ]
    lines += ["", "| batch | R | a | W | b |", "| --- | --- | --- | --- | --- |"]
    lines += [
        f"| {batch} | {m.rate:.1f} | {m.slope:.3g} | {m.knee:.0f} | {m.exponent:.2f} |"
        for batch, m in models.items()
    ]
    lines += ["", "| prompt | prefill tok/s |", "| --- | --- |"]
    lines += [f"| {length} | {rate:.0f} |" for length, rate in measured.prefill.items()]
    return "\n".join(lines) + "\n"


def share_of_decode(
    measured: Measured, models: Mapping[int, RateModel], *, device: str, workload: tuple[int, int]
) -> int | None:
    """Of the time that the workload's prompts and answers take, with the largest batch that was
    fitted; None without any.
    """
    if not models or not measured.prefill:
        return None
    prompt, answer = workload
    rate = models[max(models)].at(prompt + answer / 2)
    nearest = min(measured.prefill, key=lambda length: abs(length - prompt))
    return decode_fraction(
        decode_s=answer / rate, prefill_s=prompt / measured.prefill[nearest], device=device
    )


def patch(fraction: int | None, figures: Mapping[str, Any]) -> dict[str, Any]:
    """A merge patch of the LLMModel: what placement reads, and all figures for people."""
    text = json.dumps(figures, separators=(",", ":"))
    spec = {} if fraction is None else {"spec": {"decodeFraction": fraction}}
    return {"metadata": {"annotations": {ANNOTATION_MEASURED: text}}} | spec


def main(arguments: Sequence[str]) -> int:
    """Print the tables and write the patch; 0, or 1 with the reason on standard error."""
    given = _parser().parse_args(arguments)
    try:
        sys.stdout.write(bench(given))
    except ModelError as error:
        sys.stderr.write(f"{error.reason}: {error}\n")
        return 1
    except OSError as error:
        sys.stderr.write(f"InvalidConfiguration: {error}\n")
        return 1
    return 0


def bench(given: argparse.Namespace) -> str:
    """Measure, write `given.out` if there is one, and return what to print."""
    weights = open_weights(
        given.model, cache_dir=given.weights_cache, plan=read_plan(given.quantization)
    )
    sizes = _sizes(given, weights.config.max_positions)
    blocks = max(sizes.sequence_blocks, given.kv_mib * MIB // weights.config.block_bytes)
    most = max(sizes.batches) * sizes.sequence_blocks
    runner = make_runner(
        weights, device=given.device, num_blocks=min(blocks, most), threads=given.threads
    )
    try:
        measured = measure(runner, sizes)
    finally:
        runner.close()
    models = fits(measured)
    found = cells(measured, models)
    device = _device_name(given.device)
    fraction = share_of_decode(measured, models, device=device, workload=tuple(given.workload))
    figures = {
        "device": device,
        "threads": given.threads,
        "kernelClass": runner.kernel_class,
        "weightsDigest": runner.weights_digest,
        "decode": [_rounded(asdict(cell)) for cell in found],
        "model": {batch: _rounded(asdict(model)) for batch, model in models.items()},
        "prefill": _rounded(measured.prefill),
        "workload": dict(zip(("prompt", "answer"), given.workload, strict=True)),
    }
    if given.out:
        given.out.write_text(json.dumps(patch(fraction, figures), indent=1) + "\n")
    left_out = len(sizes.batches) * len(sizes.contexts) - len(found)
    return (
        f"{device}, {runner.kernel_class}\n\n{table(found, models, measured)}"
        + (f"\nspec.decodeFraction: {fraction}\n" if fraction is not None else "")
        + (f"\n{left_out} left out: more than --kv-mib {given.kv_mib}\n" if left_out else "")
    )


def _sizes(given: argparse.Namespace, most: int) -> Sizes:
    sizes = Sizes(
        batches=given.batches,
        contexts=[c for c in given.contexts or CONTEXTS if c + 1 + given.tokens <= most],
        prompts=[p for p in given.prompts if p <= most],
        tokens=given.tokens,
        rounds=given.rounds,
    )
    if len(set(sizes.contexts)) < LEAST_POINTS:
        raise InvalidConfiguration(
            f"--contexts: the rate model needs {LEAST_POINTS} lengths, each with {given.tokens} "
            f"more tokens within the model's {most}; {len(set(sizes.contexts))} are left"
        )
    return sizes


def _device_name(device: str) -> str:
    if not device.startswith("cuda"):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
        return next(names, device)
    import torch  # noqa: PLC0415 - there for this device only

    return str(torch.cuda.get_device_name())


def _rounded(values: Mapping[Any, Any]) -> dict[Any, Any]:
    """Four digits are more than any measurement has."""
    return {
        key: float(f"{value:.4g}") if isinstance(value, float) else value
        for key, value in values.items()
    }


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError(text)
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sojourn-runtime bench", description="Measure how fast this device runs a model."
    )
    cache = Path.home() / ".cache" / "sojourn" / "weights-cache"
    number: Callable[[str], int] = _positive
    parser.add_argument("model", help="path or URI of the weights")
    parser.add_argument("--device", default="cpu", help="cpu, cpu-amx, cuda, eager or cuda-eager")
    parser.add_argument("--quantization", default="bf16", help="bf16, w8a16, w8a8, or a plan")
    parser.add_argument("--out", type=Path, help="where to write the patch for the LLMModel")
    parser.add_argument("--batches", type=number, nargs="+", default=[1, 8, 32])
    parser.add_argument(
        "--contexts", type=number, nargs="+", help="default: 128 to 4096, as the model has them"
    )
    parser.add_argument("--prompts", type=number, nargs="+", default=[512, 2048])
    parser.add_argument("--tokens", type=number, default=8, help="decoded for each measurement")
    parser.add_argument("--rounds", type=number, default=3, help="of which the best count")
    parser.add_argument(
        "--workload",
        type=number,
        nargs=2,
        default=[1024, 256],
        metavar=("PROMPT", "ANSWER"),
        help="tokens of a usual request, for the share of decode",
    )
    parser.add_argument("--kv-mib", type=number, default=2048, help="memory for KV, at most")
    parser.add_argument("--threads", type=number, default=usable_cpus())
    parser.add_argument("--weights-cache", type=Path, default=cache)
    return parser
