"""Finds the compiled kernels: inside the wheel, or, in a checkout, compiled once per version of
the sources.
"""

import ctypes
import importlib.util
from pathlib import Path
from types import ModuleType

from sojourn_runtime.model.errors import InvalidConfiguration

_FOLDER = Path(__file__).parent / "kernels"
_BUILD_SCRIPT = Path(__file__).parents[2] / "build_kernels.py"


def load() -> ctypes.CDLL:
    """The kernels' library; in a checkout the sources decide, in a wheel there is only the one
    compiled.
    """
    if not _BUILD_SCRIPT.exists():
        return ctypes.CDLL(str(_FOLDER / "libsojourn_kernels.so"))
    script = _build_script()
    path: Path = script.checkout_library()
    if not path.exists():
        try:
            script.build(path)
        except (script.CompilerMissingError, script.CompileError, OSError) as error:
            raise InvalidConfiguration(str(error)) from error
    return ctypes.CDLL(str(path))


def _build_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sojourn_build_kernels", _BUILD_SCRIPT)
    if spec is None or spec.loader is None:
        raise InvalidConfiguration(
            f"{_BUILD_SCRIPT}: cannot be loaded; restore it from the repository"
        )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
