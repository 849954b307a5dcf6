"""What docs/gateway.md lists is what the code has."""

from dataclasses import fields
from pathlib import Path

from sojourn_gateway.metrics import PREFIX, Metrics
from sojourn_gateway.settings import HELP, Settings

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "gateway.md").read_text()


def test_every_flag_is_listed_with_its_default() -> None:
    assert {field.name for field in fields(Settings)} == set(HELP)
    for field in fields(Settings):
        default = getattr(Settings(), field.name)
        shown = f"{default:g}" if isinstance(default, float) else str(default)
        cell = f"| `--{field.name.replace('_', '-')}` | {f'`{shown}`' if shown else ''} |"
        assert cell.replace("|  |", "| |") in TEXT, cell


def test_every_metric_is_listed() -> None:
    metrics = Metrics()
    known = {one.name for one in metrics.registry.collect()} | {
        f"{PREFIX}_{name}" for name in ("held", "sessions", "open", "body_bytes")
    }
    missing = [name for name in sorted(known) if f"`{name.removeprefix(f'{PREFIX}_')}" not in TEXT]
    assert not missing
