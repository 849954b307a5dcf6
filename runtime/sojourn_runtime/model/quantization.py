"""Which linears of a model compute in which kind, and the kernel class that follows from it.

A plan is written by `calibrate`, or is one word for all linears. Nothing is measured or packed
here.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from sojourn_runtime.model.config import ModelConfig
from sojourn_runtime.model.errors import InvalidConfiguration

LAYER_LINEARS: Final = ("qkv", "attention_out", "gate_up", "down")
HEAD: Final = "head"
"""The output layer; with tied embeddings also what a token's embedding is read from."""


class Kind(StrEnum):
    """Weights and activations of one linear: int8 weights have a scale per output, int8
    activations one per row, found anew for each row.
    """

    BF16 = "bf16"
    W8A16 = "w8a16"
    W8A8 = "w8a8"


PURE_CLASSES: Final = {
    Kind.BF16: "cpu-fma-bf16-v1",
    Kind.W8A16: "cpu-fma-w8a16-v1",
    Kind.W8A8: "cpu-vnni-w8a8-v1",
}
"""Named after the arithmetic, not the instructions: every variant of a class gives equal bits."""

Kinds = Mapping[str, Kind]
"""Each linear of a model, in the model's order."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`default` but for the `exceptions`; an empty `weights_digest` fits any model."""

    default: Kind
    exceptions: Kinds = field(default_factory=dict)
    weights_digest: str = ""

    def kinds(self, config: ModelConfig) -> dict[str, Kind]:
        """The kind of every linear; raises InvalidConfiguration for one that the model lacks."""
        known = list(linears(config))
        if config.experts and {self.default, *self.exceptions.values()} != {Kind.BF16}:
            raise InvalidConfiguration(
                f"quantization {self.label}: a model with experts computes in bf16 only; use bf16"
            )
        for name in self.exceptions:
            if name not in known:
                raise InvalidConfiguration(
                    f"the quantization plan names the linear {name}, which this model lacks; "
                    "write a plan for it with `sojourn-runtime calibrate`"
                )
        return {name: self.exceptions.get(name, self.default) for name in known}

    @property
    def label(self) -> str:
        """A short name, without knowing the model."""
        return _label({"": self.default, **dict(sorted(self.exceptions.items()))})

    def check(self, digest: str) -> None:
        """Raise InvalidConfiguration if the plan was measured on other weights."""
        if self.weights_digest and self.weights_digest != digest:
            raise InvalidConfiguration(
                f"the quantization plan was measured on weights {self.weights_digest}, and these "
                f"are {digest}; write a plan for them with `sojourn-runtime calibrate`"
            )


AS_BF16: Final = Plan(Kind.BF16)


def linears(config: ModelConfig) -> Iterator[str]:
    """The names of all linears, as plans write them: `3.gate_up`, and at last `head`."""
    for layer in range(config.layers):
        for part in LAYER_LINEARS:
            yield f"{layer}.{part}"
    yield HEAD


def kernel_class(kinds: Kinds, *, pairs: bool = False) -> str:
    """What decides the bits beside the weights; snapshots record it. `pairs`: bf16 linears sum
    as the matrix unit does.
    """
    name = _label(kinds)
    if pairs and Kind.BF16 in kinds.values():
        return f"cpu-amx-{name}-v1"
    return PURE_CLASSES[Kind(name)] if name in set(Kind) else f"cpu-{name}-v1"


def _label(kinds: Kinds) -> str:
    """One word if they are all the same, else by digest."""
    found = set(kinds.values())
    if len(found) == 1:
        return found.pop().value
    listing = "".join(f"{name} {kind}\n" for name, kind in kinds.items())
    return f"mixed-{hashlib.sha256(listing.encode()).hexdigest()[:12]}"


def read_plan(text: str) -> Plan:
    """One of the kinds' names, or the path of a plan."""
    if text in set(Kind):
        return Plan(Kind(text))
    try:
        return plan_from_json(json.loads(Path(text).read_text()))
    except OSError as error:
        raise InvalidConfiguration(
            f"quantization {text!r} is neither {', '.join(Kind)} nor a readable file "
            f"({error.strerror}); name one of them, or a plan of `sojourn-runtime calibrate`"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidConfiguration(
            f"{text}: no quantization plan ({error!r}); write it with `sojourn-runtime calibrate`"
        ) from error


def plan_from_json(value: Mapping[str, Any]) -> Plan:
    """The inverse of `plan_to_json`; raises ValueError, KeyError or TypeError."""
    if value["v"] != 1:
        raise ValueError(f"version {value['v']} is not known")
    return Plan(
        default=Kind(value["default"]),
        exceptions={str(name): Kind(kind) for name, kind in value["linears"].items()},
        weights_digest=str(value["weightsDigest"]),
    )


def plan_to_json(plan: Plan) -> dict[str, Any]:
    return {
        "v": 1,
        "weightsDigest": plan.weights_digest,
        "default": plan.default.value,
        "linears": {name: kind.value for name, kind in plan.exceptions.items()},
    }
