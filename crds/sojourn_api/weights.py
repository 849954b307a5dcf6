"""What an LLMModel says of its weights, held against what the weights themselves say.

Pure, and one rule for both who ask: the runtime before it serves, the operator while it does.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Self

from sojourn_api.objects import Model
from sojourn_api.reader import Reader

FIELDS: Final = {
    "weightBytes": "weight_bytes",
    "kvBytesPerToken": "kv_bytes_per_token",
    "layers": "layers",
    "heads": "heads",
    "kvHeads": "kv_heads",
    "contextLength": "context_length",
}
"""Those of `LLMModel.spec` that weights tell too, and their names here."""
FIXED: Final = frozenset({"layers", "heads", "kvHeads"})
"""Of them, what the CRD lets nobody change."""
SLACK: Final = 100
"""One part in so many of `weightBytes` may differ: two bytes for each parameter is how people
count, and leaves out the norms in fp32 and the padding. A guess; the workspace covers it.
"""


@dataclass(frozen=True, slots=True)
class Numbers:
    """By `FIELDS`; 0 is what was not said."""

    weight_bytes: int = 0
    kv_bytes_per_token: int = 0
    layers: int = 0
    heads: int = 0
    kv_heads: int = 0
    context_length: int = 0

    @classmethod
    def of(cls, model: Model) -> Self:
        """What the LLMModel says."""
        return cls(
            weight_bytes=model.weight_bytes,
            kv_bytes_per_token=model.kv_bytes_per_token,
            layers=model.layers,
            heads=model.heads,
            kv_heads=model.kv_heads,
            context_length=model.context_length,
        )

    @classmethod
    def read(cls, reader: Reader) -> Self:
        """By names of the API; Invalid for what is no whole number from 0."""
        return cls(**{own: reader.number(name, 0) for name, own in FIELDS.items()})

    def to_json(self) -> dict[str, int]:
        return {name: getattr(self, own) for name, own in FIELDS.items()}


@dataclass(frozen=True, slots=True)
class Difference:
    """One number of the LLMModel, and that of the weights."""

    field: str
    said: int
    found: int

    @property
    def grave(self) -> bool:
        """Whether sessions would be placed where they do not fit, or promised what cannot be."""
        short = self.field in ("weightBytes", "kvBytesPerToken") and self.said < self.found
        return short or self.field == "contextLength"


def differences(said: Numbers, found: Numbers) -> tuple[Difference, ...]:
    """The grave ones first. A context length below that of the weights is a wish, and no fault."""
    if said == found:  # nearly always, and this is asked of each session at each look
        return ()
    pairs = zip(said.to_json().items(), found.to_json().values(), strict=True)
    wrong = [Difference(name, a, b) for (name, a), b in pairs if a and b and _wrong(name, a, b)]
    return tuple(sorted(wrong, key=lambda one: not one.grave))


def _wrong(field: str, said: int, found: int) -> bool:
    if field == "contextLength":
        return said > found
    if field == "weightBytes":
        return abs(said - found) * SLACK > found
    return said != found


def grave(wrong: Iterable[Difference]) -> bool:
    return any(one.grave for one in wrong)


def told(model: str, wrong: Iterable[Difference]) -> str:
    """What the object says, what the weights say, and what to do."""
    wrong = tuple(wrong)
    said = ", ".join(f"spec.{one.field} is {one.said} and theirs {one.found}" for one in wrong)
    fixed = any(one.field in FIXED for one in wrong)
    remedy = "create a new LLMModel with" if fixed else "correct it to"
    return (
        f"LLMModel {model} does not describe its weights: {said}; {remedy} what "
        "`sojourn-runtime inspect` prints of them, or correct spec.uri"
    )
