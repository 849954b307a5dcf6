"""SmolLM2 in a process of its own: SIGTERM and kill -9 at random moments, and the text is the same.

The counts are those of the promise; SOJOURN_TEST_PAUSES makes them smaller or larger.
"""

import fcntl
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pods import Delta, Pod

PAUSES = int(os.environ.get("SOJOURN_TEST_PAUSES", "20"))
LONG = "Tell me about the sea. " * 180
"""About 1,100 tokens: a prefill of a second or more."""

pytestmark = pytest.mark.timeout(600)

NewPod = Callable[..., Pod]


def body(
    *, seed: int | None, text: str = "Tell me a story about a dog.", tokens: int = 120
) -> dict[str, Any]:
    how = {"temperature": 0} if seed is None else {"temperature": 0.8, "seed": seed}
    return {"input": text, "max_output_tokens": tokens, "background": True, "stream": False} | how


def whole(pod: Pod, **request: Any) -> list[Delta]:
    """All events of a response that nothing happens to."""
    return list(pod.deltas(pod.post("/v1/responses", **request)["id"]))


def check(found: list[Delta], expected: list[Delta]) -> None:
    """Every number once and in order, and the same text at each."""
    assert [event.number for event in found] == list(range(len(found)))
    assert [(e.number, e.type, e.text) for e in found] == [
        (e.number, e.type, e.text) for e in expected
    ]


