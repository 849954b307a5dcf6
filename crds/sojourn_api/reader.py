"""Reads typed values out of the untyped mappings that the API server sends.

One `Reader` stands at one path of one object; what is wrong is told as `Invalid` with that path.
It knows no kind: which fields there are, and what they mean, is said in `parse`.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar, cast

E = TypeVar("E", bound=StrEnum)
T = TypeVar("T")

MAX_NUMBER = 2**53 - 1
"""The largest whole number that every reader of JSON takes for the same."""


class Invalid(ValueError):  # noqa: N818 - the API server and kubectl say "is invalid", so do we
    """An object that cannot be used: `path` of the field, and what is wrong and what to do."""

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path
        self.message = message


@dataclass(frozen=True, slots=True)
class Reader:
    """A mapping and where it stands in its object; an explicit null reads as absent."""

    raw: Mapping[str, object]
    path: str = ""

    def at(self, name: str) -> str:
        """The path of a field, as users write it."""
        return f"{self.path}.{name}" if self.path else name

    def has(self, name: str) -> bool:
        return self.raw.get(name) is not None

    def part(self, name: str) -> "Reader":
        """A sub-object; absent reads as empty."""
        return Reader(_mapping(self.raw.get(name), self.at(name)), self.at(name))

    def parts(self, name: str) -> "Iterator[Reader]":
        """The objects of a list; absent reads as empty."""
        for index, item in enumerate(self._items(name)):
            path = f"{self.at(name)}[{index}]"
            yield Reader(_mapping(item, path), path)

    def text(self, name: str, default: str | None = None) -> str:
        """A string; without a default it is required and may not be empty."""
        value = self.raw.get(name)
        if value is None:
            return self._absent(name, default, "a text")
        if not isinstance(value, str):
            raise Invalid(self.at(name), f"must be a text, not {_shown(value)}; put it in quotes")
        if not value and default is None:
            raise Invalid(self.at(name), "must not be empty; give it a value")
        return value

    def texts(self, name: str) -> tuple[str, ...]:
        """A list of strings; absent reads as empty."""
        found: list[str] = []
        for index, item in enumerate(self._items(name)):
            if not isinstance(item, str) or not item:
                where = f"{self.at(name)}[{index}]"
                raise Invalid(where, f"must be a text, not {_shown(item)}; put it in quotes")
            found.append(item)
        return tuple(found)

    def number(
        self, name: str, default: int | None = None, *, low: int = 0, high: int = MAX_NUMBER
    ) -> int:
        """A whole number from `low` to `high`; without a default it is required."""
        value = self.raw.get(name)
        wish = f"a whole number from {low} to {high}"
        if value is None:
            return self._absent(name, default, wish)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise Invalid(self.at(name), f"must be {wish}, not {_shown(value)}")
        return value

    def numbers(self, name: str) -> tuple[int, ...]:
        """A list of whole numbers, none below 0; absent reads as empty."""
        found: list[int] = []
        for index, item in enumerate(self._items(name)):
            if isinstance(item, bool) or not isinstance(item, int) or item < 0:
                where = f"{self.at(name)}[{index}]"
                raise Invalid(where, f"must be a whole number from 0, not {_shown(item)}")
            found.append(item)
        return tuple(found)

    def maybe_number(self, name: str, *, low: int = 0, high: int = MAX_NUMBER) -> int | None:
        return self.number(name, low=low, high=high) if self.has(name) else None

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.raw.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise Invalid(self.at(name), f"must be true or false, not {_shown(value)}")
        return value

    def choice(self, name: str, kind: type[E], default: E) -> E:
        """One of the values of an enumeration."""
        value = self.raw.get(name)
        if value is None:
            return default
        try:
            return kind(cast("str", value))
        except ValueError as error:
            wish = ", ".join(kind)
            raise Invalid(self.at(name), f"must be one of {wish}, not {_shown(value)}") from error

    def labels(self, name: str) -> dict[str, str]:
        """A map of strings; absent reads as empty."""
        part = self.part(name)
        return {key: part.text(key, "") for key in part.raw}

    def _items(self, name: str) -> Sequence[object]:
        value = self.raw.get(name)
        if value is None:
            return ()
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise Invalid(self.at(name), f"must be a list, not {_shown(value)}; start it with '-'")
        return value

    def _absent(self, name: str, default: T | None, wish: str) -> T:
        if default is None:
            raise Invalid(self.at(name), f"is missing; set it to {wish}")
        return default


def _mapping(value: object, path: str) -> Mapping[str, object]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise Invalid(path, f"must be an object with fields, not {_shown(value)}")
    return value


def _shown(value: object) -> str:
    """A value in a message: short, so that a message never holds a whole manifest."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
