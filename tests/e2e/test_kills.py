"""Whatever is killed, at whatever moment, the story ends well: nobody runs twice, nothing is lost.

Each case pauses a writing Silver session for Gold, kills one kind of process in the middle of it,
lets Gold go, and compares the Silver's text with that of a process which was never paused.
"""

import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import conversation
import faults
import pytest
from control import control_runtime
from conversation import Reading
from places import Place
from steps import MODEL, Steps, condition, condition_of
from story import Facts

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

TOKENS = 300
SEED = 11
SESSION = "killed-1"
GOLD = "killed-gold"


@pytest.fixture(scope="module")
def control(place: Place) -> Reading:
    with (
        tempfile.TemporaryDirectory() as folder,
        control_runtime(place.weights, Path(folder), model_name=MODEL) as base,
        conversation.client_of(base, "no key is set there") as client,
    ):
        return conversation.whole(client, MODEL, tokens=TOKENS, seed=SEED)


@pytest.fixture
def steps(place: Place, facts: Facts) -> Iterator[Steps]:
    """After the story: its sessions are gone, and one Silver session runs on the H100."""
    del facts
    steps = Steps(place.kube)
    steps.clear()
    steps.apply_session(SESSION, "silver", gpu_model="H100")
    steps.wait_ready(SESSION)
    yield steps
    for name in (GOLD, SESSION):
        steps.delete(name)


@pytest.mark.parametrize("name", faults.NAMES)
def test_a_kill_in_the_middle_of_a_pause_changes_nothing(
    steps: Steps, control: Reading, name: str
) -> None:
    (reading,) = steps.begin_together(SESSION, tokens=TOKENS, seeds=(SEED,), read=60)
    epoch = steps.read(SESSION)["status"]["epoch"]
    steps.apply_session(GOLD, "gold")
    time.sleep(random.Random(name).uniform(0, 2))  # noqa: S311 - the moment, not a secret
    assert faults.kill(name) > 0
    steps.wait_ready(GOLD, seconds=180)
    assert len(_pods(steps, SESSION)) == 0
    steps.wait_paused(SESSION)
    steps.delete(GOLD)
    steps.wait_ready(SESSION, after_epoch=epoch, seconds=180)
    assert len(_pods(steps, SESSION)) == 1
    steps.go_on(SESSION, reading)
    assert reading.deltas == control.deltas
    assert reading.numbers == control.numbers


def test_a_killed_session_goes_on_without_contradicting_its_client(
    steps: Steps, control: Reading
) -> None:
    (reading,) = steps.begin_together(SESSION, tokens=TOKENS, seeds=(SEED,), read=60)
    epoch = steps.read(SESSION)["status"]["epoch"]
    assert faults.kill_session(SESSION) == 1
    steps.wait_ready(SESSION, after_epoch=epoch, seconds=180)
    steps.go_on(SESSION, reading)
    assert reading.deltas == control.deltas
    assert reading.numbers == control.numbers


def test_a_node_whose_power_is_cut_costs_a_session_nothing(steps: Steps, control: Reading) -> None:
    """It goes on elsewhere; when the node is back, all that was granted there is free again."""
    steps.apply_session(SESSION, "silver")  # no wish any more: it may go anywhere
    (reading,) = steps.begin_together(SESSION, tokens=TOKENS, seeds=(SEED,), read=60)
    status = steps.read(SESSION)["status"]
    lost, epoch = status["node"], status["epoch"]
    faults.cut_power(lost)
    try:
        back = steps.wait_ready(SESSION, after_epoch=epoch, seconds=180)
        assert back["status"]["node"] != lost
        steps.go_on(SESSION, reading)
        _wait_node(
            steps, lost, lambda node: condition_of(node, "Ready")["reason"] == "NodeNotReady"
        )
    finally:
        faults.give_power(lost)
    assert reading.deltas == control.deltas
    assert reading.numbers == control.numbers
    _wait_node(steps, lost, _is_ready_and_empty)
    assert len(_pods(steps, SESSION)) == 1


def _wait_node(steps: Steps, name: str, until: Callable[[dict[str, Any]], bool]) -> None:
    """For as long as it takes a new operator, where all were on the lost node, to miss it too."""
    steps.kube.wait_for(f"GPUNode {name}", "gpunodes", name, until, seconds=180)


def _is_ready_and_empty(node: dict[str, Any]) -> bool:
    status = node["status"]
    return condition(node, "Ready") == "True" and status["slicesFree"] == status["slicesTotal"]


def _pods(steps: Steps, session: str) -> list[str]:
    """Pods of a session that run or may run."""
    return [
        pod["metadata"]["name"]
        for pod in steps.pods(session)
        if pod["status"]["phase"] in {"Pending", "Running", "Unknown"}
    ]
