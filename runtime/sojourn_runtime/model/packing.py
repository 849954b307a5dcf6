"""Turns matrices into the kernels' layout: bf16, in panels of 32 outputs (see
`kernels/linear.h`).
"""

import numpy as np
import numpy.typing as npt

PANEL = 32

Floats = npt.NDArray[np.float32]
Bits = npt.NDArray[np.uint16]


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


def gate_up_panels(gate: Floats, up: Floats) -> Bits:
    """Panels of 16 rows of gate and the same 16 of up, so that SwiGLU finds both in one
    register pair.
    """
    inner, inputs = gate.shape
    shape = (inner // 16, 16, inputs)
    return _interleave(np.stack([to_bf16(gate).reshape(shape), to_bf16(up).reshape(shape)], axis=1))


def unpack(packed: Bits, outputs: int) -> Floats:
    """The inverse of `panels`."""
    count, inputs, _ = packed.shape
    halves = packed.reshape(count, inputs, PANEL // 2, 2).transpose(0, 3, 2, 1)
    return from_bf16(np.ascontiguousarray(halves).reshape(count * PANEL, inputs)[:outputs])


def unpack_gate_up(packed: Bits) -> tuple[Floats, Floats]:
    """The inverse of `gate_up_panels`."""
    count, inputs, _ = packed.shape
    halves = packed.reshape(count, inputs, PANEL // 2, 2).transpose(3, 0, 2, 1)
    gate, up = from_bf16(np.ascontiguousarray(halves)).reshape(2, count * (PANEL // 2), inputs)
    return gate, up


def _interleave(halves: Bits) -> Bits:
    count, _, _, inputs = halves.shape
    return np.ascontiguousarray(halves.transpose(0, 3, 2, 1)).reshape(count, inputs, PANEL)
