"""What the driver's error numbers (XIDs) ask for, by the vendor's catalogue; the rows are data.

`xids.json` names its source. What follows for a GPU's health is `health`'s.
"""

import json
from enum import StrEnum
from functools import cache
from pathlib import Path


class Restart(StrEnum):
    """What must restart before the GPU can be trusted again, mildest first."""

    NONE = "none"
    APP = "app"
    DRIVER = "driver"
    """The driver's own recovery action decides; without one, probes do."""
    UNKNOWN = "unknown"
    """Not in the catalogue: distrusted until probes pass."""
    GPU = "gpu"
    NODE = "node"

    @property
    def severity(self) -> int:
        return list(Restart).index(self)


@cache
def _rows() -> tuple[dict[int, Restart], dict[int, str]]:
    raw = json.loads(Path(__file__).with_name("xids.json").read_text())
    restart = {
        number: Restart(kind) for kind, numbers in raw["restart"].items() for number in numbers
    }
    return restart, {int(number): text for number, text in raw["meaning"].items()}


def restart(number: int) -> Restart:
    """What an XID asks to restart."""
    return _rows()[0].get(number, Restart.UNKNOWN)


def meaning(number: int) -> str:
    """A few words on what happened."""
    return _rows()[1].get(number, "see the vendor's catalogue")
