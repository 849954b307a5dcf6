"""The kernels' library is compiled whole or not at all, and its absence explains itself."""

import ctypes
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from sojourn_runtime.model import library


@pytest.fixture
def script() -> ModuleType:
    path = Path(library.__file__).parents[2] / "build_kernels.py"
    spec = importlib.util.spec_from_file_location("build_kernels_under_test", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_checkouts_library_is_kept_by_the_hash_of_its_sources(script: ModuleType) -> None:
    loaded = library.load()
    assert Path(loaded._name).stem == script.source_hash()
    assert isinstance(loaded, ctypes.CDLL)


def test_without_a_compiler_the_error_says_what_to_install(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(script.CompilerMissingError, match="apt-get install g"):
        script.build(tmp_path / "kernels.so")


def test_a_compiler_that_fails_leaves_no_library(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "bin" / "g++"
    compiler.parent.mkdir()
    compiler.write_text("#!/bin/sh\necho no such flag >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", f"{compiler.parent}:/usr/bin:/bin")
    with pytest.raises(script.CompileError, match="no such flag"):
        script.build(tmp_path / "out" / "kernels.so")
    assert list((tmp_path / "out").iterdir()) == []
