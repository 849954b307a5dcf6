"""Reads a Llama-family model from a Hugging Face folder: config.json, tokenizer.json and
safetensors files.

The files are mapped, not loaded; their headers are checked against their sizes before anything
is converted.
"""

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sojourn_runtime.model import families
from sojourn_runtime.model.errors import (
    ModelNotFound,
    UnknownWeightsFormat,
    UnsupportedModel,
    WeightsTruncated,
)
from sojourn_runtime.model.hf_config import model_config
from sojourn_runtime.model.packing import Floats, from_bf16
from sojourn_runtime.model.source import TokenizerData

_TYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(np.uint16),
}
_EXTRA_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)


@dataclass(frozen=True, slots=True)
class _Stored:
    data: npt.NDArray[np.uint8]
    kind: str
    shape: tuple[int, ...]


class SafetensorsSource:
    """One folder, its headers read and its sizes checked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._weights = sorted(folder.glob("*.safetensors"))
        if not self._weights:
            raise ModelNotFound(
                f"{folder}: no *.safetensors file; point the URI at a folder with weights"
            )
        self._tensors = {
            name: stored for path in self._weights for name, stored in _open(path).items()
        }
        raw = _json(folder / "config.json")
        if not raw:
            raise ModelNotFound(
                f"{folder}/config.json: not found; point the URI at a folder with config.json"
            )
        generation = _json(folder / "generation_config.json")
        try:
            self.config = model_config(
                folder,
                raw,
                eos=generation.get("eos_token_id", raw.get("eos_token_id")),
                tied="lm_head.weight" not in self._tensors,
            )
        except KeyError as error:
            raise UnsupportedModel(
                f"{folder}/config.json lacks {error}; fetch the model again"
            ) from error

    def files(self) -> list[Path]:
        extra = [self.folder / name for name in _EXTRA_FILES]
        return [*self._weights, *(path for path in extra if path.exists())]

    def tensor(self, name: str) -> Floats:
        whole, rows = families.fused(self.config, name)
        if self.config.architecture == "mixtral":
            whole = families.mixtral(whole)
        return self._stored(whole)[rows]

    def _stored(self, name: str) -> Floats:
        stored = self._tensors.get(name)
        if stored is None:
            raise UnsupportedModel(
                f"{self.folder}: tensor {name} is missing; is this a Llama-family model?"
            )
        kind = _TYPES.get(stored.kind)
        if kind is None:
            raise UnsupportedModel(
                f"{self.folder}: {name} is stored as {stored.kind}; use weights in BF16, F16 or F32"
            )
        values = stored.data.view(kind).reshape(stored.shape)
        return from_bf16(values) if stored.kind == "BF16" else values.astype(np.float32)

    def tokenizer(self) -> TokenizerData:
        path = self.folder / "tokenizer.json"
        if not path.exists():
            raise ModelNotFound(f"{path}: not found; add the tokenizer.json of the model")
        template = _json(self.folder / "tokenizer_config.json").get("chat_template", "")
        jinja = self.folder / "chat_template.jinja"
        if jinja.exists():
            template = jinja.read_text()
        if isinstance(template, list):  # several named templates
            named = {entry["name"]: entry["template"] for entry in template}
            template = named.get("default", "")
        return TokenizerData(tokenizer_json=path.read_text(), chat_template=template)


def _open(path: Path) -> dict[str, _Stored]:
    size = path.stat().st_size
    broken = f"{path}: {size} bytes, but its header promises more; fetch the file again"
    if size < 8:
        raise WeightsTruncated(broken)
    data: npt.NDArray[np.uint8] = np.memmap(path, np.uint8, mode="r")
    (length,) = struct.unpack("<Q", data[:8].tobytes())
    if data[8:9].tobytes() not in (b"{", b""):
        raise UnknownWeightsFormat(path, "no safetensors file, whatever its name says")
    if size < 8 + length:
        raise WeightsTruncated(broken)
    start = 8 + length
    try:
        header: dict[str, Any] = json.loads(data[8:start].tobytes())
        header.pop("__metadata__", None)
        end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    except (ValueError, KeyError, TypeError) as error:
        why = f"its safetensors header cannot be read ({error})"
        raise UnknownWeightsFormat(path, why) from error
    if size < start + end:
        raise WeightsTruncated(broken)
    return {
        name: _Stored(
            data=data[start + entry["data_offsets"][0] : start + entry["data_offsets"][1]],
            kind=entry["dtype"],
            shape=tuple(entry["shape"]),
        )
        for name, entry in header.items()
    }


def _json(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        value: dict[str, Any] = json.loads(path.read_text())
    except ValueError as error:
        raise UnsupportedModel(f"{path}: no JSON ({error}); fetch the model again") from error
    return value
