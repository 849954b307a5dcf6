"""What keeps a pod's container from running, from the pod as the API server has it."""

from typing import Any

import pytest
from sojourn_api.names import CONTAINER
from sojourn_operator.seen.pod import parse_pod
from sojourn_operator.session import hindrance

VOLUMES = [
    {"name": claim, "persistentVolumeClaim": {"claimName": claim}}
    for claim in ("sojourn-store", "sojourn-models")
]


def raw(
    *, node: str = "", state: dict[str, Any] | None = None, **conditions: tuple[str, str]
) -> dict[str, Any]:
    told = [
        {"type": kind, "status": status, "reason": "Unschedulable", "message": message}
        for kind, (status, message) in conditions.items()
    ]
    containers = [{"name": CONTAINER, "state": state}] if state else []
    meta = {"name": "chat-1", "namespace": "team", "uid": "u", "resourceVersion": "1"}
    return {
        "metadata": meta,
        "spec": {"nodeName": node, "volumes": VOLUMES},
        "status": {"conditions": told, "containerStatuses": containers},
    }


def waits(reason: str, message: str = "") -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": message}}


CREATING = waits("ContainerCreating")


@pytest.mark.parametrize(
    ("pod", "reason", "part"),
    [
        (raw(node="n", state=waits("ErrImagePull", "no such tag")), "ErrImagePull", "no such tag"),
        (raw(PodScheduled=("False", "0/1 nodes fit")), "Unschedulable", "to node-a: 0/1 nodes fit"),
        (
            raw(PodScheduled=("False", 'persistentvolumeclaim "some" not found. not found')),
            "ClaimNotFound",
            "PersistentVolumeClaim some is not in namespace team",
        ),
        (
            raw(PodScheduled=("False", "pod has unbound immediate PersistentVolumeClaims")),
            "ClaimNotBound",
            "PersistentVolumeClaim sojourn-models or sojourn-store cannot be used: pod has unbound",
        ),
        (
            raw(node="n", state=CREATING, PodReadyToStartContainers=("False", "")),
            "PodNotPrepared",
            "node-a did not mount",
        ),
    ],
)
def test_it_is_told_in_the_words_of_who_waits(pod: dict[str, Any], reason: str, part: str) -> None:
    found = hindrance.of(parse_pod(pod), node="node-a")
    assert found is not None
    assert found.reason == reason
    assert part in found.message


@pytest.mark.parametrize(
    "pod",
    [
        raw(),
        raw(node="n", state=CREATING),
        raw(node="n", state=CREATING, PodReadyToStartContainers=("True", "")),
        raw(node="n", state={"running": {}}, PodReadyToStartContainers=("False", "")),
        raw(node="n", state={"terminated": {"exitCode": 1}}),
    ],
)
def test_nothing_keeps_a_pod_that_runs_or_pulls_its_image(pod: dict[str, Any]) -> None:
    assert hindrance.of(parse_pod(pod), node="node-a") is None
