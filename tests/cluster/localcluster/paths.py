"""Where things lie, and the addresses inside the cluster.

Kept between clusters: the cache. As long as the cluster lives: state (small, short socket paths)
and data (large, on a disk). All of it is outside the checkout, so that a second checkout builds
nothing and `git status` stays clean.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path

CLUSTER_FOLDER = Path(__file__).resolve().parent.parent
CHECKOUT = CLUSTER_FOLDER.parent.parent

# A second cluster beside the first has another name: sojourn-test, for instance.
NAME = os.environ.get("SOJOURN_CLUSTER", "sojourn-cluster")
if not re.fullmatch(r"sojourn-[a-z0-9-]{1,20}", NAME):
    raise SystemExit(f"SOJOURN_CLUSTER={NAME}: a name like sojourn-test, of at most 28 characters")

# "module" runs the containerd that is built from its Go module, which knows CDI, in place of the
# one that the machine has installed.
CONTAINERD = os.environ.get("SOJOURN_CONTAINERD", "")
if CONTAINERD not in {"", "module"}:
    raise SystemExit(f"SOJOURN_CONTAINERD={CONTAINERD}: leave it empty, or say module")

STATE = Path("/run") / NAME
# Not under /run: that is often a tmpfs mounted noexec, where no container can start.
DATA = Path("/var/lib") / NAME
KUBECONFIG = STATE / "kubeconfig"
AUDIT_LOG = STATE / "audit.log"
LOGS = STATE / "logs"
READY_FILE = STATE / "control-plane-ready"

NETWORK_NAMESPACE = Path("/run/netns") / NAME
BRIDGE = "sojourn0"
API_ADDRESS = "10.243.0.1"
API_PORT = 6443
# On the host's loopback. Another port is taken if this one is in use.
FORWARDED_API_PORT = 16443
POD_RANGE = "10.244.0.0/16"
SERVICE_RANGE = "10.96.0.0/16"
FIRST_SERVICE_ADDRESS = "10.96.0.1"


@dataclass(frozen=True, slots=True)
class Node:
    """One simulated machine: its address on the bridge and the range of its pods."""

    name: str
    address: str
    pod_range: str

    @property
    def folder(self) -> Path:
        return DATA / "nodes" / self.name

    @property
    def simulation(self) -> Path:
        """The fake GPU library and its scenario; pods of this node see it as /opt/sojourn/sim."""
        return self.folder / "sim"


NODES = (
    Node("node-a", "10.243.0.11", "10.244.1.0/24"),
    Node("node-b", "10.243.0.12", "10.244.2.0/24"),
)


def cache_folder() -> Path:
    """Binaries, root file systems, layers, models: keyed by content, safe to delete as a whole."""
    chosen = os.environ.get("SOJOURN_CACHE")
    return Path(chosen).resolve() if chosen else Path.home() / ".cache" / "sojourn"
