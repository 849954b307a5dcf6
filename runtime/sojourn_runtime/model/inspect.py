"""`sojourn-runtime inspect PATH`: the LLMModel manifest of weights, from their own config.

Reads headers and the digest only; nothing is converted. JSON strings are YAML too, so no YAML
library is needed.
"""

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sojourn_api.names import API_VERSION

from sojourn_runtime.model.config import ModelConfig
from sojourn_runtime.model.digest import weights_digest
from sojourn_runtime.model.errors import ModelError
from sojourn_runtime.model.layout import parts
from sojourn_runtime.model.quantization import Kind, Plan, read_plan
from sojourn_runtime.model.weights import local_path, open_source


def manifest(
    path: Path, *, name: str | None = None, uri: str | None = None, quantization: str = Kind.BF16
) -> dict[str, Any]:
    """The LLMModel object; raises a ModelError if this runtime cannot run these weights so."""
    plan = read_plan(quantization)
    source = open_source(local_path(str(path)))
    with tempfile.TemporaryDirectory() as nowhere:
        digest = weights_digest(source.files(), Path(nowhere))
    plan.check(digest)
    config = source.config
    return {
        "apiVersion": API_VERSION,
        "kind": "LLMModel",
        "metadata": {"name": name or _object_name(path)},
        "spec": {
            "uri": uri or path.resolve().as_uri(),
            "digest": digest,
            "quantization": _in_manifest(quantization),
            **config.numbers(weight_bytes=_weight_bytes(config, plan)).to_json(),
        },
    }


def main(arguments: Sequence[str]) -> int:
    """Print the manifest; 0, or 1 with the reason on standard error."""
    parser = argparse.ArgumentParser(
        prog="sojourn-runtime inspect", description="Write the LLMModel manifest of weights."
    )
    parser.add_argument("path", type=Path, help="a GGUF file or a folder with safetensors")
    parser.add_argument("--name", help="metadata.name; derived from the path unless given")
    parser.add_argument("--uri", help="spec.uri: where session pods find the weights")
    parser.add_argument(
        "--quantization",
        default="bf16",
        help="what sessions run it in: bf16, w8a16, w8a8, or the path of a plan, here and there",
    )
    parser.add_argument("--output", choices=("yaml", "json"), default="yaml")
    given = parser.parse_args(arguments)
    try:
        found = manifest(
            given.path, name=given.name, uri=given.uri, quantization=given.quantization
        )
    except ModelError as error:
        sys.stderr.write(f"{error.reason}: {error}\n")
        return 1
    sys.stdout.write(
        json.dumps(found, indent=2) + "\n" if given.output == "json" else to_yaml(found)
    )
    return 0


def to_yaml(value: dict[str, Any], indent: int = 0) -> str:
    """Nested mappings of strings and integers as YAML."""
    lines = []
    for key, inner in value.items():
        if isinstance(inner, dict):
            lines.append(f"{' ' * indent}{key}:\n{to_yaml(inner, indent + 2)}")
        else:
            lines.append(f"{' ' * indent}{key}: {json.dumps(inner)}\n")
    return "".join(lines)


def _in_manifest(quantization: str) -> str:
    """A kind's name, or the plan's path from the root."""
    return quantization if quantization in set(Kind) else str(Path(quantization).resolve())


def _weight_bytes(config: ModelConfig, plan: Plan) -> int:
    """What the weights take in memory, in the kernels' layout."""
    return sum(part.size for part in parts(config, plan.kinds(config)))


def _object_name(path: Path) -> str:
    """A name that Kubernetes takes: lower case letters, digits, dots and dashes."""
    stem = path.name.removesuffix(".gguf").lower()
    return re.sub(r"[^a-z0-9.]+", "-", stem).strip("-.")[:63].rstrip("-.") or "model"
