"""pip for the Python inside the images (Debian's 3.11), whatever Python runs this program.

Wheels only: nothing is compiled, so that the host's headers and compilers do not matter.
"""

import subprocess
import sys

from localcluster.paths import CHECKOUT

# Debian 12 has glibc 2.36 and so runs wheels for every older one; pip compares names only.
_PLATFORMS = ("manylinux2014", *(f"manylinux_2_{minor}" for minor in range(36, 16, -1)))
FOR_IMAGES = (
    *("--only-binary=:all:", "--implementation", "cp", "--python-version", "3.11"),
    *(part for name in _PLATFORMS for part in ("--platform", f"{name}_x86_64")),
)


def python_with_pip() -> str:
    """Debian's python3 has none; the checkout's environment does."""
    virtual = CHECKOUT / ".venv" / "bin" / "python"
    return str(virtual) if virtual.exists() else sys.executable


def pip(*arguments: str) -> None:
    subprocess.run(
        [python_with_pip(), "-m", "pip", "--disable-pip-version-check", *arguments], check=True
    )
