"""Opens the model that a session runs, and measures the room for its KV.

The one place that joins settings and `model/`; imported when the port is bound already, since all
that is heavy hangs from here.
"""

from importlib.util import find_spec
from pathlib import Path

from sojourn_api.gpus import WORKSPACE_BYTES
from sojourn_api.names import CONTEXT_TOO_LONG
from sojourn_api.quantity import size
from sojourn_api.weights import Numbers, differences, grave, told

from sojourn_runtime.grammar import Grammars
from sojourn_runtime.model.errors import ModelError, ModelMismatch
from sojourn_runtime.model.protocol import Runner
from sojourn_runtime.model.quantization import read_plan
from sojourn_runtime.model.runner import make_runner, usable_cpus
from sojourn_runtime.model.sampling import sample
from sojourn_runtime.model.shards.runner import ShardedRunner, open_shards
from sojourn_runtime.model.tokenizer import Detokenizer, Tokenizer
from sojourn_runtime.model.weights import Weights, open_weights
from sojourn_runtime.session import blocks_for
from sojourn_runtime.settings import Settings
from sojourn_runtime.worker import Model


class ContextTooLong(ModelError):  # noqa: N818 - named as the reason is
    """The model or the grant has no room for the context length asked for."""

    reason = CONTEXT_TOO_LONG


class ChatTokenizer(Tokenizer):
    """The model's tokenizer with what the server asks beside text."""

    def __init__(self, weights: Weights) -> None:
        super().__init__(weights)
        self.vocab_size = weights.config.vocab_size
        template = weights.tokenizer.chat_template or ""
        # the one form of calls that the server can tell from text
        self.knows_tools = "tools" in template and "<tool_call>" in template


def open_model(settings: Settings) -> Model:
    """The model with its KV pool; raises a ModelError that names the remedy."""
    weights = open_weights(
        settings.model,
        cache_dir=_cache(settings),
        digest=settings.weights_digest or None,
        plan=read_plan(settings.quantization),
    )
    numbers = _numbers(settings, weights)
    context = _context_length(settings, weights)
    runner = _runner(settings, weights, num_blocks=pool_blocks(settings, weights, context))
    tokenizer = ChatTokenizer(weights)
    return Model(
        runner=runner,
        tokenizer=tokenizer,
        decoder=lambda: Detokenizer(tokenizer),
        sample=sample,
        eos=tokenizer.eos_ids,
        context_length=context,
        grammars=_grammars(weights, tokenizer),
        numbers=numbers,
        watch=runner.watch if isinstance(runner, ShardedRunner) else lambda _: None,
    )


def _runner(settings: Settings, weights: Weights, *, num_blocks: int) -> Runner:
    if settings.shards == 1:
        return make_runner(
            weights,
            device=settings.device,
            num_blocks=num_blocks,
            threads=settings.threads or None,
        )
    return open_shards(
        weights,
        shards=settings.shards,
        uri=settings.model,
        cache_dir=_cache(settings),
        quantization=settings.quantization,
        device=settings.device,
        num_blocks=num_blocks,
        threads=settings.threads or max(1, usable_cpus() // settings.shards),
    )


def _grammars(weights: Weights, tokenizer: ChatTokenizer) -> Grammars | None:
    """Structured output, where its library is installed."""
    if find_spec("llguidance") is None:
        return None
    return Grammars(
        weights.tokenizer.tokenizer_json,
        vocabulary=tokenizer.vocab_size,
        eos=tokenizer.eos_ids,
    )


def _cache(settings: Settings) -> Path:
    if settings.weights_cache:
        return Path(settings.weights_cache)
    return Path.home() / ".cache" / "sojourn" / "weights-cache"


def _numbers(settings: Settings, weights: Weights) -> Numbers:
    """Those of the weights; ModelMismatch where the LLMModel's would place sessions wrongly.

    Other differences are the operator's to tell: it reads both.
    """
    found = weights.config.numbers(weight_bytes=_bytes(weights))
    wrong = differences(settings.model_numbers, found)
    if grave(wrong):
        raise ModelMismatch(told(settings.model_name, wrong))
    return found


def _bytes(weights: Weights) -> int:
    return sum(tensor.nbytes for tensor in weights.tensors.values())


def _context_length(settings: Settings, weights: Weights) -> int:
    most = weights.config.max_positions
    if settings.context_length > most:
        raise ContextTooLong(
            f"context length {settings.context_length}: the model {settings.model} has {most}; "
            "lower spec.contextLength (--context-length), or leave it out"
        )
    return settings.context_length or most


def _granted_blocks(settings: Settings, weights: Weights) -> int:
    """What one shard's grant holds: of the one with the most key heads, so the most of the rest."""
    config, tensors = weights.config, _bytes(weights)
    if settings.shards > 1 and config.tied_embeddings:  # split by columns, and by rows as the head
        tensors += weights.tensors["embedding"].nbytes
    heads = -(-config.kv_heads // settings.shards)
    room = settings.granted_bytes // settings.shards - WORKSPACE_BYTES
    return (room - tensors * heads // config.kv_heads) // (
        config.block_bytes // config.kv_heads * heads
    )


def pool_blocks(settings: Settings, weights: Weights, context: int) -> int:
    """As many as the grant holds; without a grant, some contexts' worth."""
    block = weights.config.block_bytes
    least = blocks_for(context, contexts=1)
    if settings.kv_bytes:
        blocks = settings.kv_bytes // block
    elif settings.granted_bytes:
        blocks = _granted_blocks(settings, weights)
    else:
        return blocks_for(context)
    if blocks < least:
        raise ContextTooLong(
            f"context length {context} needs {size(least * block)} of KV, the grant leaves room "
            f"for {size(max(0, blocks) * block)}; ask for more slices (spec.resources.slices), or "
            "lower spec.contextLength, as far as no start has served with more"
        )
    return min(blocks, blocks_for(context, contexts=16))
