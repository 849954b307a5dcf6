"""The life of sessions against a real API server: placed, paused for gold, resumed, deleted."""

from typing import Any

import pytest
from kubernetes.client import ApiException
from operatorrig import NAMESPACE, Rig, wait_until
from sojourn_api import names

pytestmark = pytest.mark.cluster

BIG = {"resources": {"slices": 60, "share": 100}}


def test_a_session_is_placed_and_serves(rig: Rig) -> None:
    rig.nodes.add_node("node-a")
    rig.operate()
    rig.create("chat")
    status = rig.until_ready("chat")
    assert status["ready"] == "True"
    assert status["reason"] == "Serving"
    assert status["node"] == "node-a"
    assert status["gpu"] == "gpu-0 A100-80GB"
    assert status["endpoint"] == "http://chat.team.svc:8000/v1"
    assert rig.pods("chat") == ["chat-1"]
    service = rig.core.read_namespaced_service("chat", NAMESPACE)
    assert service.spec.selector == {"sojourn.dev/session": "chat"}
    told = [(reason, count) for reason, _, count in rig.events("chat")]
    assert told == [("Placed", 1), ("Started", 1)]


def test_a_session_without_room_says_in_numbers_what_it_waits_for(rig: Rig) -> None:
    rig.nodes.add_node("node-a")
    rig.operate()
    rig.create("first", **BIG)
    rig.until_ready("first")
    rig.create("second", **BIG)
    ready = rig.until("second", "Ready", "False", "WaitingForRoom")
    assert "needs 60 slices" in ready["message"]
    assert "the most free is 20 on node-a gpu-0" in ready["message"]
    kinds = {c["type"] for c in rig.status("second")["conditions"]}
    assert kinds == {"Ready", "Placed", "Paused", "ContextSaved", "TargetMet"}


def test_a_spec_that_fits_no_gpu_warns_while_the_session_serves_and_rejects_it_after(
    rig: Rig,
) -> None:
    rig.nodes.add_node("node-a")
    rig.operate()
    rig.create("chat", **BIG)
    rig.until_ready("chat")
    evil = {"status": {"endpoint": "http://evil"}}
    group = (names.GROUP, names.VERSION, NAMESPACE, "llmsessions", "chat")
    rig.custom.patch_namespaced_custom_object_status(*group, evil)
    rig.change("chat", {"spec": {"resources": {"slices": 400}}})
    wait_until(
        lambda: (
            "no GPU has 400 slices (the most is 80)" in rig.condition("chat", "Ready")["message"]
        ),
        what="the change is warned of",
        instead=lambda: rig.status("chat"),
    )
    status = rig.status("chat")
    assert (status["ready"], status["reason"], status["epoch"]) == ("True", "Serving", 1)
    assert status["endpoint"] == "http://chat.team.svc:8000/v1"
    assert "evil" not in rig.condition("chat", "Ready")["message"]
    assert [n for reason, _, n in rig.events("chat") if reason == "NoMatchingGPU"] == [1]
    rig.core.delete_namespaced_pod("chat-1", NAMESPACE)
    rig.until("chat", "Ready", "False", "NoMatchingGPU")
    (told,) = [text for reason, text, _ in rig.events("chat") if reason == "Rejected"]
    assert told.startswith("NoMatchingGPU: needs 400 slices")


def test_a_cordoned_node_is_waited_for_by_name(rig: Rig) -> None:
    rig.nodes.add_node("node-a")
    rig.core.patch_node("node-a", {"spec": {"unschedulable": True}})
    rig.operate()
    rig.create("chat")
    ready = rig.until("chat", "Ready", "False", "WaitingForRoom")
    assert "kubectl uncordon node-a" in ready["message"]
    operator = "kubectl exec -n sojourn-system deploy/sojourn-operator"
    assert f"`{operator} -- sojourn-operator explain team/chat`" in ready["message"]
    assert rig.condition("chat", "TargetMet")["reason"] == "NoTraffic"
    rig.core.patch_node("node-a", {"spec": {"unschedulable": None}})
    rig.until_ready("chat")


