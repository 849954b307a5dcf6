"""Rows of CSV and YAML files, read at the edge: every fault names file, row, field and remedy."""

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isnan
from pathlib import Path
from typing import Any

import yaml


class StudyError(Exception):
    """A file cannot be read as what it should be."""


@dataclass(frozen=True, slots=True)
class Row:
    """`where` names the file and the row, as every fault does."""

    where: str
    values: Mapping[str, Any]

    def fault(self, text: str) -> StudyError:
        return StudyError(f"{self.where}: {text}")

    def text(self, *names: str) -> str:
        """The first of these columns that holds something, else empty."""
        found = (self.values.get(name) for name in names)
        return next((str(one).strip() for one in found if one not in (None, "")), "")

    def words(self, name: str) -> tuple[str, ...]:
        """A YAML list, or names with spaces or `|` between them."""
        value = self.values.get(name)
        if isinstance(value, list):
            return tuple(str(one) for one in value)
        return tuple(self.text(name).replace("|", " ").split())

    def whole(self, name: str, default: int, *, low: int = 0, high: int = 1 << 40) -> int:
        """A whole number within bounds; absent or empty is the default."""
        text = self.text(name)
        if not text:
            return default
        try:
            found = float(text)
        except ValueError:
            found = -1.0
        if not low <= found <= high or found % 1:
            raise self.fault(f"{name} {text!r}: write a whole number from {low} to {high}")
        return int(found)

    def seconds(self, name: str, default: float) -> float:
        """A time; `inf` is one too."""
        text = self.text(name)
        if not text:
            return default
        try:
            found = float(text)
        except ValueError:
            found = -1.0
        if isnan(found) or found < 0:
            raise self.fault(f"{name} {text!r}: write seconds, 0 or more")
        return found


def rows_of(path: Path, needed: Iterable[tuple[str, ...]]) -> list[Row]:
    """All rows of a file, at least one; of each tuple of `needed` one name must be a column."""
    try:
        is_yaml = path.suffix.lower() in (".yaml", ".yml")
        rows = list(_from_yaml(path) if is_yaml else _from_csv(path, needed))
    except OSError as error:
        raise StudyError(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise StudyError(f"{path}: not a text file; give CSV or YAML in UTF-8") from error
    except (yaml.YAMLError, csv.Error) as error:
        text = " ".join(str(error).split())
        raise StudyError(f"{path}: {text}; give CSV, or YAML named *.yaml") from error
    if not rows:
        raise StudyError(f"{path}: empty; write one row for each")
    return rows


def _from_yaml(path: Path) -> Iterable[Row]:
    listed = yaml.safe_load(path.read_text(encoding="utf-8"))
    if listed is None:
        return
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise StudyError(f"{path}: not a list of mappings; write `- name: ...` for each")
    for index, one in enumerate(listed, start=1):
        yield Row(f"{path}, item {index}", one)


def _from_csv(path: Path, needed: Iterable[tuple[str, ...]]) -> Iterable[Row]:
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file, strict=True)
        head = [name.strip() for name in reader.fieldnames or ()]
        if not head:
            return
        if "\0" in "".join(head):
            raise StudyError(f"{path}: not a text file; give CSV or YAML in UTF-8")
        for names in needed:
            if not set(names) & set(head):
                raise StudyError(
                    f"{path}, line 1: no column {names[0]}; the first line names the columns"
                )
        reader.fieldnames = head
        for values in reader:
            row = Row(f"{path}, line {reader.line_num}", values)
            if None in values:
                raise row.fault(f"more than the {len(head)} columns of line 1; remove the rest")
            yield row
