"""Turns matrices into the kernels' layout: panels of 32 outputs, as bf16 (see `kernels/linear.h`)
or as bytes with their scales (see `kernels/bytes.h`).
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sojourn_runtime.model.quantization import Kind

PANEL = 32
SCALE_BYTES = 4 * PANEL
"""Behind the bytes of a panel: a float for each output."""

Floats = npt.NDArray[np.float32]
Bits = npt.NDArray[np.uint16]
Whole = npt.NDArray[np.int8]

DTYPES: Final = {Kind.BF16: "uint16", Kind.W8A16: "int8", Kind.W8A8: "uint8"}
"""How a packed tensor shows its kind."""


def to_bf16(values: Floats) -> Bits:
    """The nearest bf16 of each value, ties to even, as its 16 bits."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)


def from_bf16(bits: Bits) -> Floats:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def panels(weight: Floats) -> Bits:
    """[outputs, inputs] -> [panels, inputs, 32]; outputs j and 16 + j of a panel are neighbours."""
    outputs, inputs = weight.shape
    count = -(-outputs // PANEL)
    rows = np.zeros((count * PANEL, inputs), np.uint16)
    rows[:outputs] = to_bf16(weight)
    return _interleave(rows.reshape(count, 2, PANEL // 2, inputs))


def gate_up_rows(gate: Floats, up: Floats) -> Floats:
    """Sixteen rows of gate and the same sixteen of up in turn: of a panel, SwiGLU finds both in
    one register pair.
    """
    inner, inputs = gate.shape
    shape = (inner // 16, 16, inputs)
    return np.stack([gate.reshape(shape), up.reshape(shape)], axis=1).reshape(2 * inner, inputs)


def quantise(weight: Floats) -> tuple[Whole, Floats]:
    """Whole numbers in -127..127 and, for each output, what they are to be multiplied with."""
    scales: Floats = np.abs(weight).max(axis=1).astype(np.float32) / np.float32(127)
    divisors = np.where(scales > 0, scales, np.float32(1))
    whole = np.rint(weight / divisors[:, None]).clip(-127, 127).astype(np.int8)
    return whole, scales


def byte_panels(weight: Floats) -> Whole:
    """[outputs, inputs] -> [panels, inputs * 32 + scales]: within a panel [inputs][32]."""
    whole, scales = quantise(weight)
    return _with_scales(_padded(whole).transpose(0, 2, 1), scales).view(np.int8)


def quad_panels(weight: Floats) -> npt.NDArray[np.uint8]:
    """[outputs, inputs] -> [panels, inputs * 32 + scales]: within a panel [inputs / 4][32][4],
    each byte raised by 128, since VNNI wants one side unsigned.
    """
    whole, scales = quantise(weight)
    raised = (_padded(whole).view(np.uint8)) ^ np.uint8(128)
    count, _, inputs = raised.shape
    quads = raised.reshape(count, PANEL, inputs // 4, 4).transpose(0, 2, 1, 3)
    return _with_scales(quads, scales)


def _padded(whole: Whole) -> Whole:
    """In whole panels: [panels, 32, inputs]."""
    outputs, inputs = whole.shape
    count = -(-outputs // PANEL)
    rows = np.zeros((count * PANEL, inputs), np.int8)
    rows[:outputs] = whole
    return rows.reshape(count, PANEL, inputs)


def _with_scales(ordered: npt.NDArray[Any], scales: Floats) -> npt.NDArray[np.uint8]:
    count = len(ordered)
    behind = np.zeros((count, PANEL), np.float32)
    behind.reshape(-1)[: len(scales)] = scales
    body = np.ascontiguousarray(ordered).reshape(count, -1).view(np.uint8)
    return np.concatenate([body, behind.view(np.uint8)], axis=1)


def unpack(packed: Bits, outputs: int) -> Floats:
    """The inverse of `panels`."""
    count, inputs, _ = packed.shape
    halves = packed.reshape(count, inputs, PANEL // 2, 2).transpose(0, 3, 2, 1)
    return from_bf16(np.ascontiguousarray(halves).reshape(count * PANEL, inputs)[:outputs])


def unpack_gate_up(packed: Bits) -> tuple[Floats, Floats]:
    """The inverse of `panels` over `gate_up_rows`."""
    count, inputs, _ = packed.shape
    halves = packed.reshape(count, inputs, PANEL // 2, 2).transpose(3, 0, 2, 1)
    gate, up = from_bf16(np.ascontiguousarray(halves)).reshape(2, count * (PANEL // 2), inputs)
    return gate, up


def _interleave(halves: Bits) -> Bits:
    count, _, _, inputs = halves.shape
    return np.ascontiguousarray(halves.transpose(0, 3, 2, 1)).reshape(count, inputs, PANEL)


PACK: Final[dict[Kind, Callable[[Floats], npt.NDArray[Any]]]] = {
    Kind.BF16: panels,
    Kind.W8A16: byte_panels,
    Kind.W8A8: quad_panels,
}


def packed_shape(outputs: int, inputs: int, kind: Kind) -> tuple[int, ...]:
    """Of what `PACK[kind]` makes."""
    count = -(-outputs // PANEL)
    if kind is Kind.BF16:
        return count, inputs, PANEL
    return count, inputs * PANEL + SCALE_BYTES


def kind_of(packed: npt.NDArray[Any]) -> Kind:
    return next(kind for kind, dtype in DTYPES.items() if packed.dtype == dtype)
