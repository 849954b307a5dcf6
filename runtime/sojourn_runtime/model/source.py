"""What a file of weights offers to the conversion, whatever its format.

Names are those of Hugging Face's Llama (`model.layers.0.self_attn.q_proj.weight`); `gguf` and
`safetensors` implement this.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sojourn_runtime.model.config import ModelConfig
from sojourn_runtime.model.packing import Floats


@dataclass(frozen=True, slots=True)
class TokenizerData:
    """`tokenizer_json` in the format of the `tokenizers` library; the template in Jinja, empty
    if there is none.
    """

    tokenizer_json: str
    chat_template: str


class WeightsSource(Protocol):
    """An opened and checked model; tensors are read on demand."""

    @property
    def config(self) -> ModelConfig: ...

    def files(self) -> list[Path]:
        """All files whose bytes decide what the model is."""

    def tokenizer(self) -> TokenizerData: ...

    def tensor(self, name: str) -> Floats:
        """Rotary halves split as Hugging Face has them; raises UnsupportedModel for a missing
        name or format.
        """
