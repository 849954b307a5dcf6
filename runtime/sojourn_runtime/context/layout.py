"""How the objects of a session's store are called.

The manifest's name carries the epoch and a number that counts up, so that the order of all commits
can be read from a listing. Pure.
"""

import re
from dataclasses import dataclass
from typing import Final

_NAME: Final = re.compile(r"(manifest|journal|segment)-(\d+)-(\d+)\.(?:json|log|kv)")
LOCK: Final = "lock"


@dataclass(frozen=True, slots=True, order=True)
class Commit:
    """A place in the order of commits: start of the session, then number within it."""

    epoch: int
    number: int

    @property
    def manifest(self) -> str:
        return f"manifest-{self.epoch}-{self.number}.json"

    @property
    def journal(self) -> str:
        """What happened after this commit."""
        return f"journal-{self.epoch}-{self.number}.log"

    @property
    def segment(self) -> str:
        """Blocks of KV; segments are numbered on their own within an epoch."""
        return f"segment-{self.epoch}-{self.number}.kv"


BEGINNING: Final = Commit(0, 0)
"""Before every commit."""


def is_manifest(name: str) -> bool:
    """Whether an object of this name is a manifest."""
    found = parse(name)
    return found is not None and found[0] == "manifest"


def parse(name: str) -> tuple[str, Commit] | None:
    """Kind and place of an object, or None for what is not ours."""
    match = _NAME.fullmatch(name)
    return (match[1], Commit(int(match[2]), int(match[3]))) if match else None
