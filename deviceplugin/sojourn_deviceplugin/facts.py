"""What NVML says about a node's GPUs at one moment, as values; the edge (`nvml`) fills them in.

No judgement here: `health` says what is well, `slices` what is offered.
"""

from dataclasses import dataclass

RECOVERY_UNKNOWN = -1
"""The driver does not tell which recovery a GPU needs (before r565)."""


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """Memory that one process uses on a GPU. `pid` is the host's; `name` is empty if not asked."""

    pid: int
    bytes: int
    name: str = ""
    sm_percent: int = 0
    """How much of the SMs' time it had in the last second; 0 also where that is not told."""


@dataclass(frozen=True, slots=True)
class MigProfile:
    """One instance size of a GPU in MIG mode: how many more fit now, and would fit when empty."""

    name: str
    memory_slices: int
    remaining: int
    ideal: int


@dataclass(frozen=True, slots=True)
class MigInstance:
    """One MIG device."""

    uuid: str
    profile: str
    bytes: int


@dataclass(frozen=True, slots=True)
class GpuFacts:
    """One GPU. `error` is empty when it answers; otherwise all but the UUID may be stale or 0."""

    uuid: str
    model: str = ""
    minor: int = 0
    numa: int | None = None
    total_bytes: int = 0
    reserved_bytes: int = 0
    used_bytes: int = 0
    busy_percent: int | None = None
    """Time with a kernel running, which says nothing of how full the GPU was."""
    memory_busy_percent: int | None = None
    """Time with memory in use."""
    sm_percent: int | None = None
    """SMs at work, of all; GPM tells it, where there is GPM."""
    bandwidth_percent: int | None = None
    """Memory bandwidth used, of all that there is; from GPM, too."""
    processes: tuple[ProcessUse, ...] = ()
    links: tuple[str, ...] = ()
    """UUIDs of the GPUs at the other ends of its NVLinks."""
    recovery: int = RECOVERY_UNKNOWN
    ecc_errors: int | None = None
    """Uncorrected ones since the driver was loaded; None without ECC."""
    remap_pending: bool = False
    remap_failed: bool = False
    memory_limits: bool = False
    """Whether the driver can limit memory per cgroup."""
    mig: bool = False
    instances: tuple[MigInstance, ...] = ()
    profiles: tuple[MigProfile, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """All GPUs. `error` is not empty when NVML itself does not work; then `gpus` is empty.

    `session` counts initialisations of NVML: another number means that the driver was restarted
    in between, so that every GPU was reset.
    """

    gpus: tuple[GpuFacts, ...] = ()
    driver: str = ""
    session: int = 0
    error: str = ""

    def gpu(self, uuid: str) -> GpuFacts | None:
        """The GPU of that UUID, if NVML names it."""
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)


@dataclass(frozen=True, slots=True)
class Xid:
    """An error event of the driver."""

    uuid: str
    number: int
