"""The page about the device plugin says of its settings what the code says."""

import re
from dataclasses import fields
from enum import StrEnum
from pathlib import Path

import pytest
from sojourn_api import arbiter
from sojourn_deviceplugin.config import Config, camel

PAGE = Path(__file__).parents[3] / "docs" / "deviceplugin.md"
ROW = re.compile(r"^\| `(\w+)` \| (?:`([^`]*)`|none) \| ", re.MULTILINE)


def shown(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, StrEnum):
        return value.value
    return "{}" if value == () else str(value)


def test_every_setting_stands_there_with_its_default() -> None:
    table = PAGE.read_text().partition("## Settings")[2].partition("## Rights")[0]
    documented = dict(ROW.findall(table))
    actual = {camel(field.name): shown(getattr(Config(), field.name)) for field in fields(Config)}
    assert documented == actual


@pytest.mark.parametrize(
    ("file", "words"),
    [("<slot>/pod/page", arbiter.PAGE_WORDS), ("<slot>/tier", arbiter.TIER_FORMAT.size // 8)],
)
def test_the_arbiters_layout_stands_there_word_by_word(file: str, words: int) -> None:
    (row,) = re.findall(
        rf"^\| `{re.escape(file)}` \|[^|]*\| (.*) \|$", PAGE.read_text(), re.MULTILINE
    )
    listed = re.sub(r"\([^)]*\)", "", row).replace("and the allocator's:", "").split(",")
    assert len(listed) == words, listed


def test_the_charts_settings_are_settings() -> None:
    chart = PAGE.parents[1] / "charts" / "sojourn" / "templates" / "deviceplugin-config.yaml"
    block = chart.read_text().partition("deviceplugin.yaml: |")[2]
    written = set(re.findall(r"^    (\w+):", block, re.MULTILINE))
    assert written
    assert written <= {camel(field.name) for field in fields(Config)}
