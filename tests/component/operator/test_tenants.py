"""What a tenant gives to its sessions' pods: its name as a label, and its API key."""

from collections.abc import Iterator
from typing import Any

import pytest
from kubernetes.client import ApiException
from operatorrig import NAMESPACE, Rig, wait_until
from sojourn_api import names

pytestmark = pytest.mark.cluster

WHERE = (names.GROUP, names.VERSION, "tenants")


@pytest.fixture
def lab(rig: Rig) -> Iterator[Rig]:
    """The test's namespace belongs to a tenant that has an API key and may use silver."""
    body = {
        "apiVersion": names.API_VERSION,
        "kind": "Tenant",
        "metadata": {"name": "lab"},
        "spec": {
            "namespaces": [NAMESPACE],
            "tiers": ["silver"],
            "apiKeySecretRef": {"name": "lab-key", "key": "key"},
        },
    }
    rig.custom.create_cluster_custom_object(*WHERE, body, field_validation="Strict")
    yield rig
    rig.custom.delete_cluster_custom_object(*WHERE, "lab")


def pod_of(rig: Rig, session: str) -> Any:
    """The session's pod as soon as there is one; this needs no node that runs it."""

    def found() -> Any:
        try:
            return rig.core.read_namespaced_pod(f"{session}-1", NAMESPACE)
        except ApiException:
            return None

    return wait_until(found, what=f"{session} has a pod", instead=lambda: rig.status(session))


def key_of(pod: Any) -> tuple[str, str]:
    (env,) = [e for e in pod.spec.containers[0].env if e.name == names.ENV_API_KEY]
    return env.value_from.secret_key_ref.name, env.value_from.secret_key_ref.key


def test_a_session_without_a_key_takes_that_of_its_tenant(lab: Rig) -> None:
    lab.nodes.add_node("node-a")
    lab.operate()
    lab.create("chat")
    pod = pod_of(lab, "chat")
    assert key_of(pod) == ("lab-key", "key")
    assert pod.metadata.labels[names.LABEL_TENANT] == "lab"


def test_a_session_with_a_key_keeps_it(lab: Rig) -> None:
    lab.nodes.add_node("node-a")
    lab.operate()
    lab.create("chat", apiKeySecretRef={"name": "own"})
    assert key_of(pod_of(lab, "chat")) == ("own", "api-key")


def ready_of(rig: Rig, tenant: str) -> dict[str, Any]:
    conditions = rig.custom.get_cluster_custom_object(*WHERE, tenant).get("status", {})
    found = {one["type"]: one for one in conditions.get("conditions", [])}
    return dict(found.get("Ready", {}))


def test_a_guarantee_that_the_cluster_cannot_honour_is_told_until_it_can(lab: Rig) -> None:
    guarantees = [{"tier": "silver", "share": 1500}]
    lab.custom.patch_cluster_custom_object(*WHERE, "lab", {"spec": {"guarantees": guarantees}})
    lab.nodes.add_node("node-a")
    lab.operate()

    def told() -> bool:
        return ready_of(lab, "lab").get("reason") == "GuaranteeNotCovered"

    wait_until(told, what="the tenant says so", instead=lambda: ready_of(lab, "lab"))
    ready = ready_of(lab, "lab")
    assert ready["status"] == "False"
    assert "its guarantee of 1500 for silver is not covered" in ready["message"]
    assert "the GPUs in service have 1000" in ready["message"]
    lab.nodes.add_node("node-b")
    wait_until(
        lambda: ready_of(lab, "lab").get("status") == "True",
        what="it is covered",
        instead=lambda: ready_of(lab, "lab"),
    )

    def events() -> list[tuple[str, str, int]]:
        found = lab.core.list_namespaced_event("default", field_selector="involvedObject.name=lab")
        return [(event.reason, event.type, event.count) for event in found.items]

    assert wait_until(events, what="it is told") == [("GuaranteeNotCovered", "Warning", 1)]


def test_the_namespace_says_which_tiers_its_tenant_may_use(lab: Rig) -> None:
    lab.operate()

    def mark() -> str:
        annotations = lab.core.read_namespace(NAMESPACE).metadata.annotations or {}
        return str(annotations.get(names.ANNOTATION_TIERS, ""))

    assert wait_until(mark, what="the namespace is marked") == "silver"
