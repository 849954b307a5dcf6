"""`sojourn-runtime calibrate MODEL`: measures how much each linear minds being quantised, and
writes the plan that `--quantization` takes.

A linear is quantised alone, all others staying bf16, on the first half of a text. Plans chosen from
that are measured as a whole on the second half; the cheapest that keeps the target there is taken.
"""

import argparse
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sojourn_runtime.model.errors import InvalidConfiguration, ModelError
from sojourn_runtime.model.protocol import Logits
from sojourn_runtime.model.quality import Quality, divergence, logits_of, quality
from sojourn_runtime.model.quantization import (
    HEAD,
    Kind,
    Plan,
    kernel_class,
    linears,
    plan_to_json,
)
from sojourn_runtime.model.runner import usable_cpus
from sojourn_runtime.model.sensitivity import Sensitivity, above_noise, choose
from sojourn_runtime.model.tokenizer import Tokenizer
from sojourn_runtime.model.weights import Weights, open_weights

TEXT = Path(__file__).with_name("calibration.txt")
LEAST_TOKENS = 64
"""Of each half; fewer say nothing about a model."""
PROBE_TOKENS = 128
"""Of the first half, for each linear alone: these only rank linears, and there are many."""
HALVINGS = 8
"""Of what is allowed: to less than a hundredth of what all W8A8 would be."""


@dataclass(frozen=True, slots=True)
class Bench:
    """One model in all kinds, and the two halves of the text as tokens."""

    kinds: Mapping[Kind, Weights]
    learn: Sequence[int]
    confirm: Sequence[int]
    threads: int

    @property
    def plain(self) -> Weights:
        return self.kinds[Kind.BF16]

    def mixed(self, kinds: Mapping[str, Kind]) -> Weights:
        """The model with these linears in these kinds, the others in bf16."""
        tensors = dict(self.plain.tensors)
        for name, kind in kinds.items():
            tied = name == HEAD and HEAD not in tensors
            tensors["embedding" if tied else name] = self.kinds[kind].linear(name)
        return replace(self.plain, tensors=tensors)

    def logits(self, weights: Weights, tokens: Sequence[int]) -> Logits:
        return logits_of(weights, tokens, threads=self.threads)


