"""The file of a benchmark's figures, for `--out`."""

import json
from pathlib import Path


def save(report: object, out: Path | None) -> None:
    """Write `report` as JSON, into a folder that need not be there; nothing where `out` is None."""
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(report, indent=1) + "\n")
