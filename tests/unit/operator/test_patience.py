"""What failed is tried again after a while, and later each time."""

from sojourn_operator.patience import FIRST_SECONDS, MOST_SECONDS, Patience


class Clock:
    """Time as a test sets it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_each_failure_doubles_the_wait_up_to_a_bound() -> None:
    clock = Clock()
    patience, waits = Patience(clock), []
    for _ in range(12):
        patience.failed("team/chat")
        waits.append(patience.left("team/chat"))
        clock.now += waits[-1]
        assert patience.left("team/chat") == 0
    assert waits[:3] == [FIRST_SECONDS, 2 * FIRST_SECONDS, 4 * FIRST_SECONDS]
    assert waits[-1] == MOST_SECONDS


def test_others_do_not_wait() -> None:
    patience = Patience(Clock())
    patience.failed("team/chat")
    assert patience.left("team/other") == 0


def test_a_success_forgets_the_failures() -> None:
    clock = Clock()
    patience = Patience(clock)
    for _ in range(3):
        patience.failed("team/chat")
        clock.now += patience.left("team/chat")
    patience.worked("team/chat")
    patience.failed("team/chat")
    assert patience.left("team/chat") == FIRST_SECONDS


def test_what_was_under_way_at_the_failure_neither_ends_nor_lengthens_the_wait() -> None:
    patience = Patience(Clock())
    patience.failed("the API server")
    patience.failed("the API server")
    patience.worked("the API server")
    assert patience.left("the API server") == FIRST_SECONDS


def test_it_waits_as_long_as_whoever_refused_wants() -> None:
    patience = Patience(Clock())
    patience.failed("the API server", at_least=7.0)
    assert patience.left("the API server") == 7.0


def test_it_tells_for_how_long_each_has_to_wait() -> None:
    clock = Clock()
    patience = Patience(clock)
    patience.failed("team/chat")
    patience.failed("team/other", at_least=7.0)
    assert patience.waits() == {"team/chat": FIRST_SECONDS, "team/other": 7.0}
    clock.now += FIRST_SECONDS
    assert list(patience.waits()) == ["team/other"]


def test_what_nobody_tried_again_is_forgotten() -> None:
    clock = Clock()
    patience = Patience(clock)
    for number in range(10):
        patience.failed(f"team/{number}")
    clock.now += FIRST_SECONDS + MOST_SECONDS
    patience.failed("team/chat")
    assert list(patience._waits) == ["team/chat"]