@pytest.mark.parametrize("seed", [None, 42])
def test_pauses_at_random_tokens_change_nothing(new_pod: NewPod, seed: int | None) -> None:
    pod = new_pod("alone")
    pod.start()
    expected = whole(pod, **body(seed=seed))
    pod.pause()
    dice = random.Random(seed or 1)  # noqa: S311 - moments, no secrets
    pod = new_pod("paused")
    pod.start()
    response = pod.post("/v1/responses", **body(seed=seed))["id"]
    found: list[Delta] = []
    for number in range(PAUSES // 2):
        pod.read_and_pause(response, found, more=dice.randrange(1, 2 * 110 // (PAUSES // 2)))
        code, words = pod.ended()
        assert (code, words["reason"], words["exact"]) == (0, "Paused", True), number
        pod.start()
        resumed = pod.status()["resumed"]
        assert resumed is None or resumed["recomputedTokens"] == 0
    found += pod.deltas(response, after=found[-1].number)
    check(found, expected)


@pytest.mark.parametrize("kind", ["w8a16", "w8a8"])
def test_int8_comes_back_in_its_own_bits_and_another_class_says_that_its_are_others(
    new_pod: NewPod, kind: str
) -> None:
    pod = new_pod(kind, flags=("--quantization", kind))
    pod.start()
    expected = whole(pod, **body(seed=42))
    response = pod.post("/v1/responses", **body(seed=42))["id"]
    found: list[Delta] = []
    for more in (10, 30, 40):
        pod.read_and_pause(response, found, more=more)
        words = pod.ended()[1]
        assert (words["reason"], words["exact"]) == ("Paused", True)
        pod.flags = pod.flags if more < 40 else ()
        pod.start()
        assert (pod.status()["resumed"]["recomputedTokens"] > 0) is (more == 40)
    check(found, expected[: len(found)])
    assert pod.status()["exact"] is False
    assert f"-{kind}-v1, computed again by cpu-fma-bf16-v1" in pod.status()["exactReason"]


@pytest.mark.parametrize("seed", [None, 42])
def test_a_pause_in_the_middle_of_a_prefill_changes_nothing(
    new_pod: NewPod, seed: int | None
) -> None:
    pod = new_pod("paused")
    pod.start()
    response = pod.post("/v1/responses", **body(seed=seed, text=LONG, tokens=30))["id"]
    pod.until(lambda: pod.status()["unsavedBytes"] > 0, "in the prefill")
    words = pod.pause()
    assert 0 < words["snapshot"]["tokens"] < 1000
    pod.start()
    found = list(pod.deltas(response))
    assert pod.status()["resumed"]["recomputedTokens"] == 0
    startup = pod.status()["startup"]
    assert 0 < startup["listeningMs"] <= startup["loadedMs"] <= startup["servingMs"]
    again = pod.post("/v1/responses", **body(seed=seed, text=LONG, tokens=30))["id"]
    check(found, list(pod.deltas(again)))


@pytest.mark.parametrize("seed", [None, 42])
def test_after_kill_9_nothing_said_is_contradicted(new_pod: NewPod, seed: int | None) -> None:
    pod = new_pod("killed")
    pod.start()
    expected = whole(pod, **body(seed=seed))
    response = pod.post("/v1/responses", **body(seed=seed))["id"]
    found: list[Delta] = []
    for wanted in (7, 40, 60):
        last = found[-1].number if found else None
        for event in pod.deltas(response, after=last):
            found.append(event)
            if event.number >= (last or 0) + wanted:
                pod.signal(signal.SIGKILL)
        pod.ended()
        pod.start()
        assert pod.status()["resumed"]["recomputedTokens"] <= 256
    found += pod.deltas(response, after=found[-1].number)
    check(found, expected)


def test_a_second_sigterm_changes_nothing(new_pod: NewPod) -> None:
    pod = new_pod("twice")
    pod.start()
    response = pod.post("/v1/responses", **body(seed=None))["id"]
    next(iter(pod.deltas(response)))
    pod.signal()
    pod.signal()
    code, words = pod.ended()
    assert (code, words["requests"]) == (0, 1)


def test_probes_are_answered_while_the_model_loads_and_a_sigterm_is_a_pause(
    new_pod: NewPod,
) -> None:
    pod = new_pod("early")
    pod.model = pod.folder / "weights.gguf"
    os.mkfifo(pod.model)  # weights that never come
    pod.start(wait=False)
    pod.until(lambda: b"listening" in (pod.folder / "log").read_bytes(), "listening")
    assert pod.get("/healthz")[0] == 200
    assert pod.get("/readyz")[0] == 503
    assert pod.status()["phase"] == "Loading"
    pod.signal()
    code, words = pod.ended()
    assert (code, words["reason"]) == (0, "Paused")


def test_the_cpu_needs_no_torch(new_pod: NewPod) -> None:
    pod = new_pod("light")
    (pod.folder / "torch.py").write_text("raise SystemExit('torch was imported')")
    pod.start()
    assert pod.pause()["reason"] == "Paused"


@pytest.mark.parametrize(
    ("flags", "reason", "code"),
    [
        (("--context-length", "many"), "InvalidConfiguration", 2),
        (("--store", "gs://bucket/one"), "InvalidConfiguration", 2),
        (("--context-length", "9000"), "ContextTooLong", 1),
        (("--kv-bytes", "1000000"), "ContextTooLong", 1),
        (("--model-numbers", '{"kvBytesPerToken": 2304}'), "ModelMismatch", 1),
        (("--model", "/nowhere.gguf"), "ModelNotFound", 1),
        (("--weights-digest", "sha256:0"), "WeightsDigestMismatch", 1),
        (("--quantization", "int4"), "InvalidConfiguration", 2),
        (("--quantization", "w8a8", "--device", "eager"), "InvalidConfiguration", 2),
        (("--store", "/dev/null/store"), "StoreUnwritable", 1),
    ],
)
def test_what_is_wrong_is_said_in_the_termination_message(
    new_pod: NewPod, flags: tuple[str, ...], reason: str, code: int
) -> None:
    pod = new_pod("wrong", flags=flags)
    pod.start(wait=False)
    found, words = pod.ended()
    assert (found, words["reason"]) == (code, reason), words
    assert words["retry"] is (reason == "StoreUnwritable")
    assert words["message"]


def test_a_model_that_is_described_wrongly_is_served_where_it_fits(new_pod: NewPod) -> None:
    """And its status page has what its weights say, for the operator to compare."""
    pod = new_pod("odd", flags=("--model-numbers", '{"layers": 12, "contextLength": 4096}'))
    pod.start()
    weights = pod.get("/sojourn/v1/status")[1]["weights"]
    assert weights == {
        "weightBytes": 269_100_288,
        "kvBytesPerToken": 23_040,
        "layers": 30,
        "heads": 9,
        "kvHeads": 3,
        "contextLength": 8192,
    }


def test_a_pause_under_a_hanging_volume_leaves_its_last_word(new_pod: NewPod) -> None:
    """What a kubelet finds after the grace period, and that nothing sent is lost."""
    pod = new_pod("hanging", flags=("--checkpoint-tokens", "65536"))
    pod.start()
    response = pod.post("/v1/responses", **body(seed=7))["id"]
    seen = [event for event, _ in zip(pod.deltas(response), range(20), strict=False)]
    with (pod.store / "lock").open("rb+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        pod.signal()
        pod.until(pod.last.exists, "a last word")
        pod.kill()
        words = json.loads(pod.last.read_text())
    assert (words["reason"], words["retry"]) == ("PauseCutOff", True)
    assert "the pause has waited for the store for" in words["message"]
    assert words["snapshot"]["manifest"] == "manifest-1-1.json"
    pod.start()
    found = list(pod.deltas(response))
    assert [event.text for event in found[: len(seen)]] == [event.text for event in seen]


def test_sigterm_is_heard_while_the_main_thread_hangs_in_a_system_call() -> None:
    program = """
import os, signal
from sojourn_runtime.hooks import PauseSwitch
switch = PauseSwitch()
switch.install()
signal.siginterrupt(signal.SIGTERM, False)  # as of a call that no signal ends
switch.then(lambda: (os.write(1, b"paused"), os._exit(0)))
told, _ = os.pipe()
os.write(1, b"ready ")
os.read(told, 1)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(6) == b"ready "
        process.terminate()
        assert process.communicate(timeout=30)[0] == b"paused"


def test_weights_cut_short_are_said_in_the_termination_message(
    new_pod: NewPod, model: Path, tmp_path: Path
) -> None:
    cut = tmp_path / "cut.gguf"
    with model.open("rb") as whole:
        cut.write_bytes(whole.read(model.stat().st_size // 2))
    pod = new_pod("cut", flags=("--model", str(cut)))
    pod.start(wait=False)
    code, words = pod.ended()
    assert (code, words["reason"], words["retry"]) == (1, "WeightsTruncated", False)
    assert words["message"].startswith(f"{cut}: ")


@pytest.fixture
def new_pod(tmp_path: Path, model: Path) -> Iterator[NewPod]:
    made: list[Pod] = []

    def make(name: str, flags: tuple[str, ...] = ()) -> Pod:
        (tmp_path / name).mkdir()
        made.append(Pod(model, tmp_path / name, flags))
        return made[-1]

    yield make
    for pod in made:
        if pod.process is not None:
            pod.kill()
