"""Quantities by Kubernetes' grammar; what the CRD's schema says of them is the same."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest
import yaml
from sojourn_api.quantity import MOST, quantity, size
from sojourn_api.reader import Invalid

CRD = Path(__file__).parents[3] / "crds" / "llmsessions.yaml"
GOOD = {
    "0": "0",
    "2": "2",
    "+2": "2",
    "2.": "2",
    ".5": "0.5",
    "250m": "0.25",
    "1.5Gi": "1610612736",
    "3n": "3e-9",
    "7u": "7e-6",
    "1k": "1000",
    "2E": "2e18",
    "1Ei": "1152921504606846976",
    "1e3": "1000",
    "1E3": "1000",
    "12e-1": "1.2",
}
BAD = (
    "banana",
    "NaN",
    "sNaN",
    "Infinity",
    "inf",
    "1e999999",
    "1e100",
    "",
    " ",
    "2 ",
    "2\n",
    "1_000",
    "0x10",
    "\uff11",
    "\u0661",
    "1,5",
    "1..5",
    ".",
    "+",
    "m",
    "Gi",
    "1gi",
    "1K",
    "1ki",
    "1e",
    "1e3Gi",
    "--1",
    "9" * 65,
)


def schema(part: str) -> dict[str, Any]:
    found = yaml.safe_load(CRD.read_text())["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for name in ("spec", "template", "resources", part):
        found = found["properties"][name]
    return dict(found["additionalProperties"])


@pytest.mark.parametrize(("text", "value"), GOOD.items())
def test_a_quantity_has_its_value(text: str, value: str) -> None:
    assert quantity(text) == Decimal(value)


@pytest.mark.parametrize("text", BAD)
def test_anything_else_is_invalid_at_its_path(text: str) -> None:
    with pytest.raises(Invalid) as refused:
        quantity(text, "spec.x")
    assert refused.value.path == "spec.x"
    assert "64Gi" in str(refused.value)
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize("text", ["1e99", "9223372036854775808", "9" * 64, "100E"])
def test_what_is_beyond_the_most_counts_as_the_most(text: str) -> None:
    assert quantity(text) == MOST
    assert quantity(f"-{text}" if len(text) < 64 else text) in (MOST, -MOST)


@pytest.mark.parametrize(
    ("count", "words"),
    {
        0: "0 bytes",
        1: "1 byte",
        999: "999 bytes",
        1000: "1 kB",
        999_499: "999 kB",
        999_500: "1 MB",
        269_030_016: "269 MB",
        1_500_000_000: "1.5 GB",
        10_000_000_000: "10 GB",
        99_960_000_000: "100 GB",
        268_985_000_000_000: "269 TB",
        2**63 - 1: "9.22 EB",
        10**22: "10000 EB",
    }.items(),
)
def test_bytes_are_said_in_three_digits_and_a_unit(count: int, words: str) -> None:
    assert size(count) == words


@pytest.mark.parametrize("part", ["requests", "limits"])
def test_the_schema_takes_what_is_a_quantity_from_0_and_nothing_else(part: str) -> None:
    for good in [*GOOD, 2, 0]:
        jsonschema.validate(good, schema(part))
    for bad in [*BAD, "-1", "-500m"]:
        if bad == "2\n":
            continue  # Python's $ takes the end of a line too, unlike the API server's
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(bad, schema(part))
