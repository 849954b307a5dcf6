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
from sojourn_runtime.stats import AGE_SECONDS, HAND_OVER, Stats, p95

MODEL = {names.ENV_MODEL: "file:///models/Smol.gguf"}


def test_flags_win_over_variables() -> None:
    env = MODEL | {names.ENV_PORT: "9000", names.ENV_EPOCH: "3", names.ENV_TIER: names.GOLD}
    env |= {names.ENV_QUANTIZATION: "w8a16"}
    assert parse_settings([], env).quantization == "w8a16"
    settings = parse_settings(["--port", "9001", "--quantization", "w8a8"], env)
    assert (settings.port, settings.epoch, settings.priority) == (9001, 3, 1000)
    assert (settings.model_name, settings.quantization) == ("Smol", "w8a8")


def test_an_api_key_is_taken_from_the_environment_only() -> None:
    assert parse_settings([], MODEL | {names.ENV_API_KEY: "k"}).api_key == "k"
    with pytest.raises(SettingsError, match="--api-key"):
        parse_settings(["--api-key", "k"], MODEL)


def test_grants_of_several_gpus_add_up() -> None:
    env = MODEL | {names.env_gpu_bytes(0): "100", names.env_gpu_bytes(3): "20"}
    assert parse_settings([], env).granted_bytes == 120


def test_a_session_is_one_process_unless_it_is_told_otherwise() -> None:
    assert parse_settings([], MODEL).shards == 1
    assert parse_settings([], MODEL | {names.ENV_SHARDS: "2"}).shards == 2
    with pytest.raises(SettingsError, match=names.ENV_SHARDS):
        parse_settings(["--shards", "0"], MODEL)


def test_slots_name_the_gpus_that_are_shared() -> None:
    env = MODEL | {names.env_gpu_slot(12): "0", names.env_gpu_slot(3): "1"}
    assert parse_settings([], env | {names.env_gpu_bytes(4): "1"}).granted == (3, 12)
    assert parse_settings([], MODEL).granted == ()


def test_a_manifest_that_the_store_must_have_is_named() -> None:
    env = MODEL | {names.ENV_EXPECT_MANIFEST: "manifest-3-12.json"}
    assert parse_settings([], env).expect_manifest == "manifest-3-12.json"
    assert parse_settings([], MODEL).expect_manifest == ""


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
        (["--expect-manifest", "journal-1-1.log"], MODEL, names.ENV_EXPECT_MANIFEST),
        (["--nonsense"], MODEL, "--nonsense"),
        (["--model-numbers", "many"], MODEL, names.ENV_MODEL_NUMBERS),
        (["--model-numbers", "[3]"], MODEL, "numbers: must be an object"),
        ([], MODEL | {names.ENV_MODEL_NUMBERS: '{"layers": "3"}'}, "numbers.layers"),
        (["--session", "../chat"], MODEL, r"--session .* '\.\./chat': write 1 to 63"),
        (["--session", "Chat"], MODEL, "--session"),
        (["--session", "a.b"], MODEL, "--session"),
        (["--session", "chat-"], MODEL, "--session"),
        (["--session", "chat\n"], MODEL, "--session"),
        (["--session", "c" * 64], MODEL, "--session"),
        ([], MODEL | {names.ENV_SESSION: "a/b"}, names.ENV_SESSION),
    ],
)
def test_what_is_wrong_is_named(arguments: list[str], env: dict[str, str], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        parse_settings(arguments, env)


@pytest.mark.parametrize("name", ["chat", "c", "7b-chat", "c" * 63])
def test_a_session_may_have_any_name_that_is_a_dns_label(name: str) -> None:
    assert parse_settings(["--session", name], MODEL).session == name


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


def test_hand_overs_are_counted_by_their_bounds() -> None:
    stats = Stats()
    for seconds in (0.0, HAND_OVER[0], 1.1 * HAND_OVER[0], HAND_OVER[-1], 2 * HAND_OVER[-1]):
        stats.hand_over(seconds)
    assert stats.handed_over == [2, 1, *[0] * (len(HAND_OVER) - 3), 1, 1]
    assert stats.hand_over_seconds == pytest.approx(2.1 * HAND_OVER[0] + 3 * HAND_OVER[-1])


def test_what_was_computed_in_vain_lowers_the_ratio_of_effective_tokens() -> None:
    stats = Stats()
    assert stats.effective(recomputed=0) == 1
    stats.given, stats.tokens = 100, 90  # a pass of ten tokens was stopped
    assert stats.effective(recomputed=0) == 0.9
    assert stats.effective(recomputed=40) == 0.5


def test_reading_the_hooks_is_cheap() -> None:
    """SIGTERM finds its handler before anything heavy is imported."""
    source = Path(__file__).parents[3] / "runtime" / "sojourn_runtime"
    for name in ("hooks.py", "settings.py", "cli.py"):
        top = [line for line in (source / name).read_text().splitlines() if line[:1] not in " #"]
        heavy = [line for line in top if "numpy" in line or "aiohttp" in line or "torch" in line]
        assert not heavy


def test_latencies_of_long_ago_say_nothing_of_now() -> None:
    now = [1000.0]
    stats = Stats(clock=lambda: now[0])
    assert stats.latency()["ttftP95Ms"] is None
    stats.first_token(0.1)
    stats.next_token(0.02)
    assert stats.latency() == {"ttftP95Ms": 100.0, "itlP95Ms": 20.0, "window": 1}
    now[0] += AGE_SECONDS + 1
    assert stats.latency() == {"ttftP95Ms": None, "itlP95Ms": None, "window": 0}
    stats.first_token(0.3)
    assert stats.latency() == {"ttftP95Ms": 300.0, "itlP95Ms": None, "window": 0}
