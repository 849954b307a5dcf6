"""Reading the query of a URL, so that every complaint names the parameter. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sojourn_runtime.server.errors import invalid

_Text = TypeVar("_Text", bound=str)
_FLAGS = {"true": True, "1": True, "false": False, "0": False}


@dataclass(frozen=True, slots=True)
class Query:
    """Parameters by name; unknown ones are ignored, as servers do."""

    values: Mapping[str, str]

    def text_or_none(self, name: str) -> str | None:
        return self.values.get(name)

    def flag(self, name: str) -> bool:
        text = self.values.get(name, "false")
        if text not in _FLAGS:
            raise invalid(f"'{name}' must be true or false; got '{text[:64]}'.", param=name)
        return _FLAGS[text]

    def integer_or_none(self, name: str, *, low: int, high: int = 2**53) -> int | None:
        text = self.values.get(name)
        if text is None:
            return None
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) < 17):
            raise invalid(f"'{name}' must be an integer; got '{text[:64]}'.", param=name)
        if not low <= int(text) <= high:
            raise invalid(f"'{name}' must be between {low} and {high}; got {text}.", param=name)
        return int(text)

    def choice(self, name: str, values: Sequence[_Text], *, default: _Text) -> _Text:
        text = self.values.get(name)
        if text is None:
            return default
        for value in values:
            if value == text:
                return value
        allowed = ", ".join(f"'{value}'" for value in values)
        raise invalid(f"'{name}' must be one of {allowed}; got '{text[:64]}'.", param=name)
