"""A forward pass that is asked to stop does so within four layers, and leaves no trace that
matters.
"""

from collections.abc import Callable

import pytest
from sojourn_runtime.model.cpu import CpuRunner
from sojourn_runtime.model.protocol import INTERRUPTED, Interrupted, Segment, StopFlag

NewRunner = Callable[..., CpuRunner]
PROMPT = Segment(list(range(90)), 0, (0, 1))


@pytest.mark.parametrize("threads", [1, 2])
def test_a_set_flag_interrupts(new_runner: NewRunner, threads: int) -> None:
    flag = StopFlag()
    flag.set()
    assert new_runner(threads=threads).forward([PROMPT], stop=flag) is INTERRUPTED


def test_a_cleared_flag_does_not(new_runner: NewRunner) -> None:
    flag = StopFlag()
    flag.set()
    flag.clear()
    assert not isinstance(new_runner().forward([PROMPT], stop=flag), Interrupted)


def test_the_poll_is_called_every_four_layers(new_runner: NewRunner) -> None:
    calls: list[int] = []

    def poll() -> bool:
        calls.append(1)
        return False

    new_runner(threads=2).forward([PROMPT], stop=StopFlag(poll))
    assert len(calls) == 2  # before layers 0 and 4 of 6


def test_a_poll_that_says_stop_ends_the_pass_midway(new_runner: NewRunner) -> None:
    answers = iter([False, True])
    stop = StopFlag(lambda: next(answers))
    runner = new_runner(threads=2)
    assert runner.forward([PROMPT], stop=stop) is INTERRUPTED
    assert next(answers, None) is None
    by_layer = runner.kv[0].reshape(6, -1)
    assert by_layer.any(axis=1).tolist() == [True] * 4 + [False] * 2


def test_the_pass_repeated_after_a_stop_gives_equal_bits(new_runner: NewRunner) -> None:
    runner, undisturbed = new_runner(), new_runner()
    answers = iter([False, True])
    runner.forward([PROMPT], stop=StopFlag(lambda: next(answers)))
    again, once = runner.forward([PROMPT]), undisturbed.forward([PROMPT])
    assert not isinstance(again, Interrupted)
    assert not isinstance(once, Interrupted)
    assert again.tobytes() == once.tobytes()
    assert runner.kv.tobytes() == undisturbed.kv.tobytes()


def test_a_second_pass_at_once_is_refused(new_runner: NewRunner) -> None:
    runner = new_runner()
    refusals: list[str] = []

    def interfere() -> bool:
        with pytest.raises(RuntimeError, match="one at a time") as refused:
            runner.forward([PROMPT])
        refusals.append(str(refused.value))
        return False

    runner.forward([PROMPT], stop=StopFlag(interfere))
    assert len(refusals) == 2


def test_a_closed_runner_computes_no_more(new_runner: NewRunner) -> None:
    runner = new_runner(threads=2)
    runner.close()
    runner.close()
    with pytest.raises(RuntimeError, match="closed"):
        runner.forward([PROMPT])
