"""The C interface of the kernels in ctypes; mirrors `kernels/sojourn_kernels.h` field by field."""

import ctypes
from ctypes import POINTER, Structure, c_float, c_int32, c_uint64, c_void_p
from functools import cache
from typing import Any

import numpy.typing as npt

from sojourn_runtime.model.library import load
from sojourn_runtime.model.quantization import LAYER_LINEARS, Kind

VARIANTS = {"auto": 0, "avx2": 1, "avx512": 2, "avxvnni": 3, "avx512vnni": 4, "amx": 5}
KINDS = {Kind.BF16: 0, Kind.W8A16: 1, Kind.W8A8: 2}
DONE, STOPPED, OUT_OF_MEMORY = 0, 1, 2
Poll = ctypes.CFUNCTYPE(c_int32)
Agree = ctypes.CFUNCTYPE(c_int32, c_int32)
Exchange = ctypes.CFUNCTYPE(None, c_int32, c_void_p, c_int32)


LAYER_TENSORS = (
    "attention_norm",
    "qkv",
    "qkv_bias",
    "q_norm",
    "k_norm",
    "attention_out",
    "attention_out_bias",
    "mlp_norm",
    "gate_up",
    "down",
    "router",
    "shared_gate_up",
    "shared_down",
)
LINEARS = {*LAYER_LINEARS, "router", "shared_gate_up", "shared_down"}


class LinearStruct(Structure):
    _fields_ = [("panels", c_void_p), ("kind", c_int32)]


class LayerStruct(Structure):
    _fields_ = [
        *((name, LinearStruct if name in LINEARS else c_void_p) for name in LAYER_TENSORS),
        ("window", c_int32),
    ]


class RangeStruct(Structure):
    _fields_ = [("begin", c_int32), ("end", c_int32)]


PARTS = ("kv_heads", "hidden", "vocab", "inner", "shared")


class PartStruct(Structure):
    _fields_ = [(name, RangeStruct) for name in PARTS]


class ModelStruct(Structure):
    _fields_ = [
        ("layer_count", c_int32),
        ("hidden", c_int32),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("inner", c_int32),
        ("vocab", c_int32),
        ("experts", c_int32),
        ("experts_used", c_int32),
        ("normalised", c_int32),
        ("shared_inner", c_int32),
        ("whole_norms", c_int32),
        ("epsilon", c_float),
        ("score_scale", c_float),
        ("rope_frequencies", c_void_p),
        ("embedding", LinearStruct),
        ("head", LinearStruct),
        ("final_norm", c_void_p),
        ("layers", POINTER(LayerStruct)),
        ("part", PartStruct),
    ]


class BatchStruct(Structure):
    _fields_ = [
        ("rows", c_int32),
        ("wanted_count", c_int32),
        ("tokens", c_void_p),
        ("positions", c_void_p),
        ("table_start", c_void_p),
        ("blocks", c_void_p),
        ("wanted", c_void_p),
        ("logits", c_void_p),
        ("kv", c_void_p),
        ("stop", c_void_p),
        ("poll", Poll),
        ("agree", Agree),
        ("exchange", Exchange),
    ]


class SamplingStruct(Structure):
    _fields_ = [
        ("seed", c_uint64),
        ("choice", c_int32),
        ("position", c_int32),
        ("temperature", c_float),
        ("top_k", c_int32),
        ("top_p", c_float),
        ("min_p", c_float),
    ]


def address(array: npt.NDArray[Any] | None) -> int | None:
    """Where a contiguous array begins; the caller keeps it alive."""
    if array is None:
        return None
    if not array.flags.c_contiguous:
        raise ValueError("the kernels need contiguous arrays")
    return array.ctypes.data


@cache
def kernels() -> ctypes.CDLL:
    """The library with its signatures set; loaded once per process."""
    library = load()
    library.sj_open.argtypes = [POINTER(ModelStruct), c_int32, c_int32, c_int32]
    library.sj_open.restype = c_void_p
    library.sj_variant.argtypes = [c_void_p]
    library.sj_variant.restype = c_int32
    library.sj_forward.argtypes = [c_void_p, POINTER(BatchStruct)]
    library.sj_forward.restype = c_int32
    library.sj_close.argtypes = [c_void_p]
    library.sj_close.restype = None
    library.sj_sample.argtypes = [c_void_p, c_int32, POINTER(SamplingStruct)]
    library.sj_sample.restype = c_int32
    return library
