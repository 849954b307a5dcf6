"""What docs/operator.md lists is what the code has."""

from dataclasses import fields
from pathlib import Path

from prometheus_client import REGISTRY
from sojourn_operator import metrics, reasons
from sojourn_operator.config import Config, _camel
from sojourn_operator.plan import actions

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


def test_every_reason_that_a_condition_can_have_is_listed() -> None:
    """A back-off alone never shows: the failure before it tells of itself."""
    words = {value for name, value in vars(reasons).items() if name.isupper()}
    words |= {value for name, value in vars(actions).items() if name.isupper()} - {actions.BACK_OFF}
    assert not [reason for reason in sorted(words) if f"`{reason}`" not in TEXT]
