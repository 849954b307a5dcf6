"""Weights of a bucket are fetched once, whole or not at all, and checked."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from bucketserver import serving
from sojourn_runtime.model.errors import ModelNotFound, WeightsDigestMismatch, WeightsUnreachable
from sojourn_runtime.model.remote import fetch
from sojourn_runtime.model.weights import open_weights

WriteModel = Callable[..., Path]
URI = "s3://contexts/models/tiny"


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder that the server keeps the bucket `contexts` in."""
    with serving(tmp_path / "buckets", monkeypatch):
        yield tmp_path / "buckets" / "contexts"


@pytest.fixture
def remote(write_model: WriteModel, tmp_path: Path, bucket: Path) -> Path:
    """A Hugging Face folder in the bucket, at `URI`."""
    written = write_model(tmp_path / "written")
    place = bucket / "models" / "tiny"
    shutil.copytree(written, place)
    (place / "original").mkdir()
    (place / "original" / "more.safetensors").write_bytes(b"not ours")
    (place / "pytorch_model.bin").write_bytes(b"not ours either")
    return place


def fetched(cache: Path) -> list[str]:
    return sorted(path.name for path in (cache / "fetched").rglob("*"))


def test_a_folder_in_a_bucket_is_opened_as_a_local_one(remote: Path, tmp_path: Path) -> None:
    here = open_weights(str(tmp_path / "written"), cache_dir=tmp_path / "one")
    there = open_weights(URI, cache_dir=tmp_path / "two", digest=here.digest)
    assert there.digest == here.digest
    assert all(np.array_equal(there.tensors[n], here.tensors[n]) for n in here.tensors)
    assert not {"more.safetensors", "pytorch_model.bin"} & set(fetched(tmp_path / "two"))
    shutil.rmtree(remote)
    assert open_weights(URI, cache_dir=tmp_path / "two").digest == here.digest  # fetched once


@pytest.mark.parametrize("root", ["s3:/", "$AWS_ENDPOINT_URL"])
def test_a_remote_file_is_copied_whole(root: str, bucket: Path, tmp_path: Path) -> None:
    (bucket / "one.gguf").write_bytes(b"G" * 3_000_000)
    uri = f"{os.path.expandvars(root)}/contexts/one.gguf"
    copy = fetch(uri, cache_dir=tmp_path / "cache")
    assert copy.name == "one.gguf"
    assert copy.read_bytes() == (bucket / "one.gguf").read_bytes()


PEAK = """
import re, sys
from pathlib import Path
from sojourn_runtime.model.remote import fetch
def peak(): return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
fetch("s3://contexts/small.gguf", cache_dir=Path(sys.argv[1]))
before = peak()
fetch("s3://contexts/large.gguf", cache_dir=Path(sys.argv[1]))
print((peak() - before) >> 10)
"""


def test_weights_larger_than_memory_come_through_it_piece_by_piece(
    bucket: Path, tmp_path: Path
) -> None:
    (bucket / "small.gguf").write_bytes(b"G")
    with (bucket / "large.gguf").open("wb") as file:
        file.truncate(256 << 20)
    command = [sys.executable, "-c", PEAK, str(tmp_path / "cache")]
    mebibytes = int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert mebibytes < 96
    (copy,) = (tmp_path / "cache").rglob("large.gguf")
    assert copy.stat().st_size == 256 << 20


@pytest.mark.usefixtures("remote")
def test_a_copy_with_another_digest_is_refused_and_not_kept(tmp_path: Path) -> None:
    with pytest.raises(WeightsDigestMismatch, match=re.escape(URI)):
        open_weights(URI, cache_dir=tmp_path / "cache", digest="sha256:" + "0" * 64)
    assert fetched(tmp_path / "cache") == []


@pytest.mark.usefixtures("bucket")
@pytest.mark.parametrize("uri", ["s3://contexts/none.gguf", "memory://none/model.gguf"])
def test_what_is_not_there_is_named(uri: str, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=re.escape(uri) + ".*correct LLMModel"):
        open_weights(uri, cache_dir=tmp_path / "cache")
    assert fetched(tmp_path / "cache") == []


def test_a_server_that_does_not_answer_is_named_and_may_be_tried_again(tmp_path: Path) -> None:
    uri = "http://127.0.0.1:9/model.gguf"  # discard: nobody listens
    with pytest.raises(WeightsUnreachable, match=re.escape(uri) + ".*check the URI") as caught:
        open_weights(uri, cache_dir=tmp_path / "cache")
    assert caught.value.retry
    assert fetched(tmp_path / "cache") == []
