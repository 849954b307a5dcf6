"""What goes into the images: Debian with Python, and the project's own wheel.

Each is a layer of its own, so that a change of code rebuilds the last and smallest one only.
The layer between them belongs to `libraries`.
"""

import configparser
import shutil
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

from localcluster.layers import Blob, image_cache, key_of, layer, scratch
from localcluster.paths import CHECKOUT, CLUSTER_FOLDER
from localcluster.pip import pip, python_with_pip

# On the module path of Debian's Python by itself, so that no PYTHONPATH is needed.
SITE = Path("usr/local/lib/python3.11/dist-packages")
_SUITE = "bookworm"
# libgomp1: compiled libraries that are built with OpenMP look for it on the system.
_PACKAGES = "python3,ca-certificates,libgomp1"
_USELESS = (
    *("usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info"),
    *("var/cache/apt", "var/lib/apt/lists", "var/cache/debconf", "usr/share/i18n"),
)
_SCRIPT = """\
#!/usr/bin/python3
import sys
from {module} import {function}
sys.exit({function}())
"""


def pause() -> Blob:
    source = CLUSTER_FOLDER / "images" / "pause.c"

    def fill(folder: Path) -> None:
        command = ["gcc", "-static", "-Os", "-s", "-o", str(folder / "pause"), str(source)]
        subprocess.run(command, check=True)

    return layer("pause", key_of(source.read_bytes()), fill)


def debian() -> Blob:
    """Times are kept: Debian compiled its Python modules, and Python compares the times."""

    def fill(folder: Path) -> None:
        subprocess.run(["cp", "--archive", f"{root_file_system()}/.", str(folder)], check=True)

    return layer("debian", debian_key(), fill, keep_times=True)


def root_file_system() -> Path:
    """Kept unpacked beside its layer, for the images' own Python compiles the other layers."""
    root = image_cache() / f"debian-{debian_key()}"
    if root.exists():
        return root
    print("making a root file system with debootstrap (once) ...", flush=True)
    with scratch() as folder:
        made = folder / "root"
        log = image_cache() / "debootstrap.log"
        with log.open("wb") as output:
            done = subprocess.run(
                [
                    # Its mounts end with it, also when it is killed.
                    *("unshare", "--mount", "--propagation", "private"),
                    *("debootstrap", "--variant=minbase", f"--include={_PACKAGES}"),
                    *(_SUITE, str(made), *_mirror()),
                ],
                stdout=output,
                stderr=output,
                check=False,
            )
        if done.returncode != 0:
            raise OSError(f"debootstrap failed: read {log}, and check the mirror in apt's sources")
        for path in _USELESS:
            shutil.rmtree(made / path, ignore_errors=True)
        made.rename(root)
    return root


def project() -> Blob:
    """All components' code, as the wheel that users install. Rebuilt when a file of it changes."""

    def fill(folder: Path) -> None:
        site = folder / SITE
        site.mkdir(parents=True)
        with scratch() as built:
            isolation = ["--no-build-isolation"] if _has_backend() else []
            pip(
                "wheel",
                "--quiet",
                "--no-deps",
                *isolation,
                "--wheel-dir",
                str(built),
                str(CHECKOUT),
            )
            with zipfile.ZipFile(next(built.glob("*.whl"))) as wheel:
                wheel.extractall(site)
        _write_scripts(folder)
        compile_modules(folder)

    sources = [(str(file.relative_to(CHECKOUT)), file.read_bytes()) for file in _sources()]
    return layer("project", key_of(debian_key(), *(p for pair in sources for p in pair)), fill)


def _sources() -> Iterator[Path]:
    yield CHECKOUT / "pyproject.toml"
    for folder in ("crds", "operator", "deviceplugin", "runtime"):
        for file in sorted((CHECKOUT / folder).rglob("*")):
            # Python writes its caches here at any moment, under names that are gone the next.
            if "__pycache__" not in file.parts and file.suffix != ".so" and file.is_file():
                yield file


def _has_backend() -> bool:
    """Without it pip fetches the build backend each time, which takes seconds and a network."""
    probe = [python_with_pip(), "-c", "import hatchling"]
    return subprocess.run(probe, stderr=subprocess.DEVNULL, check=False).returncode == 0


def _write_scripts(folder: Path) -> None:
    """The wheel's commands, with the Python of the image in their first line."""
    entries = configparser.ConfigParser()
    entries.read(next((folder / SITE).glob("sojourn-*.dist-info/entry_points.txt")))
    programs = folder / "usr/local/bin"
    programs.mkdir(parents=True)
    for name, target in entries["console_scripts"].items():
        module, _, function = target.partition(":")
        (programs / name).write_text(_SCRIPT.format(module=module, function=function))
        (programs / name).chmod(0o755)


def compile_modules(folder: Path) -> None:
    """Start-up time counts, and a read-only container cannot compile for itself.

    Without checking times: those in the layer are not those of the source files.
    """
    mount_and_compile = (
        'mount --bind "$1" "$2/mnt" && exec chroot "$2" python3 -m compileall'
        ' -q -j 2 --invalidation-mode unchecked-hash -s /mnt -p / "/mnt/$3"'
    )
    subprocess.run(
        [
            *("unshare", "--mount", "--propagation", "private", "sh", "-c", mount_and_compile),
            *("sh", str(folder), str(root_file_system()), str(SITE)),
        ],
        check=False,  # libraries ship templates that are not valid Python; those stay as they are
        stdout=subprocess.DEVNULL,
    )


def debian_key() -> str:
    return key_of(_SUITE, _PACKAGES, *_USELESS)


def _mirror() -> list[str]:
    """The one that this machine's apt uses, or debootstrap's own choice."""
    folder = Path("/etc/apt")
    for file in [*sorted((folder / "sources.list.d").glob("*.sources")), folder / "sources.list"]:
        if not file.exists():
            continue
        for line in file.read_text().splitlines():
            words = line.split()
            if line.startswith("URIs:") and len(words) > 1:
                return [words[1]]
            if line.startswith("deb "):
                return [word for word in words if "://" in word][:1]
    return []
