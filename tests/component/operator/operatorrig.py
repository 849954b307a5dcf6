"""What a test of the operator works with: objects over the API, nodes, and operator processes.

Helpers only; the fixtures are in `conftest`.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from kubernetes.client import ApiException, CoreV1Api, CustomObjectsApi
from kubernetes.client.api_client import ApiClient
from localcluster.loopback import Api as ControlPlane
from nodeactor import NodeActor
from sojourn_api import names
from sojourn_operator.act.api import Api, NotFoundError
from sojourn_operator.kinds import (
    EVENTS,
    GPU_NODES,
    LEASES,
    MODELS,
    NODES,
    PODS,
    SERVICES,
    SESSIONS,
    SNAPSHOTS,
    TENANTS,
    TIERS,
    Kind,
)

ROOT = Path(__file__).resolve().parents[3]
Raw = dict[str, Any]
NAMESPACE = "team"
WAIT_SECONDS = 60.0
MODEL: Raw = {
    "uri": "file:///var/lib/sojourn/models/smollm2.gguf",
    "weightBytes": 269_030_016,
    "kvBytesPerToken": 23_040,
    "layers": 30,
    "heads": 9,
    "kvHeads": 3,
    "contextLength": 8192,
}


def wait_until(
    found: Callable[[], Any],
    *,
    what: str,
    seconds: float = WAIT_SECONDS,
    instead: Callable[[], Any] = str,
) -> Any:
    """What `found` returns as soon as it is true; else it fails and tells what is `instead`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        value = found()
        if value:
            return value
        time.sleep(0.03)
    raise AssertionError(f"waited {seconds:.0f} s in vain: {what}; {instead()}")


class Operator:
    """One replica in a process of its own."""

    def __init__(self, kubeconfig: Path, *, config: Path, log: Path, identity: str) -> None:
        self.port = _free_port()
        self.log = log
        # At its end kopf leaves sockets to the garbage collector, which warns of them.
        warnings = ["-W", "error", "-W", "default::ResourceWarning"]
        command = [sys.executable, *warnings, "-m", "sojourn_operator", "run"]
        command += ["--config", str(config), "--port", str(self.port), "--host", "127.0.0.1"]
        command += ["--identity", identity]
        path = os.pathsep.join(str(ROOT / part) for part in ("crds", "operator"))
        env = {**os.environ, "KUBECONFIG": str(kubeconfig), "PYTHONPATH": path}
        with log.open("ab") as output:
            self.process = subprocess.Popen(command, env=env, stdout=output, stderr=output)

    def get(self, path: str) -> int:
        """The HTTP status of one of its own pages; 0 while it does not listen."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}") as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def unready(self) -> str:
        """What /readyz says against it; empty while it is ready or does not listen."""
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz").close()
        except urllib.error.HTTPError as error:
            return error.read().decode()
        except OSError:
            pass
        return ""

    def until_ready(self) -> None:
        wait_until(lambda: self.get("/readyz") == 200, what="the operator has read the cluster")

    def metric(self, name: str) -> float:
        """One series by its full name; 0 if it is not there yet."""
        return self._metrics().get(name, 0.0)

    def metric_sum(self, name: str) -> float:
        return sum(
            value for series, value in self._metrics().items() if series.startswith(f"{name}{{")
        )

    def _metrics(self) -> dict[str, float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {series: float(value) for series, value in pairs}

    def resident_mib(self) -> float:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def kill(self) -> None:
        """As a power cut would."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=20)


