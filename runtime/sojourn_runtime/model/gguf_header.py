"""Parses the header of a GGUF file, and says how many bytes the file must have.

The `gguf` library takes seconds for this and does not notice a file that ends early.
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sojourn_runtime.model.errors import (
    UnknownWeightsFormat,
    UnsupportedModel,
    WeightsTruncated,
)

MAGIC = b"GGUF"
_STRING, _ARRAY = 8, 9
_SCALARS = dict(enumerate(("<B", "<b", "<H", "<h", "<I", "<i", "<f", "<?"))) | {
    10: "<Q",
    11: "<q",
    12: "<d",
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    shape: tuple[int, ...]
    """Rows first, as numpy has it."""
    kind: int
    offset: int


class _Cursor:
    """Reads the header's little-endian values one after the other."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self.at = 0

    def scalar(self, form: str) -> Any:
        value = struct.unpack_from(form, self._data, self.at)[0]
        self.at += struct.calcsize(form)
        return value

    def string(self) -> str:
        length = self.scalar("<Q")
        raw = bytes(self._data[self.at : self.at + length])
        if len(raw) != length:
            raise struct.error("string beyond the end")
        self.at += length
        return raw.decode("utf-8", errors="replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            inner, count = self.scalar("<I"), self.scalar("<Q")
            if inner == _STRING:
                return [self.string() for _ in range(count)]
            values = np.frombuffer(self._data, np.dtype(_SCALARS[inner]), count, self.at)
            self.at += values.nbytes
            return values.tolist()
        return self.scalar(_SCALARS[kind])


@dataclass(frozen=True, slots=True)
class Header:
    """`meta`: the key-value pairs. `start`: where the tensors' data begins in the file."""

    meta: dict[str, Any]
    tensors: dict[str, TensorInfo]
    start: int


def read_header(path: Path, data: npt.NDArray[np.uint8]) -> Header:
    """The header of a file that is as long as it promises; raises WeightsTruncated or
    UnknownWeightsFormat otherwise.
    """
    begin = data[: len(MAGIC)].tobytes()
    if not MAGIC.startswith(begin):
        alone = path.suffix == ".safetensors"
        raise UnknownWeightsFormat(
            path, "a safetensors file needs its folder" if alone else "no known format of weights"
        )
    try:
        header = _parse(data.data)
    except (struct.error, ValueError, IndexError) as error:
        raise WeightsTruncated(
            f"{path}: the GGUF header is incomplete ({error}); fetch the file again"
        ) from error
    ends = (header.start + info.offset + tensor_bytes(info) for info in header.tensors.values())
    needed = max(ends, default=0)
    if data.nbytes < needed:
        raise WeightsTruncated(
            f"{path}: {data.nbytes} bytes, but its header promises {needed}; fetch the file again"
        )
    return header


def _parse(data: memoryview) -> Header:
    cursor = _Cursor(data)
    cursor.at = len(MAGIC)
    version = cursor.scalar("<I")
    if version not in {2, 3}:
        raise UnsupportedModel(
            f"GGUF version {version} is not supported; convert the model to version 3"
        )
    tensor_count, pair_count = cursor.scalar("<Q"), cursor.scalar("<Q")
    meta = {cursor.string(): cursor.value(cursor.scalar("<I")) for _ in range(pair_count)}
    tensors = {}
    for _ in range(tensor_count):
        name, dimensions = cursor.string(), cursor.scalar("<I")
        shape = tuple(reversed([cursor.scalar("<Q") for _ in range(dimensions)]))
        tensors[name] = TensorInfo(
            shape=shape, kind=cursor.scalar("<I"), offset=cursor.scalar("<Q")
        )
    alignment = meta.get("general.alignment", 32)
    return Header(meta, tensors, start=-(-cursor.at // alignment) * alignment)


def quantisation(kind: int) -> Any:
    """The `gguf` library's name for a tensor type."""
    from gguf.constants import GGMLQuantizationType  # noqa: PLC0415

    try:
        return GGMLQuantizationType(kind)
    except ValueError as error:
        raise UnsupportedModel(
            f"GGUF tensor type {kind} is unknown; use Q8_0, Q4_K_M, F16 or BF16"
        ) from error


def tensor_bytes(info: TensorInfo) -> int:
    """Bytes of a tensor in the file."""
    from gguf.constants import GGML_QUANT_SIZES  # noqa: PLC0415

    elements, size = GGML_QUANT_SIZES[quantisation(info.kind)]
    count = int(np.prod(info.shape, dtype=np.int64))
    return count // int(elements) * int(size)
