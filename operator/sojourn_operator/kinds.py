"""The kinds of objects that the operator deals with, and where each lives in the API: values."""

from dataclasses import dataclass
from typing import Final

from sojourn_api.names import GROUP, VERSION


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object and where it lives in the API."""

    name: str
    plural: str
    group: str = GROUP
    version: str = VERSION
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, subresource) if part]
        return "/" + "/".join(parts)


SESSIONS: Final = Kind("LLMSession", "llmsessions")
SNAPSHOTS: Final = Kind("SessionSnapshot", "sessionsnapshots")
MODELS: Final = Kind("LLMModel", "llmmodels", namespaced=False)
TIERS: Final = Kind("QoSTier", "qostiers", namespaced=False)
TENANTS: Final = Kind("Tenant", "tenants", namespaced=False)
GPU_NODES: Final = Kind("GPUNode", "gpunodes", namespaced=False)
NODES: Final = Kind("Node", "nodes", "", "v1", namespaced=False)
NAMESPACES: Final = Kind("Namespace", "namespaces", "", "v1", namespaced=False)
PODS: Final = Kind("Pod", "pods", "", "v1")
SERVICES: Final = Kind("Service", "services", "", "v1")
BUDGETS: Final = Kind("PodDisruptionBudget", "poddisruptionbudgets", "policy", "v1")
EVENTS: Final = Kind("Event", "events", "", "v1")
LEASES: Final = Kind("Lease", "leases", "coordination.k8s.io", "v1")
