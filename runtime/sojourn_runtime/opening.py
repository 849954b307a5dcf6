"""Opens the model that a session runs, and measures the room for its KV.

The one place that joins settings and `model/`; imported when the port is bound already, since all
that is heavy hangs from here.
"""

from importlib.util import find_spec
from pathlib import Path

from sojourn_api.gpus import WORKSPACE_BYTES

from sojourn_runtime.grammar import Grammars
from sojourn_runtime.model.errors import ModelError
from sojourn_runtime.model.runner import make_runner
from sojourn_runtime.model.sampling import sample
from sojourn_runtime.model.tokenizer import Detokenizer, Tokenizer
from sojourn_runtime.model.weights import Weights, open_weights
from sojourn_runtime.session import blocks_for
from sojourn_runtime.settings import Settings
from sojourn_runtime.worker import Model


class ContextTooLong(ModelError):  # noqa: N818 - named as the reason is
    """The model or the grant has no room for the context length asked for."""

    reason = "ContextTooLong"


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
    )
    context = _context_length(settings, weights)
    runner = make_runner(
        weights,
        device=settings.device,
        num_blocks=_blocks(settings, weights, context),
        threads=settings.threads or None,
    )
    tokenizer = ChatTokenizer(weights)
    return Model(
        runner=runner,
        tokenizer=tokenizer,
        decoder=lambda: Detokenizer(tokenizer),
        sample=sample,
        eos=tokenizer.eos_ids,
        context_length=context,
        grammars=_grammars(weights, tokenizer),
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


def _context_length(settings: Settings, weights: Weights) -> int:
    most = weights.config.max_positions
    if settings.context_length > most:
        raise ContextTooLong(
            f"context length {settings.context_length}: the model {settings.model} has {most}; "
            "ask for no more"
        )
    return settings.context_length or most


def _blocks(settings: Settings, weights: Weights, context: int) -> int:
    """As many as the grant holds; without a grant, some contexts' worth."""
    size = weights.config.block_bytes
    least = blocks_for(context, contexts=1)
    if settings.kv_bytes:
        blocks = settings.kv_bytes // size
    elif settings.granted_bytes:
        tensors = sum(tensor.nbytes for tensor in weights.tensors.values())
        blocks = (settings.granted_bytes - tensors - WORKSPACE_BYTES) // size
    else:
        return blocks_for(context)
    if blocks < least:
        raise ContextTooLong(
            f"context length {context} needs {least * size} bytes of KV, the grant leaves room for "
            f"{max(0, blocks) * size}; ask for more slices or for a shorter context"
        )
    return min(blocks, blocks_for(context, contexts=16))
