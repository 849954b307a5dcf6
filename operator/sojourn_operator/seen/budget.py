"""A PodDisruptionBudget as it is seen, and which pods it covers. Pure; weighed in `plan`."""

from collections.abc import Mapping
from dataclasses import dataclass

from sojourn_api.parse import parse_meta
from sojourn_api.reader import Invalid, Reader


@dataclass(frozen=True, slots=True)
class Need:
    """One expression of a label selector."""

    key: str
    operator: str
    values: tuple[str, ...]

    def holds(self, labels: Mapping[str, str]) -> bool:
        match self.operator:
            case "In":
                return labels.get(self.key) in self.values
            case "NotIn":
                return labels.get(self.key) not in self.values
            case "Exists":
                return self.key in labels
            case "DoesNotExist":
                return self.key not in labels
            case _:
                raise Invalid("spec.selector.matchExpressions", f"unknown {self.operator!r}")


@dataclass(frozen=True, slots=True)
class Budget:
    """`allowed`: how many more of its pods may be disrupted now."""

    name: str
    namespace: str
    allowed: int
    selector: tuple[Need, ...]

    def covers(self, *, namespace: str, labels: Mapping[str, str]) -> bool:
        return namespace == self.namespace and all(need.holds(labels) for need in self.selector)


def parse_budget(raw: Mapping[str, object]) -> Budget:
    """A PodDisruptionBudget; an empty selector covers every pod of its namespace."""
    meta = parse_meta(raw)
    root = Reader(raw)
    selector = root.part("spec").part("selector")
    equal = [Need(key, "In", (value,)) for key, value in selector.labels("matchLabels").items()]
    others = [
        Need(one.text("key"), one.text("operator"), one.texts("values"))
        for one in selector.parts("matchExpressions")
    ]
    allowed = root.part("status").number("disruptionsAllowed", 0)
    return Budget(meta.name, meta.namespace, allowed, (*equal, *others))
