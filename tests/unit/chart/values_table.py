"""The table of values in the chart's README, made from the comments in values.yaml.

Run as a program it rewrites the table; a test compares it. A value is a key whose comment starts
with `# --`; what lies under it belongs to it.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[3] / "charts" / "sojourn"
START = "<!-- values: "
END = "<!-- end of values -->"


@dataclass(frozen=True, slots=True)
class Value:
    """One documented value."""

    path: str
    default: object
    description: str

    def row(self) -> str:
        default = json.dumps(self.default).replace("|", "\\|")
        return f"| `{self.path}` | `{default}` | {self.description} |"


def documented() -> list[Value]:
    """All values in the order of the file."""
    found: list[Value] = []
    parents: list[tuple[int, str]] = []
    comment = ""
    text = (CHART / "values.yaml").read_text()
    defaults = yaml.safe_load(text)
    for line in text.splitlines():
        if said := re.fullmatch(r" *# -- (.*)", line):
            comment = said[1]
        elif key := re.fullmatch(r"( *)([A-Za-z]\w*):.*", line):
            depth = len(key[1])
            parents = [parent for parent in parents if parent[0] < depth]
            parents.append((depth, key[2]))
            if comment:
                path = [name for _, name in parents]
                found.append(Value(".".join(path), at(defaults, path), comment))
            comment = ""
    return found


def at(values: Any, path: list[str]) -> object:
    for name in path:
        values = values[name]
    found: object = values
    return found


def leaves(values: dict[str, Any], known: set[str], path: str = "") -> list[str]:
    """Paths of all values, down to those that are documented or cannot be entered."""
    found: list[str] = []
    for name, value in values.items():
        full = f"{path}.{name}" if path else name
        if full in known or not isinstance(value, dict) or not value:
            found.append(full)
        else:
            found += leaves(value, known, full)
    return found


def table() -> str:
    rows = [value.row() for value in documented()]
    return "\n".join(["", "| Value | Default | What it is |", "| --- | --- | --- |", *rows, ""])


def shown() -> str:
    """What README.md has between the two marks."""
    _, _, rest = (CHART / "README.md").read_text().partition(START)
    return rest.partition("-->\n")[2].partition(END)[0]


def main() -> None:
    readme = CHART / "README.md"
    text = readme.read_text()
    head, mark, rest = text.partition(START)
    first_line, _, rest = rest.partition("-->\n")
    _, _, tail = rest.partition(END)
    readme.write_text(f"{head}{mark}{first_line}-->\n{table()}{END}{tail}")


if __name__ == "__main__":
    main()
