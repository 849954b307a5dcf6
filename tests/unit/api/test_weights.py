"""What of an LLMModel's numbers is told as wrong, and what of it keeps sessions from starting."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sojourn_api.reader import Invalid, Reader
from sojourn_api.weights import FIELDS, Numbers, differences, grave, told

FOUND = Numbers(
    weight_bytes=269_100_288,
    kv_bytes_per_token=23_040,
    layers=30,
    heads=9,
    kv_heads=3,
    context_length=8192,
)


@pytest.mark.parametrize(
    ("change", "field", "stops"),
    [
        ({"weight_bytes": 135_000_000}, "weightBytes", True),
        ({"weight_bytes": 500_000_000}, "weightBytes", False),
        ({"kv_bytes_per_token": 23_039}, "kvBytesPerToken", True),
        ({"kv_bytes_per_token": 23_041}, "kvBytesPerToken", False),
        ({"layers": 32}, "layers", False),
        ({"heads": 12}, "heads", False),
        ({"kv_heads": 9}, "kvHeads", False),
        ({"context_length": 8193}, "contextLength", True),
    ],
)
def test_each_number_is_held_against_the_weights(
    change: dict[str, int], field: str, *, stops: bool
) -> None:
    (wrong,) = differences(replace(FOUND, **change), FOUND)
    assert (wrong.field, wrong.grave) == (field, stops)
    text = told("smollm2", [wrong])
    assert f"spec.{field} is {wrong.said} and theirs {wrong.found}" in text
    assert "LLMModel smollm2" in text
    assert "`sojourn-runtime inspect`" in text
    fixed = field in {"layers", "heads", "kvHeads"}
    assert ("create a new LLMModel" in text) == fixed


@pytest.mark.parametrize(
    "change",
    [{"weight_bytes": 269_030_016}, {"context_length": 4096}, {"weight_bytes": 270_000_000}],
)
def test_what_people_count_and_a_shorter_context_are_no_fault(change: dict[str, int]) -> None:
    """Two bytes for each parameter is a little less than what lies in memory."""
    assert differences(replace(FOUND, **change), FOUND) == ()


@given(st.sets(st.sampled_from(sorted(FIELDS.values()))))
def test_what_is_left_out_is_no_fault(left_out: set[str]) -> None:
    said = replace(FOUND, **dict.fromkeys(left_out, 0))
    assert differences(said, FOUND) == ()
    assert differences(FOUND, said) == ()


def test_what_stops_is_told_first() -> None:
    wrong = differences(replace(FOUND, layers=31, context_length=9000), FOUND)
    assert [one.field for one in wrong] == ["contextLength", "layers"]
    assert grave(wrong)
    assert not grave(wrong[1:])


def test_numbers_go_through_json() -> None:
    assert Numbers.read(Reader(FOUND.to_json())) == FOUND
    assert Numbers.read(Reader({"layers": 3})) == Numbers(layers=3)


@pytest.mark.parametrize("value", ["30", -1, 1.5, True])
def test_what_is_no_number_is_named(value: Any) -> None:
    with pytest.raises(Invalid, match="layers"):
        Numbers.read(Reader({"layers": value}))
