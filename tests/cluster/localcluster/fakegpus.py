"""The fake NVML library and the GPUs of each node, laid where the device plugin's pod mounts them.

The library's source is in fakenvml/, the machines it pretends to be in scenarios/. Tests change a
node's GPUs by renaming another file over its scenario; the library reads it again.
"""

import hashlib
import shutil
import subprocess
from pathlib import Path

from localcluster.paths import CLUSTER_FOLDER, NODES, cache_folder

LIBRARY = "libnvidia-ml.so.1"
_SOURCES = CLUSTER_FOLDER / "fakenvml"
_SCENARIOS = CLUSTER_FOLDER / "scenarios"


class FakeGpuError(Exception):
    """The fake library did not compile."""


def lay_out() -> None:
    library = build()
    for node in NODES:
        node.simulation.mkdir(parents=True, exist_ok=True)
        shutil.copy(library, node.simulation / LIBRARY)
        shutil.copy(_SCENARIOS / f"{node.name}.json", node.simulation / "scenario.json")


def build() -> Path:
    sources = sorted(_SOURCES.glob("*.c"))
    inputs = sorted([*sources, *_SOURCES.glob("*.h")])
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in inputs)).hexdigest()
    library = cache_folder() / "fakenvml" / digest[:16] / LIBRARY
    if library.exists():
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    unfinished = library.with_name(".unfinished")
    command = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-o", str(unfinished)]
    done = subprocess.run(
        [*command, *map(str, sources), f"-Wl,-soname,{LIBRARY}", "-lpthread"], check=False
    )
    if done.returncode != 0:
        raise FakeGpuError(f"{_SOURCES} did not compile: read the messages above")
    unfinished.replace(library)
    return library