def test_gold_pauses_silver_and_silver_comes_back_with_its_context(rig: Rig) -> None:
    rig.nodes.add_node("node-a")
    rig.operate()
    rig.create("silver", **BIG)
    rig.until_ready("silver")
    rig.create("golden", **BIG, tier="gold")
    rig.until_ready("golden")
    paused = rig.until("silver", "Paused", "True", "PreemptedByGold")
    assert "team/golden" in paused["message"]
    status = rig.status("silver")
    assert status["preemptedBy"] == "team/golden"
    assert status["snapshot"]["tokens"] == 100
    assert status["snapshot"]["name"] == "silver-1"
    saved = rig.condition("silver", "ContextSaved")
    assert (saved["status"], saved["reason"]) == ("True", "Saved")
    assert status["snapshot"]["uri"] in saved["message"]
    rig.until("silver", "Ready", "False", "WaitingForRoom")
    wait_until(lambda: rig.pods("silver") == [], what="the ended pod is gone")
    rig.delete("golden")
    status = rig.until_ready("silver", epoch=2)
    assert "preemptedBy" not in status
    events = rig.events("silver")
    reasons = [reason for reason, _, _ in events]
    assert sorted(set(reasons)) == sorted(reasons), reasons
    (why,) = [message for reason, message, _ in events if reason == "Preempted"]
    assert why.startswith("paused for team/golden: needs 60 slices on one GPU")
    assert "; no pause as cheap as this makes room elsewhere" in why
    expected = {"Placed", "Started", "Preempted", "Paused", "ContextSaved", "Resumed"}
    assert expected <= set(reasons)


def test_a_snapshot_is_described_by_an_object_of_its_own(rig: Rig) -> None:
    rig.nodes.add_node("node-a")
    rig.operate()
    rig.create("chat")
    rig.until_ready("chat")
    rig.change("chat", {"spec": {"suspend": True}})
    rig.until("chat", "Paused", "True", "Suspended")
    (snapshot,) = rig.snapshots()
    assert snapshot["metadata"]["name"] == "chat-1"
    assert snapshot["metadata"]["ownerReferences"][0]["name"] == "chat"
    assert snapshot["spec"]["manifest"] == "manifest-1-1.json"
    assert snapshot["status"]["conditions"][0]["status"] == "True"


def test_suspend_pauses_and_its_end_resumes(rig: Rig) -> None:
    rig.nodes.add_node("node-a")
    rig.operate()
    rig.create("chat")
    rig.until_ready("chat")
    rig.change("chat", {"spec": {"suspend": True}})
    rig.until("chat", "Paused", "True", "Suspended")
    ready = rig.until("chat", "Ready", "False", "Suspended")
    assert "spec.suspend" in ready["message"]
    rig.change("chat", {"spec": {"suspend": False}})
    rig.until_ready("chat", epoch=2)
    rig.change("chat", {"spec": {"suspend": True}})
    wait_until(
        lambda: rig.status("chat")["snapshot"]["name"] == "chat-2", what="the second snapshot"
    )
    wait_until(lambda: len(rig.snapshots()) == 1, what="the first snapshot is superseded")


def test_an_idle_session_is_paused_and_woken(rig: Rig) -> None:
    rig.nodes.add_node("node-a")
    rig.operate()
    rig.create("chat", idle={"afterSeconds": 60, "action": "Pause"})
    rig.until_ready("chat")
    rig.nodes.of("chat").status = {"idleSeconds": 61}
    rig.until("chat", "Paused", "True", "Idle")
    rig.until("chat", "Ready", "False", "Idle")
    rig.nodes.of("chat").status = {}
    rig.change("chat", {"metadata": {"annotations": {"sojourn.dev/wake": "yesterday"}}})
    wait_until(
        lambda: "'yesterday', which is no time" in rig.condition("chat", "Ready")["message"],
        what="the session says why it is not woken",
    )
    assert [count for reason, _, count in rig.events("chat") if reason == "NotWoken"] == [1]
    rig.change("chat", {"metadata": {"annotations": {"sojourn.dev/wake": "2099-01-01T00:00:00Z"}}})
    rig.until_ready("chat", epoch=2)


