"""pip for the Python inside the images (Debian's 3.11), whatever Python runs this program.

Wheels only: nothing is compiled, so that the host's headers and compilers do not matter.
"""

import subprocess
import sys

from localcluster.paths import CHECKOUT

FOR_IMAGES = (
    *("--only-binary=:all:", "--implementation", "cp", "--python-version", "3.11"),
    *("--platform", "manylinux_2_34_x86_64", "--platform", "manylinux_2_28_x86_64"),
    *("--platform", "manylinux_2_17_x86_64", "--platform", "manylinux2014_x86_64"),
)


def python_with_pip() -> str:
    """Debian's python3 has none; the checkout's environment does."""
    virtual = CHECKOUT / ".venv" / "bin" / "python"
    return str(virtual) if virtual.exists() else sys.executable


def pip(*arguments: str) -> None:
    subprocess.run(
        [python_with_pip(), "-m", "pip", "--disable-pip-version-check", *arguments], check=True
    )
