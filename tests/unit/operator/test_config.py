"""Settings: every mistake is named with its key."""

from pathlib import Path

import pytest
from sojourn_operator.config import Config, ConfigError, Lease, load, parse


def test_no_file_means_all_defaults() -> None:
    assert load(None) == Config()


def test_keys_are_camel_case(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("sessionImage: mine:1\nlease: {namespace: x}\nlostNodeSeconds: 9\n")
    found = load(path)
    assert found == Config(session_image="mine:1", lease=Lease(namespace="x"), lost_node_seconds=9)


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        ({"sessionimage": "x"}, "'sessionimage'"),
        ({"lease": {"nam": "x"}}, "'nam'"),
        ({"statusPollSeconds": "fast"}, "statusPollSeconds"),
        ({"statusPollSeconds": 0}, "statusPollSeconds"),
        ({"storeBytesPerSecond": True}, "storeBytesPerSecond"),
        ({"extraEnv": "x"}, "extraEnv"),
        ({"headlessServices": "no"}, "headlessServices"),
        ({"headlessServices": 1}, "headlessServices"),
        ({"device": "tpu"}, "device"),
        ({"defragmentation": "Sometimes"}, "Off, DryRun, On"),
        ({"defragmentation": False}, "need quotes"),
        ({"movesPerMinute": 0}, "movesPerMinute"),
        ({"gpuSpeeds": [{"model": "X", "tbps": 1, "tflops": 0}]}, "gpuSpeeds[0]"),
        ({"gpuSpeeds": [{"model": "X", "tbps": 1, "tflops": 2, "tops": 3}]}, "gpuSpeeds[0]"),
        ({"gpuSpeeds": [{"model": "X", "tbps": True, "tflops": 2}]}, "gpuSpeeds[0]"),
        ({"gpuSpeeds": [{"model": "X", "tbps": 0.3, "tflops": 0.065}]}, "0.065 TFLOPS"),
        ({"gpuSpeeds": [{"model": "X", "tbps": float("inf"), "tflops": 65}]}, "gpuSpeeds[0]"),
        ([], "mapping"),
    ],
)
def test_a_mistake_is_named(raw: object, named: str) -> None:
    with pytest.raises(ConfigError, match=r"config\.yaml") as caught:
        parse(raw, source="config.yaml")
    assert named in str(caught.value)


def test_a_file_that_is_no_yaml_is_named(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("{")
    with pytest.raises(ConfigError, match=r"config\.yaml"):
        load(path)
