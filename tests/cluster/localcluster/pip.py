"""pip for the Python inside the images (Debian's 3.11), whatever Python runs this program.

Wheels only: nothing is compiled, so that the host's headers and compilers do not matter.
"""

import subprocess
import sys

from localcluster.paths import CHECKOUT

# bookworm has glibc 2.36. pip takes each tag as it is, and knows nothing of "or older".
_TAGS = [*(f"manylinux_2_{minor}_x86_64" for minor in range(36, 16, -1)), "manylinux2014_x86_64"]
FOR_IMAGES = (
    *("--only-binary=:all:", "--implementation", "cp", "--python-version", "3.11"),
    *(word for tag in _TAGS for word in ("--platform", tag)),
)


def python_with_pip() -> str:
    """Debian's python3 has none; the checkout's environment does."""
    virtual = CHECKOUT / ".venv" / "bin" / "python"
    return str(virtual) if virtual.exists() else sys.executable


def pip(*arguments: str) -> None:
    subprocess.run(
        [python_with_pip(), "-m", "pip", "--disable-pip-version-check", *arguments], check=True
    )
