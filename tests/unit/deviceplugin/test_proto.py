"""The generated modules are those of the .proto files."""

from pathlib import Path

import pytest
from sojourn_deviceplugin import _proto
from sojourn_deviceplugin._proto.generate import generate

GENERATED = Path(_proto.__file__).parent


def test_generating_again_gives_the_same_files(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    generate(tmp_path)
    assert capfd.readouterr().out == ""
    fresh = {path.name: path.read_text() for path in tmp_path.rglob("*_pb2*")}
    kept = {path.name: path.read_text() for path in GENERATED.glob("*_pb2*.py*")}
    assert len(fresh) == 8
    assert fresh == kept