def open_bench(uri: str, *, cache_dir: Path, text: str, tokens: int, threads: int) -> Bench:
    """Convert the model into all kinds; raises InvalidConfiguration if the text is too short."""
    kinds = {kind: open_weights(uri, cache_dir=cache_dir, plan=Plan(kind)) for kind in Kind}
    encoded = Tokenizer(kinds[Kind.BF16]).encode(text)
    half = min(len(encoded) // 2, tokens, kinds[Kind.BF16].config.max_positions)
    if half < LEAST_TOKENS:
        raise InvalidConfiguration(
            f"the text has {len(encoded)} tokens of which {half} could be used for each half; "
            f"give one with {2 * LEAST_TOKENS} at least"
        )
    return Bench(kinds, encoded[:half], encoded[half : 2 * half], threads)


def measure(bench: Bench) -> list[Sensitivity]:
    """Every linear alone, in both int8 kinds; reports on standard error as it goes."""
    tokens = bench.learn[:PROBE_TOKENS]
    reference = bench.logits(bench.plain, tokens)

    def alone(name: str, kind: Kind) -> float:
        changed = bench.logits(bench.mixed({name: kind}), tokens)
        return float(divergence(changed, reference).mean())

    found = []
    for name in linears(bench.plain.config):
        linear = Sensitivity(
            name=name,
            weights=bench.plain.linear(name).size,
            w8a16=alone(name, Kind.W8A16),
            w8a8=alone(name, Kind.W8A8),
        )
        sys.stderr.write(f"{name:20} w8a16 {linear.w8a16:.6f}  w8a8 {linear.w8a8:.6f}\n")
        found.append(linear)
    return found


def confirmed(
    bench: Bench, measured: Sequence[Sensitivity], *, target: float
) -> tuple[dict[str, Kind], Quality]:
    """The cheapest kinds that keep the target on the second half; all bf16 always do.

    Divergences that add up on the first half are only a guess of those of a whole plan, so what is
    allowed of them is searched for.
    """
    reference = bench.logits(bench.plain, bench.confirm)
    best = (
        dict.fromkeys((linear.name for linear in measured), Kind.BF16),
        quality(reference, reference, bench.confirm),
    )

    def keep(allowed: float) -> bool:
        nonlocal best
        kinds = choose(measured, allowed=allowed)
        found = quality(bench.logits(bench.mixed(kinds), bench.confirm), reference, bench.confirm)
        sys.stderr.write(f"{spelt(kinds)}: KL {found.kl:.4f}\n")
        if found.kl <= target:
            best = kinds, found
        return found.kl <= target

    keeps, breaks = 0.0, sum(linear.w8a8 for linear in measured)
    if keep(breaks) or not keep(keeps):
        return best
    for _ in range(HALVINGS):
        allowed = (keeps + breaks) / 2
        if keep(allowed):
            keeps = allowed
        else:
            breaks = allowed
    return best


def spelt(kinds: Mapping[str, Kind]) -> str:
    """How many linears are of which kind."""
    return ", ".join(f"{sum(k is kind for k in kinds.values())} {kind}" for kind in Kind)


def report(bench: Bench, kinds: Mapping[str, Kind], chosen: Quality) -> dict[str, Any]:
    """Quality on the second half, by kernel class: the pure ones, and the plan's."""
    reference = bench.logits(bench.plain, bench.confirm)
    found = {}
    for weights in bench.kinds.values():
        logits = bench.logits(weights, bench.confirm)
        found[kernel_class(weights.kinds)] = quality(logits, reference, bench.confirm)
    found[kernel_class(kinds)] = chosen
    return {name: asdict(each) for name, each in found.items()}


def plan_of(kinds: Mapping[str, Kind], digest: str) -> Plan:
    finer = {name: kind for name, kind in kinds.items() if kind is not Kind.W8A8}
    return Plan(Kind.W8A8, finer, digest)


def main(arguments: Sequence[str]) -> int:
    """Write the plan and print its quality; 0, or 1 with the reason on standard error."""
    given = _parser().parse_args(arguments)
    try:
        written = calibrate(given)
    except ModelError as error:
        sys.stderr.write(f"{error.reason}: {error}\n")
        return 1
    except (OSError, UnicodeDecodeError) as error:
        sys.stderr.write(f"InvalidConfiguration: {given.text} or {given.out}: {error}\n")
        return 1
    sys.stdout.write(table(written["measured"]["quality"]))
    return 0


def calibrate(given: argparse.Namespace) -> dict[str, Any]:
    """What is written to `given.out`: the plan, and how it was found."""
    text = given.text.read_text()
    bench = open_bench(
        str(given.model),
        cache_dir=given.weights_cache,
        text=text,
        tokens=given.tokens,
        threads=given.threads,
    )
    measured = measure(bench)
    kinds, chosen = confirmed(bench, above_noise(measured), target=given.target_kl)
    written = plan_to_json(plan_of(kinds, bench.plain.digest)) | {
        "measured": {
            "text": f"sha256:{hashlib.sha256(text.encode()).hexdigest()}",
            "targetKl": given.target_kl,
            "quality": report(bench, kinds, chosen),
            "alone": {each.name: {"w8a16": each.w8a16, "w8a8": each.w8a8} for each in measured},
        }
    }
    given.out.write_text(json.dumps(written, indent=1) + "\n")
    return written


def table(found: Mapping[str, Mapping[str, float]]) -> str:
    lines = [
        "| kernel class | KL | same likeliest token | perplexity |",
        "| --- | --- | --- | --- |",
    ]
    lines += [
        f"| {name} | {each['kl']:.4f} | {each['top1']:.1%} | {each['perplexity']:.2f} |"
        for name, each in found.items()
    ]
    return "\n".join(lines) + "\n"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sojourn-runtime calibrate", description="Write the quantization plan of a model."
    )
    cache = Path.home() / ".cache" / "sojourn" / "weights-cache"
    parser.add_argument("model", help="path or URI of the weights")
    parser.add_argument("--out", type=Path, required=True, help="where to write the plan")
    parser.add_argument(
        "--text", type=Path, default=TEXT, help="like what the model will see; default: ours"
    )
    parser.add_argument("--target-kl", type=float, default=0.02, help="from bf16, in nats")
    parser.add_argument("--tokens", type=int, default=512, help="of each half of the text, at most")
    parser.add_argument("--threads", type=int, default=usable_cpus())
    parser.add_argument("--weights-cache", type=Path, default=cache)
    return parser
