"""What waits in the gateway is bounded, in number and in bytes."""

import pytest
from sojourn_gateway.errors import ApiError
from sojourn_gateway.file import FileError, parse
from sojourn_gateway.lobby import Lobby, Memory
from sojourn_gateway.settings import Settings
from sojourn_gateway.settings import parse as parse_settings


def test_one_session_cannot_take_every_place() -> None:
    lobby = Lobby(most=3, most_per_session=2)
    with lobby.place("a/one"), lobby.place("a/one"):
        with pytest.raises(ApiError) as caught, lobby.place("a/one"):
            pass
        assert caught.value.status == 503
        assert "Retry-After" in caught.value.headers
        with lobby.place("a/two"):
            assert lobby.held == 3
            with pytest.raises(ApiError), lobby.place("a/three"):
                pass
    assert lobby.held == 0
    with lobby.place("a/one"):
        assert lobby.held == 1


def test_a_large_body_is_refused_and_so_are_too_many() -> None:
    memory = Memory(most=150, most_per_body=100)
    with memory.account() as one:
        memory.take(one, 100)
        with pytest.raises(ApiError) as caught:
            memory.take(one, 1)
        assert caught.value.status == 413
        with memory.account() as two:
            memory.take(two, 50)
            with pytest.raises(ApiError) as full:
                memory.take(two, 1)
            assert full.value.status == 503
        assert memory.used == 100
    assert memory.used == 0


def test_settings_have_defaults_and_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse_settings([]) == Settings()
    found = parse_settings(["--hold-seconds=5", "--most-held=1", "--sessions=/x"])
    assert (found.hold_seconds, found.most_held, str(found.file)) == (5.0, 1, "/x")
    for wrong in ("--most-held=-1", "--hold-seconds=nan", "--port=x", "--unknown=1"):
        with pytest.raises(SystemExit):
            parse_settings([wrong])
        assert wrong.partition("=")[0] in capsys.readouterr().err


def test_a_file_of_sessions_is_read_with_or_without_v1() -> None:
    text = "sessions: {chats/one: 'http://h:1/v1', chats/two: 'http://h:2/'}"
    assert parse(text, source="f") == {"chats/one": "http://h:1", "chats/two": "http://h:2"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sessions: [", "f: cannot be read"),
        ("", "f: write `sessions:"),
        ("sessions: [a]", "f: write `sessions:"),
        ("sessions: {one: 'http://h'}", "'one' is not NAMESPACE/NAME"),
        ("sessions: {a/b: 'h:8000'}", "a/b: 'h:8000' is not http://HOST:PORT"),
        ("sessions: {a/b: 'http://h/other'}", "is not http://HOST:PORT"),
        ("sessions: {a/b: 3}", "is not http://HOST:PORT"),
    ],
)
def test_a_file_that_is_wrong_says_where(text: str, said: str) -> None:
    with pytest.raises(FileError, match=said):
        parse(text, source="f")
