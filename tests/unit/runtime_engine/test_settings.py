"""Flags and variables say the same; what is wrong is named; the text of a stream; last words."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sojourn_api import names
from sojourn_runtime.detokenize import TextStream
from sojourn_runtime.hooks import MESSAGE_BYTES, last_word
from sojourn_runtime.settings import SettingsError, parse_settings
from sojourn_runtime.stats import p95

MODEL = {names.ENV_MODEL: "file:///models/Smol.gguf"}


def test_flags_win_over_variables() -> None:
    env = MODEL | {names.ENV_PORT: "9000", names.ENV_EPOCH: "3", names.ENV_TIER: names.GOLD}
    settings = parse_settings(["--port", "9001"], env)
    assert (settings.port, settings.epoch, settings.priority) == (9001, 3, 1000)
    assert settings.model_name == "Smol"


def test_an_api_key_is_taken_from_the_environment_only() -> None:
    assert parse_settings([], MODEL | {names.ENV_API_KEY: "k"}).api_key == "k"
    with pytest.raises(SettingsError, match="--api-key"):
        parse_settings(["--api-key", "k"], MODEL)


def test_grants_of_several_gpus_add_up() -> None:
    env = MODEL | {names.env_gpu_bytes(0): "100", names.env_gpu_bytes(3): "20"}
    assert parse_settings([], env).granted_bytes == 120


@pytest.mark.parametrize(
    ("arguments", "env", "named"),
    [
        ([], {}, "--model"),
        (["--port", "x"], MODEL, "--port"),
        (["--port", "70000"], MODEL, "--port"),
        ([], MODEL | {names.ENV_CONTEXT_LENGTH: "-1"}, names.ENV_CONTEXT_LENGTH),
        ([], MODEL | {names.ENV_CHECKPOINT_TOKENS: "0"}, names.ENV_CHECKPOINT_TOKENS),
        ([], MODEL | {names.ENV_TIER: "platinum"}, names.ENV_TIER),
        ([], MODEL | {names.ENV_PRIORITY: "high"}, names.ENV_PRIORITY),
        (["--nonsense"], MODEL, "--nonsense"),
    ],
)
def test_what_is_wrong_is_named(arguments: list[str], env: dict[str, str], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        parse_settings(arguments, env)


class Bytes:
    """A decoder whose tokens are characters."""

    def push(self, token: int, /) -> str:
        return chr(token)

    def flush(self) -> str:
        return "."


@given(st.text("ab", max_size=20), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_a_text_ends_before_the_first_stop_string_and_nothing_is_said_twice(
    whole: str, stops: list[str]
) -> None:
    stream = TextStream(Bytes(), stops=stops)
    said = ""
    for number, letter in enumerate(whole):
        said += stream.push(ord(letter), last=number == len(whole) - 1)
        if stream.stopped:
            break
    found = [
        (at + len(stop), at)
        for stop in stops
        for at in range(len(whole))
        if whole.startswith(stop, at)
    ]
    if found:
        first = min(end for end, _ in found)
        assert said == whole[: min(at for end, at in found if end == first)]
    elif whole:
        assert said == whole + "."


def test_an_end_token_is_silent_and_releases_what_was_held_back() -> None:
    stream = TextStream(Bytes(), stops=["abc"])
    assert stream.push(ord("a")) == ""
    assert stream.push(0, silent=True, last=True) == "a."


@given(st.text(max_size=9000))
def test_a_last_word_fits_and_keeps_its_facts(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "termination-log"
    path.write_text("x" * 5000)
    place = path.stat().st_ino
    last_word(path, {"v": 1, "reason": "Crashed", "message": text, "retry": True})
    data = path.read_bytes()
    assert len(data) <= MESSAGE_BYTES
    assert path.stat().st_ino == place
    assert json.loads(data)["retry"] is True


def test_p95_is_a_value_that_occurred() -> None:
    assert p95([]) is None
    assert p95([0.001 * n for n in range(1, 101)]) == 95.0


def test_reading_the_hooks_is_cheap() -> None:
    """SIGTERM finds its handler before anything heavy is imported."""
    source = Path(__file__).parents[3] / "runtime" / "sojourn_runtime"
    for name in ("hooks.py", "settings.py", "cli.py"):
        top = [line for line in (source / name).read_text().splitlines() if line[:1] not in " #"]
        heavy = [line for line in top if "numpy" in line or "aiohttp" in line or "torch" in line]
        assert not heavy
