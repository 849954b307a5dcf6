"""Conflicts, an API server that has too much to do, watches that go silent: no session is lost."""

import random
import time
from collections.abc import Iterator

import pytest
from operatorrig import Rig, wait_until
from sojourn_operator.crew import WRITERS
from weather import Refusal, Weather


@pytest.fixture
def weather(rig: Rig) -> Iterator[Weather]:
    """Between the operator and the API server; everybody else goes the direct way."""
    found = Weather(rig.control_plane, rig.folder)
    yield found
    found.refuse = lambda _method, _path: None
    for operator in rig.operators:
        operator.stop()
    found.close()


def create_sessions(rig: Rig, count: int) -> list[str]:
    keys = [f"chat-{number}" for number in range(count)]
    for key in keys:
        rig.create(key, resources={"slices": 2, "share": 5})
    return keys


def test_conflicts_lose_no_session(rig: Rig, weather: Weather) -> None:
    """A quarter of all writes meets one, wherever that leaves the work on a session."""
    dice = random.Random(7)  # noqa: S311 - the same weather in every run

    def refuse(_method: str, _path: str) -> Refusal | None:
        return Refusal(409, "Conflict") if dice.random() < 1 / 4 else None

    weather.refuse = refuse
    rig.nodes.add_node("node-a")
    rig.operate(kubeconfig=weather.kubeconfig)
    keys = create_sessions(rig, 12)
    for key in keys:
        rig.until_ready(key)
    assert weather.refused
    assert [rig.pods(key) for key in keys] == [[f"{key}-1"] for key in keys]
    for key in keys:
        rig.delete(key)
    wait_until(lambda: not any(rig.session(key) for key in keys), what="all are gone")
    assert not any(rig.pods(key) for key in keys)


def test_an_api_server_that_has_enough_is_left_alone(rig: Rig, weather: Weather) -> None:
    """It says for how long; then nobody asks, however many sessions wait and events come in."""
    seconds, wait = 4.0, 2
    rig.nodes.add_node("node-a")
    operator = rig.operate(kubeconfig=weather.kubeconfig)
    operator.until_ready()
    rig.create("first", resources={"slices": 2, "share": 5})
    rig.until_ready("first")
    end = time.monotonic() + seconds

    def refuse(_method: str, _path: str) -> Refusal | None:
        return Refusal(429, "TooManyRequests", wait) if time.monotonic() < end else None

    weather.refuse = refuse
    keys = create_sessions(rig, 20)
    for key in keys:
        rig.until_ready(key)
    assert weather.refused
    tries = seconds / wait + 1
    assert len(weather.refused) <= 2 * WRITERS * tries
    assert [rig.pods(key) for key in keys] == [[f"{key}-1"] for key in keys]


def test_a_watch_that_went_silent_loses_no_session(rig: Rig, weather: Weather) -> None:
    """Neither one that was created meanwhile nor one that was deleted."""
    rig.settings["relistSeconds"] = 1
    rig.nodes.add_node("node-a")
    operator = rig.operate(kubeconfig=weather.kubeconfig)
    rig.create("early", resources={"slices": 60, "share": 5})
    rig.until_ready("early")
    weather.silent.set()
    rig.delete("early")
    rig.create("late", resources={"slices": 60, "share": 5})
    rig.until_ready("late")
    wait_until(lambda: rig.session("early") is None, what="the early one is gone")
    assert operator.metric_sum("sojourn_operator_relist_corrections_total") > 0