def test_a_context_length_that_the_model_lacks_is_told_while_the_session_serves_on(
    rig: Rig,
) -> None:
    rig.nodes.add_node("node-a")
    rig.operate()
    rig.create("chat", contextLength=2048)
    rig.until_ready("chat")
    rig.change("chat", {"spec": {"contextLength": 100_000}})
    wait_until(
        lambda: "LLMModel smollm2 has 8192" in rig.condition("chat", "Ready")["message"],
        what="the session says what the model has",
    )
    assert rig.condition("chat", "Ready")["status"] == "True"
    assert rig.status("chat")["contextLength"] == 2048
    assert [reason for reason, *_ in rig.events("chat")].count("ContextTooLong") == 1
    rig.change("chat", {"spec": {"suspend": True}})
    rig.until("chat", "Paused", "True", "Suspended")
    rig.change("chat", {"spec": {"suspend": False}})
    rig.until_ready("chat", epoch=2)
    with pytest.raises(ApiException, match=r"reduced below status\.contextLength"):
        rig.change("chat", {"spec": {"contextLength": 1024}})
    rig.change("chat", {"spec": {"contextLength": 4096}})
    rig.create("other", contextLength=100_000)
    rig.until("other", "Ready", "False", "ContextTooLong")
    rig.change("other", {"spec": {"contextLength": 4096}})
    rig.until_ready("other")


def test_numbers_that_are_not_those_of_the_weights_are_told_until_they_are_corrected(
    rig: Rig,
) -> None:
    rig.nodes.add_node("node-a")
    rig.operate()
    rig.create("chat")
    rig.nodes.of("chat").status = {"weights": {"kvBytesPerToken": 30_000}}
    rig.until_ready("chat")
    told = "spec.kvBytesPerToken is 23040 and theirs 30000"
    wait_until(
        lambda: told in rig.condition("chat", "Ready")["message"], what="the session says it"
    )
    bad = wait_until(lambda: said_of_model(rig, "False"), what="the model says it")
    assert bad["reason"] == "ModelMismatch"
    assert told in bad["message"]
    rig.custom.patch_cluster_custom_object(
        names.GROUP,
        names.VERSION,
        "llmmodels",
        "smollm2",
        {"spec": {"kvBytesPerToken": 30_000}},
    )
    wait_until(lambda: said_of_model(rig, "True"), what="the model is usable")
    wait_until(
        lambda: told not in rig.condition("chat", "Ready")["message"], what="so is the session"
    )


def said_of_model(rig: Rig, status: str) -> dict[str, Any] | None:
    """The model's Ready, if it has this status."""
    found = rig.custom.get_cluster_custom_object(names.GROUP, names.VERSION, "llmmodels", "smollm2")
    (ready,) = found["status"]["conditions"]
    return dict(ready) if ready["status"] == status else None


def test_a_deleted_session_leaves_nothing(rig: Rig) -> None:
    rig.nodes.add_node("node-a")
    rig.operate()
    rig.create("chat")
    rig.until_ready("chat")
    rig.nodes.of("chat").hold_end = True
    rig.delete("chat")
    rig.until("chat", "Paused", "False", "Deleted")
    assert rig.session("chat") is not None
    rig.nodes.of("chat").hold_end = False
    wait_until(lambda: rig.session("chat") is None, what="the session is gone")
    assert "chat-1" not in rig.pods("chat")
    assert rig.nodes.purged == ["/var/lib/sojourn/store/chat"]
    assert rig.snapshots() == []


