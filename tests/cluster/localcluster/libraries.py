"""A component's libraries as a layer: its extra of pyproject.toml, pinned by constraints.txt.

A pin that the component does not use, directly or not, leaves its layer as it is. Which ones it
uses is known once it was installed.
"""

import json
import re
import shutil
import tomllib
from pathlib import Path

from localcluster.contents import SITE, compile_modules, debian_key
from localcluster.layers import Blob, image_cache, key_of, known_as, layer
from localcluster.paths import CHECKOUT
from localcluster.pip import FOR_IMAGES, pip

_CONSTRAINTS = CHECKOUT / "constraints.txt"
_EXTRAS = {"runtime": ("runtime", "s3")}
"""As the component's Containerfile installs it, where that is more than its own extra."""


def libraries(component: str) -> Blob:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    extras = [project["optional-dependencies"][e] for e in _EXTRAS.get(component, (component,))]
    wanted = sorted([*project["dependencies"], *(name for extra in extras for name in extra)])
    basis = key_of(debian_key(), *FOR_IMAGES, *wanted)
    used = image_cache() / "layers" / f"{component}-uses-{basis}.json"

    def fill(folder: Path) -> None:
        site = folder / SITE
        site.mkdir(parents=True)
        limits = ["--constraint", str(_CONSTRAINTS)] if _CONSTRAINTS.exists() else []
        target = [*limits, "--target", str(site)]
        pip("install", "--quiet", "--no-compile", *FOR_IMAGES, *target, *wanted)
        shutil.rmtree(site / "bin", ignore_errors=True)  # with the host's path in their first line
        names = {_plain(info.name.split("-")[0]) for info in site.glob("*.dist-info")}
        used.parent.mkdir(parents=True, exist_ok=True)
        used.write_text(json.dumps(sorted(names)))
        compile_modules(folder)

    def key() -> str:
        names = json.loads(used.read_text()) if used.exists() else _pins()
        return key_of(basis, *(line for name, line in sorted(_pins().items()) if name in names))

    asked = key()
    blob = layer(component, asked, fill)
    known_as(component, asked, key())  # after a first build it is known what it uses
    return blob


def _pins() -> dict[str, str]:
    if not _CONSTRAINTS.exists():
        return {}
    lines = [line.split("#")[0].strip() for line in _CONSTRAINTS.read_text().splitlines()]
    return {_plain(re.split(r"[=<>!~ ;\[]", line)[0]): line for line in lines if line}


def _plain(name: str) -> str:
    """As package indexes compare names."""
    return re.sub(r"[-_.]+", "-", name).lower()
