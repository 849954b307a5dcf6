"""A real model answers sensibly, in bits that are the same everywhere."""

import hashlib
import itertools
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from sojourn_runtime.model.cpu import CpuRunner
from sojourn_runtime.model.protocol import Interrupted, Segment
from sojourn_runtime.model.quality import logits_of, quality
from sojourn_runtime.model.quantization import Kind, Plan
from sojourn_runtime.model.tokenizer import Tokenizer
from sojourn_runtime.model.weights import Weights, open_weights

from tests.unit.processors import variants

NewRunner = Callable[..., CpuRunner]
TEXT = (
    "The lighthouse keeper counted ships for 40 years. Every evening he wrote the number into a "
    "book, and every morning he asked himself whether anybody would read it. When the light was "
    "made automatic, a student found the books: 14,610 evenings, 97,233 ships. She counted how "
    "many of them had come home, and wrote the first page of what became her life's work about "
    "the sea, about numbers that nobody asks for, and about the patience of those who keep them."
)
BITS = {
    "cpu-fma-bf16-v1": "76c4b67a93f3341150dd729058e86ba9d99c9d56272730759ccb7b4d8de66611",
    "cpu-fma-w8a16-v1": "eafde1d18bf8baff87ceac92a74c216afd3c437db307d5fbca97b442a034ae85",
    "cpu-vnni-w8a8-v1": "e26eddc2d15263fb2523b5457020199601e912d6f288fac50b0da00d8aeb87da",
}
"""What the kernel class promises: the digest of logits and KV of TEXT. New bits are a new class."""
QUALITY = {Kind.BF16: 1e-9, Kind.W8A16: 0.02, Kind.W8A8: 0.1}
"""The largest mean divergence from bf16 that is still this quantization and no fault of it."""


def forward(runner: CpuRunner, *segments: Segment) -> npt.NDArray[np.float32]:
    logits = runner.forward(segments)
    assert not isinstance(logits, Interrupted)
    return logits


def greedy(runner: CpuRunner, tokens: Sequence[int], count: int) -> list[int]:
    blocks, made = range(8), list[int]()
    logits = forward(runner, Segment(tokens, 0, blocks))
    for position in range(len(tokens), len(tokens) + count):
        made.append(int(logits[0].argmax()))
        logits = forward(runner, Segment(made[-1:], position, blocks))
    return made


def digest(runner: CpuRunner, tokens: Sequence[int]) -> str:
    """Of all logits, and of the KV of the full blocks."""
    logits = forward(runner, Segment(tokens, 0, (0, 1, 2), "all"))
    full = len(tokens) // runner.block_tokens
    return hashlib.sha256(logits.tobytes() + runner.kv[:full].tobytes()).hexdigest()


def test_paris_is_the_capital_of_france(new_runner: NewRunner, tokenizer: Tokenizer) -> None:
    made = greedy(new_runner(), tokenizer.encode("The capital of France is"), 2)
    assert tokenizer.decode(made).startswith(" Paris")


def test_a_chat_is_answered(new_runner: NewRunner, tokenizer: Tokenizer) -> None:
    prompt = tokenizer.encode_chat([{"role": "user", "content": "What is the capital of Japan?"}])
    made = greedy(new_runner(threads=2), prompt, 9)
    assert "Tokyo" in tokenizer.decode(made)
    assert tokenizer.eos_ids & set(made)


@pytest.fixture(scope="module", params=Kind)
def of_a_kind(request: pytest.FixtureRequest, model_file: Path, weights_cache: Path) -> Weights:
    """The model, all its linears in one kind."""
    return open_weights(str(model_file), cache_dir=weights_cache, plan=Plan(request.param))


@pytest.mark.parametrize("variant", variants("avx2", "avxvnni", "avx512", "avx512vnni"))
def test_the_bits_are_those_of_the_kernel_class(
    of_a_kind: Weights, tokenizer: Tokenizer, variant: str
) -> None:
    runner = CpuRunner(of_a_kind, num_blocks=24, threads=2, variant=variant)
    tokens = tokenizer.encode(TEXT)
    assert 64 < len(tokens) < 192
    assert digest(runner, tokens) == BITS[runner.kernel_class]


def test_int8_keeps_the_distributions(
    of_a_kind: Weights, smollm2: Weights, tokenizer: Tokenizer
) -> None:
    tokens = tokenizer.encode(TEXT)
    logits, reference = (logits_of(each, tokens, threads=2) for each in (of_a_kind, smollm2))
    (kind,) = set(of_a_kind.kinds.values())
    assert quality(logits, reference, tokens).kl <= QUALITY[kind]


@pytest.mark.parametrize("cuts", [(37,), (37, 64), (100,), (1, 2, 90)])
def test_chunks_equal_one_pass(
    new_runner: NewRunner, tokenizer: Tokenizer, cuts: tuple[int, ...]
) -> None:
    tokens, blocks = tokenizer.encode(TEXT)[:101], (0, 1)
    chunked, whole = new_runner(threads=2), new_runner()
    expected = forward(whole, Segment(tokens, 0, blocks, "all"))
    parts = [
        forward(chunked, Segment(tokens[begin:end], begin, blocks, "all"))
        for begin, end in itertools.pairwise([0, *cuts, len(tokens)])
    ]
    assert np.concatenate(parts).tobytes() == expected.tobytes()
    assert chunked.kv.tobytes() == whole.kv.tobytes()


def test_weights_are_mapped_and_not_copied(model_file: Path, weights_cache: Path) -> None:
    """So they lie in the page cache once, however many processes compute them."""
    program = (
        "from pathlib import Path\n"
        "from sojourn_runtime.model.protocol import Segment\n"
        "from sojourn_runtime.model.runner import open_runner\n"
        "def memory():\n"
        "    status = Path('/proc/self/status').read_text()\n"
        "    lines = dict(line.split(':', 1) for line in status.splitlines())\n"
        "    return [int(lines[kind].split()[0]) << 10 for kind in ('RssAnon', 'RssFile')]\n"
        "before = memory()\n"
        f"runner = open_runner({str(model_file)!r}, cache_dir=Path({str(weights_cache)!r}),\n"
        "                     num_blocks=1)\n"
        "runner.forward([Segment([1, 2, 3], 0, (0,))])\n"
        "print(*(now - then for now, then in zip(memory(), before)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    own, mapped = map(int, done.stdout.split())
    bytes_of_weights = 269_100_288
    assert mapped > 0.9 * bytes_of_weights
    assert own < 0.3 * bytes_of_weights


def test_a_warm_start_on_a_folder_imports_nothing_heavy(
    model_file: Path, weights_cache: Path, tmp_path: Path
) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from sojourn_runtime.model.runner import open_runner\n"
        "from sojourn_runtime.context.open_store import open_store\n"
        f"open_store({tmp_path.as_uri()!r})\n"
        f"open_runner({str(model_file)!r}, cache_dir=Path({str(weights_cache)!r}), num_blocks=1)\n"
        "heavy = {'torch', 'gguf', 'jinja2', 'transformers', 'obstore', 'fsspec'}\n"
        "print(*sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""
