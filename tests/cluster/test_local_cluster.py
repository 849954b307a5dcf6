"""The local cluster does what the tests of Sojourn rely on: pods, Services, claims, fake GPUs."""

import json
import urllib.request
from collections.abc import Iterator, Mapping

import pytest
from localcluster import models, processes
from localcluster.lifecycle import Cluster
from localcluster.paths import CLUSTER_FOLDER, NODES

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

_NAMESPACE = "local-cluster-test"
_SERVER = (
    "import http.server, os\n"
    "class Handler(http.server.BaseHTTPRequestHandler):\n"
    "    def do_GET(self):\n"
    "        self.send_response(200); self.end_headers()\n"
    "        self.wfile.write(os.environ['NODE'].encode())\n"
    "print('serving', flush=True)\n"
    "http.server.ThreadingHTTPServer(('', 8080), Handler).serve_forever()\n"
)
_ASK_THE_API = (
    "import os, ssl, urllib.request as u\n"
    "b = '/var/run/secrets/kubernetes.io/serviceaccount/'\n"
    "host = os.environ['KUBERNETES_SERVICE_HOST'], os.environ['KUBERNETES_SERVICE_PORT']\n"
    "r = u.Request('https://%s:%s/api' % host,\n"
    "              headers={'Authorization': 'Bearer ' + open(b + 'token').read()})\n"
    "print(u.urlopen(r, context=ssl.create_default_context(cafile=b + 'ca.crt')).status)\n"
)
_USE_THE_CLAIMS = (
    "import os, pathlib\n"
    "pathlib.Path('/store/mark').write_text('x')\n"
    "print(os.getuid(), sorted(os.listdir('/models')))\n"
)
_RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "runAsGroup": 65532,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


def _pod(name: str, node: str, program: str, **container: object) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": _NAMESPACE, "labels": {"app": "web"}},
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 0,
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "c",
                    "image": "sojourn/base:dev",
                    "args": ["-c", program],
                    "env": [{"name": "NODE", "value": node}],
                    "securityContext": _RESTRICTED,
                    **container,
                }
            ],
        },
    }


