"""Fields of a request are read one by one, and every complaint names its field."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sojourn_runtime.server.errors import ApiError
from sojourn_runtime.server.fields import Fields, parse_object
from sojourn_runtime.server.query import Query


def fields(**values: Any) -> Fields:
    return Fields(values)


@pytest.mark.parametrize(
    "body",
    [b"", b"  ", b"{", b"[1]", b'"text"', b"null", b"\xff\xfe", b'{"a": NaN}', b"{'a': 1}"],
)
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        parse_object(body)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")


def test_deep_nesting_is_refused_rather_than_fatal() -> None:
    with pytest.raises(ApiError):
        parse_object(b'{"a":' * 100_000 + b"1" + b"}" * 100_000)


@given(st.binary(max_size=64))
def test_parsing_never_fails_otherwise(body: bytes) -> None:
    with suppress(ApiError):
        assert isinstance(parse_object(body), dict)


CASES: list[tuple[Callable[[Fields], object], Any, str]] = [
    (lambda f: f.text("a"), None, "'a' is required"),
    (lambda f: f.text("a"), 3, "must be a string, not a number"),
    (lambda f: f.text("a", longest=2), "abc", "at most 2 characters"),
    (lambda f: f.text("a"), "\ud800", "surrogate"),
    (lambda f: f.flag("a", default=False), "yes", "must be a boolean, not a string"),
    (lambda f: f.integer("a", low=1, default=1), True, "must be an integer, not a boolean"),
    (lambda f: f.integer("a", low=1, default=1), 1.5, "must be an integer"),
    (lambda f: f.integer("a", low=1, default=1), 0, "at least 1"),
    (lambda f: f.integer("a", low=1, high=9, default=1), 10, "between 1 and 9"),
    (lambda f: f.number("a", low=0, high=2, default=1), "1", "must be a number, not a string"),
    (lambda f: f.number("a", low=0, high=2, default=1), 3, "between 0 and 2"),
    (lambda f: f.number("a", low=0, high=None, default=1), float("inf"), "finite"),
    (lambda f: f.choice("a", ("x", "y"), default="x"), "z", "one of 'x', 'y'"),
    (lambda f: f.array("a"), {}, "must be an array, not an object"),
    (lambda f: f.array("a", most=1), [1, 2], "at most 1 entries"),
    (lambda f: f.object_or_none("a"), [], "must be an object, not an array"),
    (lambda f: list(f.objects("a")), [{}, 3], "'a[1]' must be an object"),
    (lambda f: f.texts("a", most=4), ["x", 3], "'a[1]' must be a string"),
    (lambda f: f.metadata("a"), {"k": 3}, "'a.k' must be a string"),
    (lambda f: f.metadata("a"), {str(n): "" for n in range(17)}, "at most 16"),
    (lambda f: f.metadata("a"), {"k" * 65: ""}, "too long"),
]


@pytest.mark.parametrize(("read", "value", "message"), CASES)
def test_a_wrong_value_is_refused_by_name(
    read: Callable[[Fields], object], value: Any, message: str
) -> None:
    with pytest.raises(ApiError) as caught:
        read(fields(a=value))
    assert message in caught.value.message
    assert (caught.value.param or "").startswith("a")
    assert caught.value.status == 400


def test_null_counts_as_absent() -> None:
    given_null = fields(a=None)
    assert not given_null.has("a")
    assert given_null.integer("a", low=0, default=7) == 7
    assert given_null.texts("a", most=4) == ()


def test_a_whole_float_is_an_integer() -> None:
    assert fields(a=4.0).integer("a", low=0, default=1) == 4


def test_what_nobody_read_is_unknown() -> None:
    found = fields(a=1, b={"c": 2})
    found.raw("a")
    nested = found.object_or_none("b")
    assert nested is not None
    found.refuse_unknown()
    with pytest.raises(ApiError) as caught:
        nested.refuse_unknown()
    assert caught.value.param == "b.c"


@pytest.mark.parametrize("text", ["x", "", "1.5", "--1", "1e3", "99999999999999999999", "-2"])
def test_a_query_takes_integers_in_range_only(text: str) -> None:
    with pytest.raises(ApiError) as caught:
        Query({"limit": text}).integer_or_none("limit", low=-1, high=100)
    assert caught.value.param == "limit"


def test_a_query_is_read() -> None:
    query = Query({"stream": "true", "limit": "5", "order": "asc"})
    assert query.flag("stream")
    assert not query.flag("other")
    assert query.integer_or_none("limit", low=1) == 5
    assert query.choice("order", ("asc", "desc"), default="desc") == "asc"
    with pytest.raises(ApiError):
        Query({"order": "up"}).choice("order", ("asc", "desc"), default="desc")
    with pytest.raises(ApiError):
        Query({"stream": "maybe"}).flag("stream")
