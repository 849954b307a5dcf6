"""What must be moved before a step, as values. Pure; who carries it out is `mover`."""

from dataclasses import dataclass
from typing import TypeAlias

from sojourn_runtime.engine.prefix import Name


@dataclass(frozen=True, slots=True)
class Load:
    """Fill a block from the store."""

    name: Name
    block: int


@dataclass(frozen=True, slots=True)
class Copy:
    """Fill a block from another one."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Stash:
    """Copy a block of the device into a slot of the host."""

    block: int
    slot: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """Fill a block from a slot of the host."""

    slot: int
    block: int


@dataclass(frozen=True, slots=True)
class Spill:
    """Give the content of a slot to the store, before it gets another."""

    name: Name
    slot: int


@dataclass(frozen=True, slots=True)
class Save:
    """Give the content of a block to the store: there is no room on the host."""

    name: Name
    block: int


Move: TypeAlias = Load | Copy | Stash | Fetch | Spill | Save


@dataclass(frozen=True, slots=True)
class Ahead:
    """Begin to read a block of the store into a slot of the host, beside the step."""

    name: Name
    slot: int
