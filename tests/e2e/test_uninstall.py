"""Upgrade, uninstall and a new install with a live session: nothing is lost or left behind.

On the same cluster as the story, with a session of its own that has answered a chat.
"""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from kube import CommandFailedError, Kube
from localcluster.paths import AUDIT_LOG
from places import Place
from sojourn_api import names
from steps import NAMESPACE, SYSTEM, Steps, condition

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

OURS = "app.kubernetes.io/part-of=sojourn"
SESSION = "kept"
CLUSTER_WIDE = (
    "clusterroles",
    "clusterrolebindings",
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
    "priorityclasses",
)


@dataclass(frozen=True, slots=True)
class Ends:
    """The session before, after the uninstall, and after the new install; and what was left.

    `began` and `gone`: when the uninstall was called, and when the last of our pods had ended.
    """

    began: str
    gone: str
    before: dict[str, Any]
    released: dict[str, Any]
    pods: list[str]
    left: list[str]
    crds: list[str]
    back: dict[str, Any]


@pytest.fixture(scope="module")
def ends(place: Place) -> Iterator[Ends]:
    steps = Steps(place.kube)
    steps.install(values=place.values)
    place.prepare_namespace(NAMESPACE)
    steps.apply_examples()
    steps.apply_session(SESSION, "silver")
    before = steps.wait_ready(SESSION)
    steps.chat(SESSION, "What is the capital of Japan? One sentence.")
    yield _round(place, steps, before)
    steps.delete(SESSION)


def _round(place: Place, steps: Steps, before: dict[str, Any]) -> Ends:
    """Uninstall, look, and install again."""
    began = _now()
    place.kube.helm("uninstall", "sojourn", "--namespace", SYSTEM, "--wait", "--timeout", "180s")
    released = steps.read(SESSION)
    pods = _names(place.kube, "pods", "-A", "-l", names.LABEL_SESSION)
    # Helm does not wait for the pods of what it deletes.
    place.kube.wait(
        "the chart's pods are gone",
        lambda: _names(place.kube, "pods,jobs,configmaps,leases", "-n", SYSTEM, "-l", OURS),
        lambda found: not found,
        seconds=60,
    )
    gone = _now()
    left = [one for kind in CLUSTER_WIDE for one in _names(place.kube, kind, "-l", OURS)]
    crds = _names(place.kube, "crds", "-l", OURS)
    steps.install(values=place.values)
    steps.suspend(SESSION, wanted=False)
    back = steps.wait_ready(SESSION, after_epoch=before["status"]["epoch"])
    return Ends(began, gone, before, released, pods, left, crds, back)


def _now() -> str:
    return datetime.now(UTC).isoformat()


def _names(kube: Kube, *what: str) -> list[str]:
    return kube.kubectl("get", *what, "-o", "name").split()


def test_the_session_is_saved_before_its_operator_goes(ends: Ends) -> None:
    assert ends.released["spec"]["suspend"] is True
    assert condition(ends.released, "Paused") == "True"
    assert condition(ends.released, "ContextSaved") == "True"
    assert condition(ends.released, "Ready") == "False"


def test_no_finalizer_is_left_that_nobody_removes(ends: Ends) -> None:
    assert not ends.released["metadata"].get("finalizers")


def test_no_pod_and_no_object_of_the_chart_is_left(ends: Ends) -> None:
    assert ends.pods == []
    assert ends.left == []


def test_the_crds_and_so_the_sessions_stay(ends: Ends) -> None:
    assert len(ends.crds) == 6
    assert ends.released["metadata"]["uid"] == ends.before["metadata"]["uid"]


def test_a_new_install_brings_the_session_back_with_its_context(ends: Ends) -> None:
    assert ends.back["metadata"]["uid"] == ends.before["metadata"]["uid"]
    assert ends.back["status"]["exact"] is True
    tokens = ends.back["status"]["snapshot"]["tokens"]
    assert tokens >= ends.released["status"]["snapshot"]["tokens"] > 0


def test_an_upgrade_succeeds_while_the_session_serves(ends: Ends, place: Place) -> None:
    steps = Steps(place.kube)
    name = ends.back["metadata"]["name"]
    steps.install(values=place.values)
    now = steps.read(name)
    assert now["status"]["epoch"] == ends.back["status"]["epoch"]
    assert condition(now, "Ready") == "True"
    assert not _names(place.kube, "jobs", "-n", SYSTEM)


def test_the_rights_of_the_chart_were_enough(ends: Ends) -> None:
    """Whatever our service accounts asked for in all of this, nothing was forbidden.

    But Helm takes the rights away before the pods that use them have ended, though not before the
    Job of the uninstall has. And an API server that was killed refuses what it will allow in a
    moment, when it has read who may do what.
    """
    requests = [json.loads(line) for line in AUDIT_LOG.read_text().splitlines()]
    taken = _rights_taken_at(requests, ends)
    allowed, forbidden = set(), Counter[str]()
    for request in requests:
        if not request["user"]["username"].startswith(f"system:serviceaccount:{SYSTEM}:sojourn-"):
            continue
        if taken <= request["requestReceivedTimestamp"] < ends.gone:
            continue
        what = f"{request['verb']} {request['requestURI'].partition('?')[0]}"
        if request.get("responseStatus", {}).get("code") == 403:
            forbidden[what] += 1
        else:
            allowed.add(what)
    assert len(allowed) > 20
    assert not forbidden.keys() - allowed


def _rights_taken_at(requests: list[dict[str, Any]], ends: Ends) -> str:
    """When the first binding of this uninstall was deleted."""
    times: list[str] = [
        request["requestReceivedTimestamp"]
        for request in requests
        if request["verb"] == "delete"
        and request.get("objectRef", {}).get("resource") in ("rolebindings", "clusterrolebindings")
        and request["objectRef"].get("name", "").startswith("sojourn-")
        and ends.began < request["requestReceivedTimestamp"] < ends.gone
    ]
    return min(times)


def test_a_pod_of_a_user_cannot_take_gpu_slices(place: Place, ends: Ends) -> None:
    assert ends
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "thief", "namespace": NAMESPACE},
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": "none",
                    "resources": {"limits": {names.gpu_resource(0): "1"}},
                }
            ]
        },
    }
    with pytest.raises(CommandFailedError, match="create an LLMSession instead"):
        place.kube.apply(json.dumps(pod))
