"""Options of the whole suite: `--no-skips` turns a skipped test into a failed one.

Fixtures belong to the level that uses them (`tests/cluster`, `tests/e2e`), not here.
"""

from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says nothing on a shared machine; timings belong into benchmarks/.
settings.register_profile(
    "shared-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("shared-machine")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--no-skips",
        action="store_true",
        help="count a skipped test as failed: after `make test` has set up a machine, none may be",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and item.config.getoption("--no-skips"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped under --no-skips: {call.excinfo}"
    return report