def test_the_finalizer_of_somebody_else_is_left_alone(rig: Rig) -> None:
    theirs, ours = "example.com/backup", names.FINALIZER_SESSION
    rig.nodes.add_node("node-a")
    rig.create("chat")
    rig.change("chat", {"metadata": {"finalizers": [theirs]}})
    rig.operate()
    rig.until_ready("chat")
    assert rig.held_by("chat") == [theirs, ours]
    rig.delete("chat")
    wait_until(lambda: rig.held_by("chat") == [theirs], what="our finalizer is gone")
    assert rig.pods("chat") == []


def test_a_context_that_cannot_be_removed_is_named_in_an_event(rig: Rig) -> None:
    rig.nodes.add_node("node-a")
    rig.nodes.purge_phase = "Failed"
    rig.operate()
    rig.create("chat")
    rig.until_ready("chat")
    rig.delete("chat")
    wait_until(lambda: rig.session("chat") is None, what="the session is gone")
    (told,) = [text for reason, text, _ in rig.events("chat") if reason == "ContextNotDeleted"]
    assert "team/chat of the store" in told


def test_retained_snapshots_outlive_their_session(rig: Rig) -> None:
    rig.nodes.add_node("node-a")
    rig.operate()
    rig.create("chat", snapshot={"policy": "Retain"})
    rig.until_ready("chat")
    rig.delete("chat")
    wait_until(lambda: rig.session("chat") is None, what="the session is gone")
    (snapshot,) = rig.snapshots()
    assert "ownerReferences" not in snapshot["metadata"]
    assert rig.nodes.purged == []
    rig.create("chat")
    rig.until_ready("chat", epoch=2)


def test_a_quantity_that_is_none_is_refused_or_named_and_stops_nobody(rig: Rig) -> None:
    rig.nodes.add_node("node-a")
    operator = rig.operate()
    for bad in ("banana", "NaN", "1e999999", "", "-1"):
        with pytest.raises(ApiException) as refused:
            rig.create("bad", template={"resources": {"requests": {"cpu": bad}}})
        assert refused.value.status == 422
        assert "spec.template.resources.requests.cpu" in str(refused.value.body)
    rig.create("bad", template={"resources": {"requests": {"cpu": -1}}})
    ready = rig.until("bad", "Ready", "False", "InvalidTemplate")
    assert "spec.template.resources.requests.cpu" in ready["message"]
    rig.create("chat", template={"resources": {"requests": {"cpu": "1.5e-1"}}})
    rig.until_ready("chat")
    assert [n for reason, _, n in rig.events("bad") if reason == "Rejected"] == [1]
    assert operator.get("/readyz") == 200


def test_a_shipped_tier_that_is_deleted_is_back_and_a_changed_one_is_kept(rig: Rig) -> None:
    where = (names.GROUP, names.VERSION, "qostiers")

    def tiers() -> dict[str, Any]:
        items = rig.custom.list_cluster_custom_object(*where)["items"]
        return {item["metadata"]["name"]: item for item in items}

    rig.operate()
    wait_until(lambda: len(tiers()) == 3, what="the shipped tiers are there")
    rig.custom.patch_cluster_custom_object(
        *where, "silver", {"spec": {"timeSliceMilliseconds": 50}}
    )
    first = tiers()
    rig.custom.delete_cluster_custom_object(*where, "bronze")
    wait_until(lambda: len(tiers()) == 3, what="bronze is back")
    found = tiers()
    assert found["bronze"]["spec"] == first["bronze"]["spec"]
    assert found["silver"] == first["silver"]
    uid = found["bronze"]["metadata"]["uid"]
    assert uid != first["bronze"]["metadata"]["uid"]

    def events() -> list[tuple[str, str]]:
        told = rig.core.list_namespaced_event(
            "default", field_selector="involvedObject.kind=QoSTier"
        )
        return [(event.involved_object.uid, event.reason) for event in told.items]

    assert wait_until(events, what="it is told") == [(uid, "TierRestored")]
