"""Weights in the kernels' layout: converted once into a file of the cache, then mapped
read-only by every process.

The file also holds the config, the tokenizer and the chat template, so that a warm start reads
nothing else. Its name is the digest of the source; its first bytes say how long it must be, so
that a torn file is made anew.
"""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import numpy as np
import numpy.typing as npt

from sojourn_runtime.model.atomic import Chunk, write_atomically
from sojourn_runtime.model.config import ModelConfig
from sojourn_runtime.model.digest import weights_digest
from sojourn_runtime.model.errors import ModelNotFound, UnsupportedModel, WeightsDigestMismatch
from sojourn_runtime.model.gguf import GgufSource
from sojourn_runtime.model.layout import Array, parts
from sojourn_runtime.model.packing import kind_of
from sojourn_runtime.model.quantization import AS_BF16, HEAD, Kind, Kinds, Plan, linears
from sojourn_runtime.model.remote import fetch, forget, is_remote
from sojourn_runtime.model.safetensors import SafetensorsSource
from sojourn_runtime.model.source import TokenizerData, WeightsSource
from sojourn_runtime.progress import Progress

LAYOUT = 2
"""Raise when the bytes of a converted file change their meaning."""
_MAGIC = b"SOJOURN1"
_ALIGN = 4096  # pages: the mapped tensors are then aligned to cache lines too


@dataclass(frozen=True, slots=True)
class Weights:
    """Tensors by name, views of one mapped file: `embedding`, `final_norm`, `head`, and
    `<layer>.<part>`.
    """

    config: ModelConfig
    digest: str
    tokenizer: TokenizerData
    tensors: dict[str, Array]

    @property
    def kinds(self) -> dict[str, Kind]:
        """In which kind each linear lies here."""
        return {name: kind_of(self.linear(name)) for name in linears(self.config)}

    def linear(self, name: str) -> Array:
        """The tensor of a linear; tied embeddings are the head."""
        tied = name == HEAD and HEAD not in self.tensors
        return self.tensors["embedding" if tied else name]


def open_weights(
    uri: str, *, cache_dir: Path, digest: str | None = None, plan: Plan = AS_BF16
) -> Weights:
    """Map the converted weights of `uri`, converting them first if this cache has not seen them
    in the kinds of `plan`.
    """
    remote = is_remote(uri)
    path = fetch(uri, cache_dir=cache_dir) if remote else local_path(uri)
    found = weights_digest(_files_of(path), cache_dir)
    if digest and digest != found:
        if remote:
            forget(uri, cache_dir=cache_dir)
        raise WeightsDigestMismatch(
            f"{uri if remote else path}: digest is {found}, but {digest} is demanded; "
            "fetch the right file or correct LLMModel.spec.digest"
        )
    plan.check(found)
    weights = _mapped(path, found, plan, cache_dir / "weights")
    if weights is None:
        raise ModelNotFound(
            f"{cache_dir}: the converted weights vanished after they were written; "
            "do not clean the cache while sessions start"
        )
    return weights


def _mapped(path: Path, digest: str, plan: Plan, folder: Path) -> Weights | None:
    suffix = "" if plan.label == Kind.BF16 else f"-{plan.label}"
    converted = folder / f"{digest.removeprefix('sha256:')}-{LAYOUT}{suffix}.weights"
    weights = _map(converted)
    if weights is None:
        source = open_source(path)
        write_atomically(converted, _convert(source, digest, plan.kinds(source.config)))
        weights = _map(converted)
    return weights


def open_source(path: Path) -> WeightsSource:
    """The reader for a GGUF file or a Hugging Face folder."""
    return SafetensorsSource(path) if path.is_dir() else GgufSource(path)


def local_path(uri: str) -> Path:
    """The file or folder of a path or file:// URI, which must exist."""
    parsed = urlparse(uri)
    if parsed.scheme not in {"", "file"}:
        raise UnsupportedModel(
            f"{uri}: scheme {parsed.scheme!r} is not supported; mount the weights and use file://"
        )
    path = Path(unquote(parsed.path) if parsed.scheme else uri)
    if not path.exists():
        raise ModelNotFound(
            f"{path}: not found; mount the volume with the weights or correct LLMModel.spec.uri"
        )
    return path


def _files_of(path: Path) -> list[Path]:
    if path.is_dir():
        return SafetensorsSource(path).files()
    return [path]


def _convert(source: WeightsSource, digest: str, kinds: Kinds) -> Iterator[Chunk]:
    tokenizer = source.tokenizer()
    places, end = {}, 0
    for part in parts(source.config, kinds):
        places[part.name] = {"dtype": part.dtype, "shape": part.shape, "offset": end}
        end += part.size + -part.size % _ALIGN
    header = json.dumps(
        {
            "config": source.config.to_json(),
            "digest": digest,
            "tokenizer_json": tokenizer.tokenizer_json,
            "chat_template": tokenizer.chat_template,
            "tensors": places,
            "bytes": end,
        }
    ).encode()
    prefix = _MAGIC + struct.pack("<Q", len(header)) + header
    yield prefix + bytes(-len(prefix) % _ALIGN)
    progress = Progress("converting weights", total=end)
    for part in parts(source.config, kinds):
        array = part.make(source)
        if array.shape != part.shape or array.dtype != part.dtype:
            raise UnsupportedModel(
                f"tensor {part.name} has shape {array.shape} where the config says {part.shape}; "
                "the model's config and weights do not belong together"
            )
        yield array.data.cast("B")
        yield bytes(-array.nbytes % _ALIGN)
        progress.add(part.size + -part.size % _ALIGN)


def _map(path: Path) -> Weights | None:
    """None if there is no such file, or only a part of one."""
    try:
        data: npt.NDArray[np.uint8] = np.memmap(path, np.uint8, mode="r")
    except (FileNotFoundError, ValueError):
        return None
    if data[: len(_MAGIC)].tobytes() != _MAGIC or data.size < _ALIGN:
        return None
    begin = len(_MAGIC) + 8
    (length,) = struct.unpack("<Q", data[len(_MAGIC) : begin].tobytes())
    start = begin + length + -(begin + length) % _ALIGN
    if data.size < start:
        return None
    header = json.loads(data[begin : begin + length].tobytes())
    if data.size != start + header["bytes"]:
        return None
    return Weights(
        config=ModelConfig.from_json(header["config"]),
        digest=header["digest"],
        tokenizer=TokenizerData(
            tokenizer_json=header["tokenizer_json"], chat_template=header["chat_template"]
        ),
        tensors={name: _view(data, start, place) for name, place in header["tensors"].items()},
    )


def _view(data: npt.NDArray[np.uint8], start: int, place: dict[str, Any]) -> Array:
    kind, shape = np.dtype(place["dtype"]), tuple(place["shape"])
    begin = start + place["offset"]
    size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
    tensor: Array = np.asarray(data[begin : begin + size]).view(kind).reshape(shape)
    return tensor
