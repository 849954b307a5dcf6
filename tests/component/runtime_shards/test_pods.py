"""A pod of two shards says what a pod of one says, and takes up what the other one saved; when a
shard is lost, the last commit stays and the next start goes on from it.
"""

import os
import random
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest
from pods import Delta, Pod
from sojourn_runtime.context.open_store import open_store
from sojourn_runtime.context.snapshot import load
from sojourn_runtime.engine.prefix import BLOCK

pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]  # pods whose processes import torch
NewPod = Callable[..., Pod]
TOKENS = 150
SEEN = 60


def body(number: int, *, tokens: int = TOKENS) -> dict[str, Any]:
    """Every other one is greedy."""
    how = {"temperature": 0} if number % 2 else {"temperature": 0.8, "seed": number}
    text = f"{number}: how deep is the sea, and who has been there? "
    return {"input": text * 2, "max_output_tokens": tokens, "background": True} | how


def answers(pod: Pod, numbers: Sequence[int], *, tokens: int) -> list[str]:
    """The texts of requests that run together."""
    asked = [pod.post("/v1/responses", **body(n, tokens=tokens))["id"] for n in numbers]
    with ThreadPoolExecutor(len(asked)) as readers:
        found = readers.map(lambda response: list(pod.deltas(response)), asked)
        return ["".join(event.text for event in events) for events in found]


def saved(pod: Pod) -> dict[bytes, int]:
    """The checksum of every full block in the store, by name: what its KV is."""
    blocks = load(open_store(str(pod.store))).blocks
    return {block.name: block.checksum for block in blocks if len(block.tokens) == BLOCK}


def newest(pod: Pod) -> str:
    return load(open_store(str(pod.store))).base


def other_shard(pod: Pod) -> int:
    """The process id of shard 1."""
    assert pod.process is not None
    (shard,) = psutil.Process(pod.process.pid).children()
    return int(shard.pid)


def test_batches_of_1_2_and_33_have_the_text_and_the_kv_of_one_shard(new_pod: NewPod) -> None:
    found = []
    for shards in (1, 2):
        pod = new_pod(shards)
        pod.start()
        texts = answers(pod, [0], tokens=TOKENS) + answers(pod, [1], tokens=TOKENS)
        texts += answers(pod, [2, 3], tokens=40) + answers(pod, range(4, 37), tokens=12)
        assert pod.pause()["exact"]
        found.append((texts, saved(pod)))
    (texts, kv), (others, other_kv) = found
    assert others == texts
    assert len(set(texts)) == len(texts) == 37
    assert other_kv == kv
    assert len(kv) > 37


@pytest.fixture(scope="module")
def expected(new_pod: NewPod) -> list[Delta]:
    """What one shard says if nothing happens."""
    pod = new_pod(1)
    pod.start()
    found = list(pod.deltas(pod.post("/v1/responses", **body(0))["id"]))
    pod.pause()
    return found


def cut(pod: Pod, act: Callable[[], None]) -> tuple[str, list[Delta]]:
    """Ask, do something in the middle of the answer, and read on until the stream ends."""
    response = pod.post("/v1/responses", **body(0))["id"]
    found = []
    for event in pod.deltas(response):
        found.append(event)
        if len(found) == SEEN:
            act()
    assert SEEN <= len(found) < TOKENS
    return response, found


def test_what_one_number_of_shards_saved_another_one_takes_up(
    new_pod: NewPod, expected: list[Delta]
) -> None:
    """Pauses at random tokens of one answer, which ends where it began: in two shards."""
    pod = new_pod(2)
    pod.start()
    response = pod.post("/v1/responses", **body(0))["id"]
    dice = random.Random(1)  # noqa: S311 - moments, no secrets
    found: list[Delta] = []
    for shards in (1, 2, 2):
        pod.read_and_pause(response, found, more=dice.randrange(10, TOKENS // 4))
        code, words = pod.ended()
        assert (code, words["reason"], words["exact"]) == (0, "Paused", True)
        kv = saved(pod)
        pod.flags = ("--shards", str(shards))
        pod.start()
        status = pod.status()
        assert status["resumed"]["recomputedTokens"] == 0
        assert (status["exact"], status["damage"]) == (True, "")
        assert status["kernelClass"] == "cpu-fma-bf16-v1"
        assert kv.items() <= saved(pod).items()
    assert len(found) < len(expected)
    found += pod.deltas(response, after=found[-1].number)
    assert found == expected


def test_a_shard_killed_busy_or_idle_ends_the_pod_and_the_next_start_goes_on(
    new_pod: NewPod, expected: list[Delta]
) -> None:
    pod = new_pod(2)
    pod.start()
    response, found = cut(pod, lambda: os.kill(other_shard(pod), signal.SIGKILL))
    code, words = pod.ended()
    assert (code, words["reason"], words["retry"]) == (1, "ShardLost", True)
    assert "shard 1 of 2 ended with signal SIGKILL" in words["message"]
    assert words["snapshot"]["manifest"] == newest(pod)
    pod.start()
    assert pod.status()["exact"]
    found += pod.deltas(response, after=found[-1].number)
    assert found == expected
    os.kill(other_shard(pod), signal.SIGKILL)  # idle, it is missed at once
    code, words = pod.ended()
    assert (code, words["reason"]) == (1, "ShardLost")


def test_no_version_is_saved_when_a_shard_does_not_give_its_part(new_pod: NewPod) -> None:
    """The pause is a barrier: a shard stands still, so nobody's part counts."""
    pod = new_pod(2)
    pod.start()
    response = pod.post("/v1/responses", **body(0, tokens=20))["id"]
    whole = list(pod.deltas(response))
    stopped = other_shard(pod)
    os.kill(stopped, signal.SIGSTOP)
    before = newest(pod)
    pod.signal()
    code, words = pod.ended()
    assert (code, words["reason"]) == (1, "ShardLost")
    assert "shard 1 of 2 does not answer" in words["message"]
    assert newest(pod) == before
    os.kill(stopped, signal.SIGKILL)
    pod.flags = ("--shards", "1")  # which starts sooner
    pod.start()
    assert list(pod.deltas(response)) == whole


@pytest.mark.parametrize(
    ("flags", "reason", "words"),
    [
        (("--shards", "4"), "UnsupportedModel", "4 shards are too many for 3 key heads"),
        (("--shards", "2", "--device", "eager"), "InvalidConfiguration", "computes in one process"),
        (("--shards", "0"), "InvalidConfiguration", "--shards"),
        (("--shards", "2"), "InvalidConfiguration", "needs torch"),
    ],
)
def test_what_cannot_be_split_is_refused_by_name(
    new_pod: NewPod, flags: tuple[str, ...], reason: str, words: str
) -> None:
    pod = new_pod(1, *flags)
    (pod.folder / "torch.py").write_text("raise ModuleNotFoundError('no torch', name='torch')")
    pod.start(wait=False)
    code, last = pod.ended()
    assert (code, last["reason"]) == (1 if reason == "UnsupportedModel" else 2, reason)
    assert words in last["message"]
