"""Reading a JSON request field by field, so that every complaint names the field.

Null counts as absent, as OpenAI's clients send it so. Pure; which fields there are is for readers
of whole bodies to say.
"""

import json
import math
from collections.abc import Collection, Iterator, Sequence
from typing import Final, NoReturn, Self, TypeVar

from sojourn_runtime.server.errors import Json, invalid

_Text = TypeVar("_Text", bound=str)

_NAMES: Final = {
    type(None): "null",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "an array",
    dict: "an object",
}


def kind_of(value: Json) -> str:
    """The JSON kind of a value with its article, for sentences."""
    return _NAMES[type(value)]


def parse_object(body: bytes) -> dict[str, Json]:
    """The JSON object in `body`; anything else is refused with the reason."""
    if not body.strip():
        raise invalid("The request has no body; send a JSON object.", code="invalid_json")
    try:
        text = body.decode("utf-8")
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise invalid(f"The body is not valid JSON: {error}.", code="invalid_json") from error
    if not isinstance(value, dict):
        message = f"The body must be a JSON object, not {kind_of(value)}."
        raise invalid(message, code="invalid_json")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


class Fields:
    """An object of the request, which remembers what was read: the rest can be refused."""

    __slots__ = ("_path", "_seen", "_values")

    def __init__(self, values: dict[str, Json], *, path: str = "") -> None:
        self._values = values
        self._path = path
        self._seen: set[str] = set()

    def path(self, name: str) -> str:
        return f"{self._path}.{name}" if self._path else name

    def has(self, name: str) -> bool:
        return self._values.get(name) is not None

    def names(self) -> tuple[str, ...]:
        return tuple(self._values)

    def raw(self, name: str) -> Json:
        self._seen.add(name)
        return self._values.get(name)

    def ignore(self, names: Collection[str]) -> None:
        """Known to OpenAI's API and without effect here."""
        self._seen.update(names)

    def refuse_unknown(self) -> None:
        for name in self._values:
            if name not in self._seen:
                param = self.path(name)
                raise invalid(f"Unknown field '{param}'.", param=param, code="unknown_parameter")

    def required(self, name: str) -> Json:
        value = self.raw(name)
        if value is None:
            param = self.path(name)
            message = f"'{param}' is required."
            raise invalid(message, param=param, code="missing_required_parameter")
        return value

    def text(self, name: str, *, longest: int | None = None) -> str:
        return self.checked_text(name, self.required(name), longest=longest)

    def text_or_none(self, name: str, *, longest: int | None = None) -> str | None:
        value = self.raw(name)
        return None if value is None else self.checked_text(name, value, longest=longest)

    def choice(self, name: str, values: Sequence[_Text], *, default: _Text) -> _Text:
        text = self.text_or_none(name)
        if text is None:
            return default
        for value in values:
            if value == text:
                return value
        param = self.path(name)
        allowed = ", ".join(f"'{value}'" for value in values)
        raise invalid(f"'{param}' must be one of {allowed}; got '{text}'.", param=param)

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.raw(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.wrong(name, "a boolean", value)
        return value

    def integer_or_none(self, name: str, *, low: int, high: int | None = None) -> int | None:
        value = self.raw(name)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            self.wrong(name, "an integer", value)
        self._check_range(name, value, low, high)
        return value

    def integer(self, name: str, *, low: int, high: int | None = None, default: int) -> int:
        value = self.integer_or_none(name, low=low, high=high)
        return default if value is None else value

    def number(self, name: str, *, low: float, high: float | None, default: float) -> float:
        value = self.raw(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.wrong(name, "a number", value)
        self._check_range(name, value, low, high)
        return float(value)

    def object_or_none(self, name: str) -> Self | None:
        value = self.raw(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.wrong(name, "an object", value)
        return type(self)(value, path=self.path(name))

    def object(self, name: str) -> Self:
        return type(self)(self.mapping(name), path=self.path(name))

    def mapping(self, name: str) -> dict[str, Json]:
        """An object of the client's own making, such as a schema."""
        value = self.required(name)
        if not isinstance(value, dict):
            self.wrong(name, "an object", value)
        return value

    def array(self, name: str, *, most: int | None = None) -> list[Json]:
        value = self.required(name)
        if not isinstance(value, list):
            self.wrong(name, "an array", value)
        if most is not None and len(value) > most:
            param = self.path(name)
            message = f"'{param}' may have at most {most} entries; got {len(value)}."
            raise invalid(message, param=param, code="array_above_max_length")
        return value

    def objects(self, name: str, *, most: int | None = None) -> Iterator[Self]:
        """The entries of an array of objects, each with its own path."""
        for index, value in enumerate(self.array(name, most=most)):
            path = f"{self.path(name)}[{index}]"
            if not isinstance(value, dict):
                message = f"'{path}' must be an object, not {kind_of(value)}."
                raise invalid(message, param=path, code="invalid_type")
            yield type(self)(value, path=path)

    def texts(self, name: str, *, most: int) -> tuple[str, ...]:
        """A string or an array of strings; absent is empty."""
        value = self.raw(name)
        if value is None:
            return ()
        entries = value if isinstance(value, list) else [value]
        if len(entries) > most:
            param = self.path(name)
            message = f"'{param}' may have at most {most} entries; got {len(entries)}."
            raise invalid(message, param=param, code="array_above_max_length")
        return tuple(
            self.checked_text(f"{name}[{i}]" if isinstance(value, list) else name, entry)
            for i, entry in enumerate(entries)
        )

    def metadata(self, name: str = "metadata") -> dict[str, str]:
        """Up to 16 short strings by name, as OpenAI bounds them."""
        fields = self.object_or_none(name)
        if fields is None:
            return {}
        values = fields._values  # noqa: SLF001 - the same class
        if len(values) > 16:
            param = self.path(name)
            raise invalid(f"'{param}' may have at most 16 entries.", param=param)
        for key in values:
            if len(key) > 64:
                param = fields.path(key[:64])
                raise invalid(f"A name in '{self.path(name)}' is too long.", param=param)
        return {key: fields.text(key, longest=512) for key in values}

    def wrong(self, name: str, expected: str, value: Json) -> NoReturn:
        param = self.path(name)
        message = f"'{param}' must be {expected}, not {kind_of(value)}."
        raise invalid(message, param=param, code="invalid_type")

    def checked_text(self, name: str, value: Json, *, longest: int | None = None) -> str:
        if not isinstance(value, str):
            self.wrong(name, "a string", value)
        param = self.path(name)
        if longest is not None and len(value) > longest:
            message = f"'{param}' may have at most {longest} characters; got {len(value)}."
            raise invalid(message, param=param, code="string_above_max_length")
        if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
            message = f"'{param}' holds half a surrogate pair, which is no text."
            raise invalid(message, param=param)
        return value

    def _check_range(self, name: str, value: float, low: float, high: float | None) -> None:
        param = self.path(name)
        if not isinstance(value, int) and not math.isfinite(value):
            raise invalid(f"'{param}' must be finite.", param=param)
        if value < low or (high is not None and value > high):
            bounds = f"at least {low}" if high is None else f"between {low} and {high}"
            raise invalid(f"'{param}' must be {bounds}; got {value}.", param=param)
