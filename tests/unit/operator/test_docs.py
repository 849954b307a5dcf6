"""What docs/operator.md lists is what the code has."""

from dataclasses import fields
from pathlib import Path

from prometheus_client import REGISTRY
from sojourn_operator import metrics, reasons
from sojourn_operator.config import Config, _camel

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "operator.md").read_text()


def test_every_setting_is_listed() -> None:
    missing = [field.name for field in fields(Config) if f"`{_camel(field.name)}`" not in TEXT]
    assert not missing


def test_every_metric_is_listed() -> None:
    assert metrics.LEADER
    prefix = "sojourn_operator_"
    known = [one.name for one in REGISTRY.collect() if one.name.startswith(prefix)]
    assert known
    missing = [name for name in known if name.removeprefix(prefix) not in TEXT]
    assert not missing


def test_every_event_is_listed() -> None:
    told = [value for name, value in vars(reasons).items() if name.startswith("EVENT_")]
    assert told
    assert not [reason for reason in told if f"`{reason}`" not in TEXT]
