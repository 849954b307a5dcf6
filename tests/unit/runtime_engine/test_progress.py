"""A long wait shows how far it is: in a terminal and in a log, each in its way."""

import io
import logging

import pytest
from sojourn_runtime.progress import LOG_SECONDS, SOON, WIDTH, Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def play(out: io.StringIO, *, seconds: float, parts: int = 10) -> None:
    """A wait of so many equal parts."""
    clock = Clock()
    progress = Progress("reading weights", total=10 * parts, out=out, clock=clock)
    for _ in range(parts):
        clock.now += seconds / parts
        progress.add(10)


def test_a_terminal_has_a_bar_in_one_line_that_fills() -> None:
    out = Terminal()
    play(out, seconds=10 * SOON)
    *bars, end = out.getvalue().split("\r")[1:]
    assert end == f"reading weights [{'#' * WIDTH}] 100 %\n"
    assert bars[0] == f"reading weights [{'#' * (WIDTH // 10)}{'.' * (WIDTH - WIDTH // 10)}]  10 %"
    assert [bar.count("#") for bar in bars] == sorted({bar.count("#") for bar in bars})
    assert "\n" not in "".join(bars)


def test_a_log_has_a_line_now_and_then_and_one_at_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    out = io.StringIO()
    play(out, seconds=4 * LOG_SECONDS, parts=160)
    assert out.getvalue() == ""
    assert 4 <= len(caplog.messages) <= 6
    assert caplog.messages[0] == "reading weights: 5 %, 1 s"
    assert caplog.messages[-1] == "reading weights: 100 %, 20 s"


@pytest.mark.parametrize("out", [io.StringIO(), Terminal()])
def test_what_is_over_soon_is_not_worth_a_word(
    out: io.StringIO, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    play(out, seconds=SOON / 2)
    assert (out.getvalue(), caplog.messages) == ("", [])
