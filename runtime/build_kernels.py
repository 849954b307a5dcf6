"""Compiles the CPU kernels: for the wheel (a hatchling build hook) and, on first use, for a
checkout.

Needs g++ and nothing else. The library holds variants for AVX2 and AVX-512, each with and
without byte products (VNNI), and for the matrix unit (AMX); the processor is asked at run time.
"""

import concurrent.futures
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

LIBRARY = "libsojourn_kernels.so"
SOURCES = Path(__file__).parent / "sojourn_runtime" / "model" / "kernels"
WHEEL_TAG = "py3-none-linux_x86_64"

# No -ffast-math and no contraction: which operations are fused is written in the sources,
# equally for all variants.
FLAGS = (
    "-std=c++20",
    "-O3",
    "-fPIC",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Werror",
)
# GCC 12 takes the undefined operand inside its own AVX-512 headers for a mistake (GCC bug 105593).
FLAGS_QUIET = ("-Wno-maybe-uninitialized", "-Wno-uninitialized")
AVX2 = ("-mavx2", "-mfma")
AVX512 = (*AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl")
VARIANT_FLAGS = {
    "avx2": AVX2,
    "avxvnni": (*AVX2, "-mavxvnni"),
    "avx512": AVX512,
    "avx512vnni": (*AVX512, "-mavx512vnni"),
    "amx": (*AVX512, "-mavx512vnni", "-mamx-tile", "-mamx-int8", "-mamx-bf16"),
}


class CompilerMissingError(RuntimeError):
    """There is no g++ on this machine."""


class CompileError(RuntimeError):
    """g++ refused the sources; its words are in the message."""


def source_hash() -> str:
    """Changes with every source and flag: the key under which a checkout's library is kept."""
    digest = hashlib.sha256(repr((FLAGS, FLAGS_QUIET, VARIANT_FLAGS)).encode())
    for path in sorted(SOURCES.iterdir()):
        if path.suffix in {".h", ".cpp"}:
            digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def checkout_library() -> Path:
    """Where the library of these very sources is kept for a checkout."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "sojourn" / "kernels" / f"{source_hash()}.so"


def build(destination: Path) -> Path:
    """Compile the library to `destination`; parallel processes may do so at once, the last
    rename stays.
    """
    compiler = shutil.which("g++")
    if compiler is None:
        raise CompilerMissingError(
            "the CPU kernels must be compiled and g++ was not found; "
            "install it (Debian: apt-get install g++) or install the wheel, which holds them"
        )
    destination.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=destination.parent, prefix=".kernels-") as folder:
        work = Path(folder)
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(
                pool.map(
                    lambda source: _compile(compiler, source, work), sorted(SOURCES.glob("*.cpp"))
                )
            )
        library = work / LIBRARY
        # The C++ library goes in, so that a slim image without it can load ours.
        _run(
            [
                compiler,
                "-shared",
                "-s",
                "-static-libstdc++",
                "-static-libgcc",
                *objects,
                "-pthread",
                "-o",
                str(library),
            ]
        )
        library.replace(destination)
    return destination


def _compile(compiler: str, source: Path, work: Path) -> str:
    target = str(work / f"{source.stem}.o")
    _run(
        [
            compiler,
            *FLAGS,
            *FLAGS_QUIET,
            *VARIANT_FLAGS.get(source.stem, ()),
            "-c",
            str(source),
            "-o",
            target,
        ]
    )
    return target


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompileError(f"{' '.join(command)} failed:\n{done.stderr[-4000:]}")


try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # a checkout without build tools: only `build` is used
    pass
else:

    class KernelsBuildHook(BuildHookInterface):  # type: ignore[misc, type-arg, unused-ignore]
        """Puts the library into the wheel; for an editable install, where a checkout finds it."""

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            if self.target_name != "wheel":
                return
            if version == "editable":
                build(checkout_library())
                return
            library = build(Path(self.directory) / LIBRARY)
            inside = SOURCES.relative_to(Path(__file__).parent) / LIBRARY
            build_data["force_include"][str(library)] = inside.as_posix()
            build_data["pure_python"] = False
            build_data["tag"] = WHEEL_TAG
            self._library = library

        def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
            del version, build_data, artifact_path
            if hasattr(self, "_library"):
                self._library.unlink()