@pytest.fixture(scope="module")
def namespace(cluster: Cluster) -> Iterator[Cluster]:
    """A restricted namespace with a web server on each node behind one Service."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    metadata = {"name": _NAMESPACE, "labels": labels}
    _apply(cluster, {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    processes.wait_until(
        lambda: "default" in cluster.kubectl("get", "serviceaccounts", f"-n={_NAMESPACE}"),
        what="the service account",
        seconds=20,
    )
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "web", "namespace": _NAMESPACE},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]},
    }
    probe = {"httpGet": {"port": 8080, "path": "/"}, "periodSeconds": 1}
    servers = [_pod(f"on-{n.name}", n.name, _SERVER, readinessProbe=probe) for n in NODES]
    _apply(cluster, service, *servers)
    ready = ("wait", "--for=condition=Ready", "pod", "-l=app=web", f"-n={_NAMESPACE}")
    cluster.kubectl(*ready, "--timeout=60s")
    yield cluster
    cluster.kubectl("delete", "namespace", _NAMESPACE, "--wait=true")


def _apply(cluster: Cluster, *objects: Mapping[str, object]) -> None:
    everything = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(everything))


def _exec(cluster: Cluster, pod: str, program: str) -> str:
    command = ("exec", pod, f"-n={_NAMESPACE}", "--", "python3", "-c", program)
    return cluster.kubectl(*command).strip()


def _service_address(cluster: Cluster) -> str:
    query = ("get", "service", "web", f"-n={_NAMESPACE}", "-o=jsonpath={.spec.clusterIP}")
    return f"{cluster.kubectl(*query)}:80"


def test_two_nodes_are_ready_and_labelled_as_simulated(cluster: Cluster) -> None:
    query = ("get", "nodes", "-l=sojourn.dev/gpu=true,sojourn.dev/simulated=true", "-o=name")
    assert cluster.kubectl(*query).split() == [f"node/{node.name}" for node in NODES]


@pytest.mark.parametrize("node", [node.name for node in NODES])
def test_a_pod_of_each_node_reaches_the_api_by_its_service_address(
    namespace: Cluster, node: str
) -> None:
    assert _exec(namespace, f"on-{node}", _ASK_THE_API) == "200"


@pytest.mark.parametrize("node", [node.name for node in NODES])
def test_a_service_leads_to_the_pods_of_both_nodes(namespace: Cluster, node: str) -> None:
    url = f"http://{_service_address(namespace)}/"
    ask_until_both = (
        "import urllib.request as u\n"
        "seen = set()\n"
        "for _ in range(100):\n"
        f"    seen.add(u.urlopen({url!r}, timeout=5).read().decode())\n"
        "print(sorted(seen))\n"
    )
    assert _exec(namespace, f"on-{node}", ask_until_both) == "['node-a', 'node-b']"


def test_a_client_on_the_host_reaches_a_service_by_a_forwarded_port(namespace: Cluster) -> None:
    target = _service_address(namespace)
    local = namespace.forward(target)
    assert namespace.forward(target) == local
    with urllib.request.urlopen(f"http://{local}/", timeout=10) as response:
        assert response.read().decode() in {node.name for node in NODES}


def test_logs_are_read_from_the_node(namespace: Cluster) -> None:
    logs = namespace.kubectl("logs", f"on-{NODES[1].name}", f"-n={_NAMESPACE}")
    assert logs.startswith("serving")


def test_a_restricted_pod_writes_the_store_and_reads_the_models(namespace: Cluster) -> None:
    template = (CLUSTER_FOLDER / "manifests" / "storage.yaml").read_text()
    claims = template.replace("${NAMESPACE}", _NAMESPACE)
    namespace.kubectl("apply", "-f", "-", stdin=claims)
    mounts = [
        {"name": "store", "mountPath": "/store", "subPath": f"{_NAMESPACE}/one"},
        {"name": "models", "mountPath": "/models", "readOnly": True},
    ]
    pod = _pod("writer", NODES[0].name, _USE_THE_CLAIMS, volumeMounts=mounts)
    spec = pod["spec"]
    assert isinstance(spec, dict)
    spec["volumes"] = [
        {"name": name, "persistentVolumeClaim": {"claimName": f"sojourn-{name}"}}
        for name in ("store", "models")
    ]
    _apply(namespace, pod)
    done = ("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/writer", f"-n={_NAMESPACE}")
    namespace.kubectl(*done, "--timeout=60s")
    said = namespace.kubectl("logs", "writer", f"-n={_NAMESPACE}").strip()
    assert said == f"65532 ['{models.NAME}']"
    mark = f"/opt/sojourn/store/{_NAMESPACE}/one/mark"
    assert namespace.on_node(NODES[1].name, "cat", mark) == "x", "the other node sees it too"
    namespace.kubectl("delete", "pod", "writer", f"-n={_NAMESPACE}", "--wait=true")
    namespace.kubectl("delete", "-f", "-", stdin=claims)


def test_each_node_has_gpus_of_its_own_at_the_same_path(cluster: Cluster) -> None:
    machines = [
        json.loads(cluster.on_node(node.name, "cat", "/opt/sojourn/sim/scenario.json"))
        for node in NODES
    ]
    assert "A100" in machines[0]["gpus"][0]["name"]
    assert "H100" in machines[1]["gpus"][0]["name"]


def test_a_scenario_replaced_from_outside_is_seen_on_the_node(cluster: Cluster) -> None:
    file = cluster.scenario(NODES[0].name)
    original = file.read_text()
    changed = file.with_name("next.json")
    changed.write_text(original + "\n")
    changed.rename(file)
    seen = cluster.on_node(NODES[0].name, "cat", "/opt/sojourn/sim/scenario.json")
    assert seen == original + "\n"
    file.write_text(original)


def test_what_pods_write_through_the_api_is_in_the_audit_log(namespace: Cluster) -> None:
    namespace.kubectl("create", "configmap", "counted", f"-n={_NAMESPACE}")
    lines = map(json.loads, namespace.audit_log.read_text().splitlines())
    writes = [
        line["verb"]
        for line in lines
        if line.get("objectRef", {}).get("name") == "counted"
        and line["objectRef"].get("namespace") == _NAMESPACE
    ]
    assert "create" in writes
