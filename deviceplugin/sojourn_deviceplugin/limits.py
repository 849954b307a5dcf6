"""The driver's memory limits of pods, kept as the grants are (driver r615 and later, cgroup v2).

Runs in the thread that reads NVML: setting a limit is a call of the driver, too. Level-triggered:
each round compares what holds with what is granted, so a restart of plugin or driver mends itself.

Only the hard limit is set, with no memory reserved: the driver adds a reservation to all ancestors
of a cgroup, and takes it off again only if it is set to zero before the kubelet removes that
cgroup, which nobody can promise. No slice is granted twice, so the hard limits do not overlap.
"""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

from sojourn_deviceplugin.facts import NodeFacts

log = logging.getLogger(__name__)

Cap = tuple[str, str]
"""A GPU's UUID and a pod's UID."""
POD_CGROUPS: Final = (
    # Of the kubelet's two drivers, for pods of each quality of service.
    "kubepods/pod{0}",
    "kubepods/burstable/pod{0}",
    "kubepods/besteffort/pod{0}",
    "kubepods.slice/kubepods-pod{1}.slice",
    "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{1}.slice",
    "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{1}.slice",
)


class LimitError(Exception):
    """The driver does not take or tell a limit; the text is its answer."""


class Driver(Protocol):
    """The module `memorylimits`."""

    def read(self, uuid: str, cgroup: Path, /) -> int | None:
        """What a cgroup may use of a GPU; None: no limit."""

    def write(self, uuid: str, cgroup: Path, size: int | None, /) -> None:
        """Set or lift (None) the limit."""


def cgroups_of_pod(root: Path, uid: str) -> tuple[Path, ...]:
    """The pod's own, then its containers'; nothing if there are none (yet, or any more).

    Both get the limit: a container's cgroup may begin without its parent's, and limits that the
    driver keeps by itself do not nest.
    """
    systemd = uid.replace("-", "_")
    paths = (root / form.format(uid, systemd) for form in POD_CGROUPS)
    pod = next((path for path in paths if path.is_dir()), None)
    if pod is None:
        return ()
    try:
        return (pod, *(entry for entry in pod.iterdir() if entry.is_dir()))
    except OSError:
        return ()  # it is being removed


def is_v2(root: Path) -> bool:
    """Whether a cgroup v2 hierarchy is mounted there: the older one knows no limit of GPUs."""
    return (root / "cgroup.controllers").exists()


class Limiter:
    """`standing` is what the driver says to hold; any thread may read it."""

    def __init__(
        self, driver: Driver, caps: Callable[[], Mapping[Cap, int]], *, root: Path | None
    ) -> None:
        """`caps`: bytes that pods were granted on GPUs. `root` None: no limits are set."""
        self._driver = driver
        self._caps = caps
        self._root = root if root is not None and is_v2(root) else None
        self._set: set[tuple[str, Path]] = set()
        self._complaint = ""
        self.standing: frozenset[Cap] = frozenset()
        if root is not None and self._root is None:
            log.warning("no memory limits: no cgroup v2 there", extra={"path": str(root)})

    def keep(self, facts: NodeFacts) -> None:
        """Set what is missing, lift what is over, and see what holds."""
        if self._root is None:
            return
        able = {gpu.uuid for gpu in facts.gpus if gpu.memory_limits and not gpu.error}
        wanted = {cap: size for cap, size in self._caps().items() if cap[0] in able}
        paths = {cap: cgroups_of_pod(self._root, cap[1]) for cap in wanted}
        kept = {(gpu, path) for (gpu, _), found in paths.items() for path in found}
        self._lift({key for key in set(self._set) - kept if key[0] in able})
        self.standing = frozenset(
            cap for cap, size in wanted.items() if self._holds(cap[0], paths[cap], size)
        )

    def _holds(self, gpu: str, paths: tuple[Path, ...], size: int) -> bool:
        """Whether every container of the pod is held to its grant; a pod without one is not yet."""
        held = [self._hold(gpu, path, size) for path in paths]
        return len(held) > 1 and all(held[1:])

    def _hold(self, gpu: str, path: Path, size: int) -> bool:
        try:
            if self._driver.read(gpu, path) != size:
                self._driver.write(gpu, path, size)
                self._set.add((gpu, path))
            return self._driver.read(gpu, path) == size
        except LimitError as error:
            self._complain(f"{path}: {error}")
            return False

    def _lift(self, over: set[tuple[str, Path]]) -> None:
        """Undo the limits of grants that are over; those of removed cgroups went with them."""
        for gpu, path in over:
            self._set.discard((gpu, path))
            if not path.is_dir():
                continue
            try:
                self._driver.write(gpu, path, None)
            except LimitError as error:
                self._complain(f"{path}: {error}")

    def _complain(self, text: str) -> None:
        """Once for each answer: it is asked again every round."""
        if text != self._complaint:
            self._complaint = text
            log.warning("memory limit", extra={"error": text})