@dataclass
class Rig:
    """What a test works with."""

    control_plane: ControlPlane
    client: ApiClient
    nodes: NodeActor
    folder: Path
    settings: Raw = field(default_factory=dict)
    operators: list[Operator] = field(default_factory=list)

    @property
    def core(self) -> CoreV1Api:
        return CoreV1Api(self.client)

    @property
    def custom(self) -> CustomObjectsApi:
        return CustomObjectsApi(self.client)

    def operate(self, *, identity: str = "one", kubeconfig: Path | None = None) -> Operator:
        """Start a replica, as an administrator unless another kubeconfig is given."""
        config = self.folder / "config.yaml"
        config.write_text(yaml.safe_dump(self.settings))
        operator = Operator(
            kubeconfig or self.control_plane.kubeconfig,
            config=config,
            log=self.folder / "operator.log",
            identity=identity,
        )
        self.operators.append(operator)
        return operator

    def create(self, name: str, **spec: Any) -> None:
        body = {
            "apiVersion": names.API_VERSION,
            "kind": "LLMSession",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": {"model": "smollm2", "tier": "silver", "resources": {"share": 100}} | spec,
        }
        self.custom.create_namespaced_custom_object(
            names.GROUP, names.VERSION, NAMESPACE, "llmsessions", body, field_validation="Strict"
        )

    def change(self, name: str, body: Raw) -> None:
        self.custom.patch_namespaced_custom_object(
            names.GROUP, names.VERSION, NAMESPACE, "llmsessions", name, body
        )

    def delete(self, name: str) -> None:
        self.custom.delete_namespaced_custom_object(
            names.GROUP, names.VERSION, NAMESPACE, "llmsessions", name
        )

    def session(self, name: str) -> Raw | None:
        try:
            found = self.custom.get_namespaced_custom_object(
                names.GROUP, names.VERSION, NAMESPACE, "llmsessions", name
            )
        except ApiException as error:
            if error.status == 404:
                return None
            raise
        return dict(found)

    def status(self, name: str) -> Raw:
        session = self.session(name)
        return dict((session or {}).get("status", {}))

    def condition(self, name: str, kind: str) -> Raw:
        conditions = self.status(name).get("conditions", [])
        return next((c for c in conditions if c["type"] == kind), {})

    def held_by(self, name: str) -> list[str]:
        """The finalizers of a session that is there."""
        raw = self.session(name)
        assert raw is not None
        return list(raw["metadata"].get("finalizers") or ())

    def pods(self, name: str) -> list[str]:
        selector = f"{names.LABEL_SESSION}={name}"
        items = self.core.list_namespaced_pod(NAMESPACE, label_selector=selector).items
        return sorted(pod.metadata.name for pod in items)

    def snapshots(self) -> list[Raw]:
        found = self.custom.list_namespaced_custom_object(
            names.GROUP, names.VERSION, NAMESPACE, "sessionsnapshots"
        )
        return list(found["items"])

    def events(self, name: str) -> list[tuple[str, str, int]]:
        """Without what the API server tells of the session's service, which has the same name."""
        about = f"involvedObject.kind!=Service,involvedObject.name={name}"
        found = self.core.list_namespaced_event(NAMESPACE, field_selector=about)
        return sorted((e.reason, e.message, e.count) for e in found.items)

    def writes(self, *, by: str = "") -> list[tuple[str, str]]:
        """Every write so far, by anybody or by one program, as the audit log has it.

        The API server's own are left out: it keeps house at its start.
        """
        entries = map(json.loads, self.control_plane.audit_log.read_text().splitlines())
        return [
            (entry["verb"], entry["objectRef"]["resource"])
            for entry in entries
            if entry["verb"] not in ("get", "list", "watch")
            and "objectRef" in entry
            and by in entry.get("userAgent", "")
            and not entry.get("userAgent", "").startswith("kube-apiserver/")
        ]

    def until_ready(self, name: str, *, epoch: int = 1) -> Raw:
        found: Raw = wait_until(
            lambda: (
                self.condition(name, "Ready").get("status") == "True"
                and self.status(name)["epoch"] == epoch
                and self.status(name)
            ),
            what=f"{name} serves at epoch {epoch}",
            instead=lambda: f"{self.status(name)}\n{self._last_words()}",
        )
        return found

    def _last_words(self) -> str:
        """Of the operators."""
        return (self.folder / "operator.log").read_text()[-3000:]

    def until(self, name: str, kind: str, status: str, reason: str) -> Raw:
        condition: Raw = wait_until(
            lambda: (
                (found := self.condition(name, kind)).get("status") == status
                and found["reason"] == reason
                and found
            ),
            what=f"{name}: {kind}={status} {reason}",
            instead=lambda: self.condition(name, kind),
        )
        return condition


def create_model(rig: Rig, name: str = "smollm2", **spec: Any) -> None:
    body = {
        "apiVersion": names.API_VERSION,
        "kind": "LLMModel",
        "metadata": {"name": name},
        "spec": MODEL | spec,
    }
    rig.custom.create_cluster_custom_object(names.GROUP, names.VERSION, "llmmodels", body)


def clean(rig: Rig) -> None:
    """Without an operator and a garbage collector: finalizers go by force, then the objects."""
    rig.nodes.stop()
    api = Api(rig.client)
    for kind in (SESSIONS, PODS, SERVICES, SNAPSHOTS, EVENTS, MODELS, TENANTS, TIERS, GPU_NODES):
        for item in api.list(kind)[0]:
            _remove(api, kind, item["metadata"])
    for node in api.list(NODES)[0]:
        _remove(api, NODES, node["metadata"])
    for lease in api.list(LEASES)[0]:
        _remove(api, LEASES, lease["metadata"])


def _remove(api: Api, kind: Kind, meta: Raw) -> None:
    namespace = meta.get("namespace", "")
    try:
        if meta.get("finalizers"):
            patch = {"metadata": {"finalizers": None}}
            api.patch(kind, patch, name=meta["name"], namespace=namespace)
        api.delete(kind, name=meta["name"], uid=meta["uid"], namespace=namespace, grace_seconds=0)
    except NotFoundError:
        return


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
