"""A model with experts and a sliding window goes on over pauses like any other."""

from pathlib import Path
from typing import Any

import pytest
from pods import Delta, Pod

from tests.unit.tiny_models import write_model

MIXTRAL: dict[str, Any] = {
    "architectures": ["MixtralForCausalLM"],
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 16,
    "eos_token_id": None,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 50,
}
BODY: dict[str, Any] = {
    "input": "how deep is the sea, and who has been there? " * 3,
    "max_output_tokens": 400,
    "temperature": 0.8,
    "seed": 7,
    "background": True,
    "stream": False,
}


@pytest.mark.timeout(300)
def test_pauses_change_nothing_for_experts_behind_a_window(tmp_path: Path) -> None:
    pod = Pod(write_model(tmp_path / "model", **MIXTRAL), tmp_path / "pod")
    pod.folder.mkdir()
    pod.start()
    try:
        expected = list(pod.deltas(pod.post("/v1/responses", **BODY)["id"]))
        response = pod.post("/v1/responses", **BODY)["id"]
        found: list[Delta] = []
        for more in (5, 75, 1, 119):
            pod.read_and_pause(response, found, more=more)
            assert pod.ended()[1]["reason"] == "Paused"
            assert len(found) < len(expected)
            pod.start()
        found += pod.deltas(response, after=found[-1].number)
    finally:
        pod.kill()
    assert found == expected
