"""`sojourn-operator apply-crds`: brings the cluster's CRDs to what a folder of YAML files says.

Run by the chart before an upgrade, since Helm installs CRDs once and never again. Applied with
force: they are ours, whoever installed them first.
"""

import logging
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import yaml

from sojourn_operator.act.api import Api, ApiError
from sojourn_operator.kinds import Kind

CRDS: Final = Kind(
    "CustomResourceDefinition",
    "customresourcedefinitions",
    "apiextensions.k8s.io",
    "v1",
    namespaced=False,
)
ESTABLISHED_SECONDS: Final = 60.0
LOOK_SECONDS: Final = 0.5

log = logging.getLogger(__name__)


class CrdsError(Exception):
    """The CRDs cannot be applied; the text names the file or the CRD and what to do."""


def apply_folder(api: Api, folder: Path) -> None:
    """Apply all `*.yaml` of the folder, and wait until each is established."""
    found = list(read(folder))
    for crd in found:
        name = crd["metadata"]["name"]
        try:
            api.apply(CRDS, crd)
        except ApiError as error:
            raise CrdsError(f"{name} was refused: {error.message}") from error
        log.info("applied %s", name)
    deadline = time.monotonic() + ESTABLISHED_SECONDS
    for crd in found:
        _wait_established(api, crd["metadata"]["name"], deadline=deadline)


def read(folder: Path) -> Iterable[dict[str, Any]]:
    """The CRDs in the folder, by file name; anything else in it is an error."""
    paths = sorted(folder.glob("*.yaml"))
    if not paths:
        raise CrdsError(f"{folder} has no *.yaml files; mount the chart's crds/ there")
    for path in paths:
        try:
            raw = yaml.safe_load(path.read_text())
        except (OSError, yaml.YAMLError) as error:
            raise CrdsError(f"{path} cannot be read as YAML: {error}") from error
        if not isinstance(raw, dict) or raw.get("kind") != CRDS.name:
            raise CrdsError(f"{path} holds no {CRDS.name}; take it out of the folder")
        yield raw


def _wait_established(api: Api, name: str, *, deadline: float) -> None:
    while not _established(api.get(CRDS, name=name)):
        if time.monotonic() > deadline:
            hint = f"see kubectl describe crd {name}"
            raise CrdsError(f"{name} is not established after {ESTABLISHED_SECONDS:.0f} s; {hint}")
        time.sleep(LOOK_SECONDS)


def _established(raw: dict[str, Any]) -> bool:
    conditions = (raw.get("status") or {}).get("conditions") or []
    return any(one["type"] == "Established" and one["status"] == "True" for one in conditions)
