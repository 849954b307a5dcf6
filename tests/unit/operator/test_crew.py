"""Work side by side: in order for each object, no more at once than there are writers."""

import threading

import pytest
from sojourn_operator.crew import Crew

WAIT_SECONDS = 10.0


def test_work_for_one_key_keeps_its_order() -> None:
    crew, done = Crew(4), []
    gate = threading.Event()

    def first() -> None:
        assert gate.wait(WAIT_SECONDS)
        done.append("first")

    crew.do(["a"], first)
    threading.Timer(0.05, gate.set).start()
    crew.do(["b", "a"], lambda: done.append("second"))
    crew.rest()
    assert done == ["first", "second"]


def test_work_for_other_keys_does_not_wait() -> None:
    crew, gate = Crew(2), threading.Event()

    def hold() -> None:
        assert gate.wait(WAIT_SECONDS), "b never began"

    crew.do(["a"], hold)
    crew.do(["b"], gate.set)
    crew.rest()


def test_no_more_runs_at_once_than_there_are_writers() -> None:
    crew, lock = Crew(3), threading.Lock()
    running = most = 0

    def work() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.001)
        with lock:
            running -= 1

    for number in range(50):
        crew.do([str(number)], work)
    crew.rest()
    assert most == 3


def test_an_error_is_raised_once_everything_has_ended() -> None:
    crew, done = Crew(2), []

    def fail() -> None:
        raise KeyError("a")

    crew.do(["a"], fail)
    crew.do(["b"], lambda: done.append("b"))
    with pytest.raises(KeyError):
        crew.rest()
    assert done == ["b"]
    crew.rest()
