"""The kernels' variants as parameters of tests, each with the instructions that it needs.

By the kernel's list of what the processor has, not by the engine's own judgement: a variant that
the engine wrongly refuses fails its tests.
"""

from typing import Any, Final

import pytest

_AVX512: Final = ("avx512f", "avx512bw", "avx512dq", "avx512vl")
_NEEDS: Final[dict[str, tuple[str, ...]]] = {
    "avxvnni": ("avx_vnni",),
    "avx512": _AVX512,
    "avx512vnni": (*_AVX512, "avx512_vnni"),
    "amx": (*_AVX512, "avx512_vnni", "amx_tile", "amx_int8", "amx_bf16"),
}


def variants(*names: str) -> list[Any]:
    """Parameters for `parametrize`; those that the processor lacks are left out of the run."""
    return [
        pytest.param(name, id=name, marks=pytest.mark.processor(*_NEEDS.get(name, ())))
        for name in names
    ]
