"""Writes the modules of this folder from its .proto files.

Run as `python -m sojourn_deviceplugin._proto.generate [FOLDER]`.
For developers; needs grpcio-tools and mypy-protobuf. A test runs it and compares the result.
"""

import sys
import sysconfig
from importlib import resources
from pathlib import Path
from typing import Final

_PLUGINS: Final = ("protoc-gen-mypy", "protoc-gen-mypy_grpc")


def generate(into: Path) -> None:
    """Write the modules under `into`, the folder that holds (or shall hold) the package."""
    from grpc_tools import protoc  # noqa: PLC0415 - a developer's tool

    root = Path(__file__).parents[2]
    files = sorted(str(path) for path in Path(__file__).parent.glob("*.proto"))
    outputs = [f"--{kind}_out={into}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    include = [f"-I{root}", f"-I{resources.files('grpc_tools') / '_proto'}"]
    # By path: the environment's bin folder need not be on PATH.
    scripts = Path(sysconfig.get_path("scripts"))
    plugins = [f"--plugin={name}={scripts / name}" for name in _PLUGINS]
    if protoc.main(["protoc", *include, *plugins, *outputs, *files]):
        raise SystemExit("protoc failed; its message is above")


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2])
