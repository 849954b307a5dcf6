"""States and plans as plain data (for JSON) and back, so that decisions can be recorded and
replayed.

Driven by the dataclasses' own types: a new field needs no change here, and an absent one its
default.
"""

import dataclasses
import types
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def to_data(value: object) -> Any:
    """Lists, dicts, numbers and strings for any of the plan's values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = {
            field.name: to_data(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
        return {"kind": type(value).__name__, **found}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): to_data(item) for key, item in value.items()}
    if isinstance(value, frozenset):
        return sorted(to_data(item) for item in value)
    if isinstance(value, tuple | list):
        return [to_data(item) for item in value]
    return value


def from_data(kind: type[T], data: Any) -> T:
    """The value of this type that `to_data` made the data from."""
    made: T = _build(kind, data)
    return made


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _build(kind: Any, data: Any) -> Any:
    if get_origin(kind) in (Union, types.UnionType):
        return _build_union(get_args(kind), data)
    if get_origin(kind) is not None:
        return _build_many(get_origin(kind), get_args(kind), data)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        hints = _hints(kind)
        known = {name: item for name, item in data.items() if name in hints}
        return kind(**{name: _build(hints[name], item) for name, item in known.items()})
    if isinstance(kind, type) and issubclass(kind, Enum | float):
        return kind(data)
    return data


def _build_many(origin: Any, inner: tuple[Any, ...], data: Any) -> Any:
    if issubclass(origin, Mapping):
        return {key: _build(inner[1], item) for key, item in data.items()}
    if origin is tuple and inner[-1] is not ...:
        return tuple(_build(one, item) for one, item in zip(inner, data, strict=True))
    return origin(_build(inner[0], item) for item in data)


def _build_union(arguments: tuple[Any, ...], data: Any) -> Any:
    if data is None:
        return None
    choices = [one for one in arguments if one is not type(None)]
    if isinstance(data, dict):
        named = [one for one in choices if getattr(one, "__name__", "") == data.get("kind")]
        choices = named or choices
    return _build(choices[0], data)
