"""What goes wrong: killed operators, crashing runtimes, drains, lost nodes, wrong specs."""

import signal
from pathlib import Path

import pytest
import yaml
from kubernetes.client import V1Eviction, V1ObjectMeta, V1Pod
from operatorrig import NAMESPACE, Operator, Rig, create_model, wait_until
from sojourn_api import names

pytestmark = pytest.mark.cluster

EXPECTED = {"Placed", "Started", "Preempted", "Paused", "ContextSaved"}
BIG = {"resources": {"slices": 60, "share": 100}}


def failure_report(reason: str, *, retry: bool) -> dict[str, object]:
    return {
        "reason": reason,
        "message": f"models/smollm2: {reason}; look there",
        "retry": retry,
        "snapshot": None,
    }


def test_an_operator_killed_during_a_pause_ends_in_the_same_state(rig: Rig) -> None:
    rig.nodes.add_node("node-a")
    first = rig.operate()
    rig.create("silver", **BIG)
    rig.until_ready("silver")
    rig.nodes.of("silver").hold_end = True
    rig.create("golden", **BIG, tier="gold")

    def silver() -> V1Pod:
        return rig.core.read_namespaced_pod("silver-1", NAMESPACE)

    wait_until(lambda: silver().metadata.deletion_timestamp, what="silver is told to end")
    first.kill()
    rig.nodes.of("silver").hold_end = False
    wait_until(
        lambda: silver().status.phase == "Succeeded",
        what="the runtime saved and ended while no operator was there",
    )
    rig.operate()
    rig.until_ready("golden")
    rig.until("silver", "Paused", "True", "PreemptedByGold")
    assert rig.status("silver")["snapshot"]["tokens"] == 100
    assert rig.status("silver")["epoch"] == 1
    assert rig.pods("golden") == ["golden-1"]


def test_an_operator_killed_right_after_the_pause_is_written_goes_on_with_it(rig: Rig) -> None:
    rig.nodes.add_node("node-a")
    first = rig.operate()
    rig.create("silver", **BIG)
    rig.until_ready("silver")
    rig.nodes.of("silver").hold_end = True
    rig.create("golden", **BIG, tier="gold")
    rig.until("silver", "Paused", "False", "PreemptedByGold")
    first.kill()
    rig.operate()
    rig.nodes.of("silver").hold_end = False
    rig.until_ready("golden")
    rig.until("silver", "Paused", "True", "PreemptedByGold")
    assert rig.status("silver")["preemptedBy"] == "team/golden"


def test_an_operator_killed_before_anyone_is_paused_keeps_to_its_nomination(rig: Rig) -> None:
    """Killed as soon as the nomination shows: the same victim ends, and no other."""
    rig.nodes.add_node("node-a", gpus=2)
    first = rig.operate()
    for name in ("one", "two"):
        rig.create(name, **BIG)
        rig.until_ready(name)
        rig.nodes.of(name).hold_end = True
    rig.create("golden", **BIG, tier="gold")
    nomination = wait_until(
        lambda: rig.status("golden").get("nomination"), what="the nomination is written"
    )
    first.kill()
    (victim,) = nomination["victims"]
    rig.operate()
    loser = victim.removeprefix(f"{NAMESPACE}/")
    rig.nodes.of(loser).hold_end = False
    rig.until_ready("golden")
    rig.until(loser, "Paused", "True", "PreemptedByGold")
    other = "two" if loser == "one" else "one"
    assert rig.condition(other, "Ready")["status"] == "True"
    assert rig.status(other)["epoch"] == 1


def test_an_operator_killed_after_each_of_its_writes_still_gets_there(rig: Rig) -> None:
    """Gold comes while silver runs; no operator lives longer than a few writes."""
    rig.nodes.add_node("node-a")
    rig.operate().until_ready()
    rig.create("silver", **BIG)
    rig.until_ready("silver")
    rig.operators[0].kill()
    rig.create("golden", **BIG, tier="gold")

    def writes() -> int:
        return sum(what != "leases" for _, what in rig.writes(by="sojourn-operator"))

    for more in (1, 1, 2, 1, 3, 2):
        before = writes()
        operator = rig.operate()
        wait_until(lambda: writes() >= before + more, what=f"{more} writes more")  # noqa: B023 - used at once
        operator.kill()
        if rig.condition("golden", "Ready").get("status") == "True":
            break
    rig.operate()
    rig.until_ready("golden")
    rig.until("silver", "Paused", "True", "PreemptedByGold")
    assert rig.status("silver")["snapshot"]["tokens"] == 100
    assert rig.status("silver")["epoch"] == 1
    assert rig.pods("golden") == ["golden-1"]
    told = [reason for reason, _, _ in rig.events("silver")]
    assert sorted(set(told) - {"WaitingForRoom"}) == sorted(set(told) & EXPECTED)


def test_a_snapshot_whose_recording_was_cut_off_is_ready_after_all(rig: Rig) -> None:
    rig.nodes.add_node("node-a")
    rig.operate()
    rig.create("silver", **BIG)
    rig.until_ready("silver")
    rig.change("silver", {"spec": {"suspend": True}})
    rig.until("silver", "Paused", "True", "Suspended")
    (first,) = rig.snapshots()
    rig.change("silver", {"spec": {"suspend": False}})
    rig.until_ready("silver", epoch=2)
    unfinished = {
        **{key: first[key] for key in ("apiVersion", "kind")},
        "metadata": {"name": "silver-2", "labels": first["metadata"]["labels"]},
        "spec": first["spec"] | {"epoch": 2},
    }
    rig.custom.create_namespaced_custom_object(
        names.GROUP, names.VERSION, NAMESPACE, "sessionsnapshots", unfinished
    )
    rig.change("silver", {"spec": {"suspend": True}})
    rig.until("silver", "Paused", "True", "Suspended")
    (left,) = rig.snapshots()
    assert left["metadata"]["name"] == "silver-2"
    assert [c["status"] for c in left["status"]["conditions"]] == ["True"]


def test_a_leader_that_was_frozen_does_not_act_after_it_lost_the_lease(rig: Rig) -> None:
    rig.nodes.add_node("node-a")
    first = rig.operate(identity="one")
    rig.create("early")
    rig.until_ready("early")
    second = rig.operate(identity="two")
    second.until_ready()
    first.process.send_signal(signal.SIGSTOP)
    rig.create("late")
    rig.until_ready("late")
    assert second.metric("sojourn_operator_leader") == 1
    first.process.send_signal(signal.SIGCONT)
    wait_until(lambda: first.metric("sojourn_operator_leader") == 0, what="it knows that it lost")
    first_writes = first.metric_sum("sojourn_operator_api_writes_total")
    rig.create("later")
    rig.until_ready("later")
    assert first.metric_sum("sojourn_operator_api_writes_total") == first_writes
    assert rig.pods("late") == ["late-1"]


def test_the_standby_takes_over_and_is_ready_before(rig: Rig) -> None:
    rig.nodes.add_node("node-a")
    first = rig.operate(identity="one")
    rig.create("early")
    rig.until_ready("early")
    second = rig.operate(identity="two")
    wait_until(lambda: second.get("/readyz") == 200, what="the standby is ready")
    assert second.metric("sojourn_operator_leader") == 0
    epoch = first.metric("sojourn_operator_lease_epoch")
    first.stop()
    rig.create("late")
    rig.until_ready("late")
    assert second.metric("sojourn_operator_leader") == 1
    assert second.metric("sojourn_operator_lease_epoch") == epoch + 1


def test_an_idle_operator_writes_nothing_but_its_lease(rig: Rig) -> None:
    rig.nodes.add_node("node-a", gpus=4)
    operator = rig.operate()
    for number in range(20):
        rig.create(f"chat-{number}", resources={"slices": 10, "share": 10})
    for number in range(20):
        rig.until_ready(f"chat-{number}")
    leases = 'sojourn_operator_api_writes_total{resource="leases",verb="put"}'

    def writes() -> float:
        return operator.metric_sum("sojourn_operator_api_writes_total") - operator.metric(leases)

    settled = wait_until(lambda: _unchanged(writes, operator, leases), what="the writes settle")
    seen = len(rig.writes())
    before = operator.metric(leases)
    wait_until(lambda: operator.metric(leases) >= before + 3, what="three more renewals")
    assert writes() == settled
    assert set(rig.writes()[seen:]) == {("update", "leases")}, "neither we nor kopf wrote more"
    assert operator.resident_mib() <= 150


def _unchanged(writes: object, operator: Operator, leases: str) -> float | None:
    """The count of writes, if it stood still over one renewal."""
    assert callable(writes)
    count, renewals = writes(), operator.metric(leases)
    wait_until(lambda: operator.metric(leases) > renewals, what="a renewal")
    return count if count == writes() else None


def test_a_failure_that_only_a_change_can_mend_waits_for_the_change(rig: Rig) -> None:
    rig.nodes.add_node("node-a")
    rig.nodes.of("chat").crash = True
    rig.nodes.of("chat").exit_code = 2
    rig.nodes.of("chat").end = failure_report("ModelNotFound", retry=False)
    rig.operate()
    rig.create("chat")
    ready = rig.until("chat", "Ready", "False", "ModelNotFound")
    assert "look there" in ready["message"]
    assert "until the session or its model is changed" in ready["message"]
    assert rig.status("chat")["failure"]["retry"] is False
    assert rig.status("chat")["epoch"] == 1
    assert [n for reason, _, n in rig.events("chat") if reason == "Failed"] == [1]
    rig.nodes.behaviour.pop("chat")
    group = (names.GROUP, names.VERSION, "llmmodels", "smollm2")
    rig.custom.patch_cluster_custom_object(*group, {"spec": {"weightBytes": 269_030_017}})
    status = rig.until_ready("chat", epoch=2)
    assert status["failures"] == 1


def test_a_crash_is_tried_again_with_back_off(rig: Rig) -> None:
    rig.nodes.add_node("node-a")
    rig.nodes.of("chat").crash = True
    rig.nodes.of("chat").end = None
    rig.operate()
    rig.create("chat")
    ready = rig.until("chat", "Ready", "False", "Crashed")
    assert "tries again in 5 s" in ready["message"]
    rig.nodes.behaviour.pop("chat")
    rig.until_ready("chat", epoch=2)


def test_a_failure_that_comes_again_is_one_event_with_a_count(rig: Rig) -> None:
    """Though the runtime names a file with the number of the start."""
    rig.nodes.add_node("node-a")
    rig.nodes.of("chat").crash = True
    rig.nodes.of("chat").exit_code = 1
    words = failure_report("StoreUnwritable", retry=True)
    rig.nodes.of("chat").end = words | {"message": "journal-1-1.log: cannot open"}
    rig.operate()
    rig.create("chat")
    wait_until(lambda: rig.status("chat").get("failures") == 1, what="the first failure")
    rig.nodes.of("chat").end = words | {"message": "journal-2-1.log: cannot open"}
    wait_until(lambda: rig.status("chat").get("failures") == 2, what="the second failure")
    ((message, count),) = [(m, n) for reason, m, n in rig.events("chat") if reason == "Failed"]
    assert message == "StoreUnwritable: journal-2-1.log: cannot open"
    assert count == 2


def environment(rig: Rig, pod: str) -> dict[str, str]:
    container = rig.core.read_namespaced_pod(pod, NAMESPACE).spec.containers[0]
    return {entry.name: entry.value for entry in container.env}


def test_a_start_is_told_what_its_store_must_have_and_waits_for_it(rig: Rig) -> None:
    rig.nodes.add_node("node-a")
    rig.operate()
    rig.create("chat")
    rig.until_ready("chat")
    assert names.ENV_EXPECT_MANIFEST not in environment(rig, "chat-1")
    rig.change("chat", {"spec": {"suspend": True}})
    rig.until("chat", "ContextSaved", "True", "Saved")
    rig.nodes.of("chat").crash = True
    rig.nodes.of("chat").exit_code = 1
    rig.nodes.of("chat").end = failure_report("SnapshotMissing", retry=True)
    rig.change("chat", {"spec": {"suspend": False}})
    rig.until("chat", "Ready", "False", "SnapshotMissing")
    assert environment(rig, "chat-2")[names.ENV_EXPECT_MANIFEST] == "manifest-1-1.json"
    assert rig.condition("chat", "ContextSaved")["status"] == "False"
    wait_until(lambda: said_of_snapshot(rig) == ("False", "SnapshotMissing"), what="it is told")
    wait_until(lambda: rig.status("chat").get("failures") == 2, what="another try")
    assert environment(rig, "chat-3")[names.ENV_EXPECT_MANIFEST] == "manifest-1-1.json"
    assert [n for reason, _, n in rig.events("chat") if reason == "Failed"] == [2]
    rig.nodes.behaviour.pop("chat")
    rig.until_ready("chat", epoch=4)
    wait_until(lambda: said_of_snapshot(rig) == ("True", "Saved"), what="it was found again")


def said_of_snapshot(rig: Rig) -> tuple[str, str]:
    (snapshot,) = rig.snapshots()
    (ready,) = snapshot["status"]["conditions"]
    return ready["status"], ready["reason"]


def test_a_session_created_anew_expects_what_was_retained_for_it(rig: Rig) -> None:
    rig.nodes.add_node("node-a")
    rig.operate()
    rig.create("chat", snapshot={"policy": "Retain"})
    rig.until_ready("chat")
    rig.delete("chat")
    wait_until(lambda: rig.session("chat") is None, what="the session is gone")
    rig.create("chat")
    rig.until_ready("chat", epoch=2)
    assert environment(rig, "chat-2")[names.ENV_EXPECT_MANIFEST] == "manifest-1-1.json"
    rig.delete("chat")
    wait_until(lambda: rig.session("chat") is None, what="it is gone with its context")
    rig.create("chat")
    rig.until_ready("chat", epoch=1)
    assert names.ENV_EXPECT_MANIFEST not in environment(rig, "chat-1")


def test_what_is_retained_of_a_session_that_ended_badly_is_found_by_the_next(rig: Rig) -> None:
    """Only a pause makes a SessionSnapshot; the last commit is known all the same."""
    rig.nodes.add_node("node-a")
    rig.operate()
    rig.create("chat", snapshot={"policy": "Retain"})
    rig.until_ready("chat")
    rig.nodes.of("chat").exit_code = 1
    rig.nodes.of("chat").end = {"reason": "StoreFull", "message": "full", "retry": True}
    rig.delete("chat")
    wait_until(lambda: rig.session("chat") is None, what="the session is gone")
    (snapshot,) = rig.snapshots()
    assert "ownerReferences" not in snapshot["metadata"]
    rig.nodes.behaviour.pop("chat")
    rig.create("chat")
    rig.until_ready("chat", epoch=2)
    assert environment(rig, "chat-2")[names.ENV_EXPECT_MANIFEST] == "manifest-1-1.json"


def test_a_runtime_that_does_not_answer_is_not_ready_until_it_does(rig: Rig) -> None:
    """As on a node that died: its kubelet's last word was that the pod is ready."""
    rig.nodes.add_node("node-a")
    rig.operate()
    rig.create("chat")
    rig.nodes.of("chat").status = {"exact": False, "exactReason": "heard"}
    rig.until_ready("chat")
    wait_until(lambda: rig.status("chat").get("exact") is False, what="it was polled")
    rig.nodes.of("chat").silent = True
    ready = rig.until("chat", "Ready", "False", "NotAnswering")
    assert "no answer to 3 polls in " in ready["message"]
    assert "node node-a is ready" in ready["message"]
    assert rig.pods("chat") == ["chat-1"]
    rig.nodes.of("chat").silent = False
    rig.until("chat", "Ready", "True", "Serving")
    assert rig.status("chat")["epoch"] == 1


def test_an_operator_that_just_came_judges_nobody_it_has_not_heard(rig: Rig) -> None:
    rig.nodes.add_node("node-a")
    first = rig.operate()
    rig.create("chat")
    rig.until_ready("chat")
    first.stop()
    rig.nodes.of("chat").silent = True
    second = rig.operate(identity="two")
    second.until_ready()
    wait_until(
        lambda: second.metric("sojourn_operator_poll_errors_total") > 6,
        what="it has polled in vain for long",
    )
    assert rig.condition("chat", "Ready")["status"] == "True"


def by_another_address(rig: Rig) -> Path:
    """A kubeconfig that only half of the operator can follow.

    The API server is called by an address that its certificate does not have. Lists and writes
    expect one that it does have; kopf, which watches, knows no such setting.
    """
    raw = yaml.safe_load(rig.control_plane.kubeconfig.read_text())
    for entry in raw["clusters"]:
        cluster = entry["cluster"]
        assert "127.0.0.1" in cluster["server"]
        cluster["tls-server-name"] = "127.0.0.1"
        cluster["server"] = cluster["server"].replace("127.0.0.1", "[::ffff:127.0.0.1]")
    path = rig.folder / "kubeconfig"
    path.write_text(yaml.safe_dump(raw))
    return path


def test_an_operator_whose_watches_never_speak_is_not_ready(rig: Rig) -> None:
    """It works on by what it lists, and says so nowhere else."""
    rig.nodes.add_node("node-a")
    operator = rig.operate(kubeconfig=by_another_address(rig))

    def told() -> str:
        said = operator.unready()
        return said if "the watches of " in said else ""

    said = wait_until(told, what="it says so", instead=operator.unready)
    assert "nodes" in said
    assert "see the log" in said
    assert operator.get("/healthz") == 200


def test_a_kubelet_that_refuses_a_pod_is_avoided(rig: Rig) -> None:
    rig.nodes.add_node("node-a")
    rig.nodes.of("chat").refuse = "UnexpectedAdmissionError"
    rig.operate()
    rig.create("chat")
    rig.until("chat", "Ready", "False", "UnexpectedAdmissionError")
    refused = rig.status("chat")["placement"]["node"]
    rig.nodes.behaviour.pop("chat")
    rig.nodes.add_node("node-b")
    status = rig.until_ready("chat", epoch=2)
    assert (refused, status["node"]) == ("node-a", "node-b")


def test_an_eviction_saves_the_context_and_moves_the_session(rig: Rig) -> None:
    """As `kubectl drain` does it: cordon, then evict."""
    rig.nodes.add_node("node-a")
    rig.operate()
    rig.create("chat")
    rig.until_ready("chat")
    rig.nodes.add_node("node-b")
    rig.core.patch_node("node-a", {"spec": {"unschedulable": True}})
    eviction = V1Eviction(metadata=V1ObjectMeta(name="chat-1", namespace=NAMESPACE))
    rig.core.create_namespaced_pod_eviction("chat-1", NAMESPACE, eviction)
    status = rig.until_ready("chat", epoch=2)
    assert status["node"] == "node-b"
    assert status["snapshot"]["tokens"] == 100
    assert any(
        reason == "Paused" and message.startswith("NodeDraining")
        for reason, message, _ in rig.events("chat")
    )


def test_an_offender_is_paused_with_its_context_and_tried_again(rig: Rig) -> None:
    rig.nodes.add_node("node-a")
    rig.operate()
    rig.create("greedy")
    rig.until_ready("greedy")
    pod = rig.core.read_namespaced_pod("greedy-1", NAMESPACE)
    meta = {"namespace": NAMESPACE, "name": "greedy-1", "uid": pod.metadata.uid}
    text = "gpu-0: team/greedy-1 uses 21504 MiB, 1024 MiB more than granted"
    rig.nodes.accuse("node-a", {"metadata": meta}, reason="OverMemory", message=text)
    paused = rig.until("greedy", "Paused", "True", "OverMemory")
    assert paused["message"] == text
    assert rig.condition("greedy", "ContextSaved")["status"] == "True"
    assert rig.status("greedy")["failures"] == 1
    rig.until_ready("greedy", epoch=2)  # the charge names the first pod, not the second
    assert ("OverMemory", text, 1) in rig.events("greedy")


def test_a_pod_deleted_by_hand_comes_back(rig: Rig) -> None:
    rig.nodes.add_node("node-a")
    rig.operate()
    rig.create("chat")
    rig.until_ready("chat")
    rig.core.delete_namespaced_pod("chat-1", NAMESPACE)
    assert rig.until_ready("chat", epoch=2)["snapshot"]["epoch"] == 1


def test_a_lost_node_is_given_up_and_its_late_pod_is_cleared_away(rig: Rig) -> None:
    rig.nodes.add_node("node-a")
    rig.operate()
    rig.create("chat")
    rig.until_ready("chat")
    rig.nodes.add_node("node-b")
    rig.nodes.frozen.add("node-a")
    rig.nodes.set_ready("node-a", ready=False)
    status = rig.until_ready("chat", epoch=2)
    assert status["node"] == "node-b"
    assert "chat-1" in rig.pods("chat")
    rig.nodes.frozen.clear()
    rig.nodes.set_ready("node-a", ready=True)
    wait_until(lambda: rig.pods("chat") == ["chat-2"], what="the old pod ended and is gone")
    assert rig.condition("chat", "Ready")["status"] == "True"


def test_a_pod_that_is_not_scheduled_is_placed_elsewhere(rig: Rig) -> None:
    rig.settings["pendingSeconds"] = 1
    rig.nodes.add_node("node-a", slices=80)
    rig.nodes.starve("node-a")
    rig.operate()
    rig.create("chat")
    rig.until("chat", "Ready", "False", "Unschedulable")
    rig.nodes.add_node("node-b")
    assert rig.until_ready("chat", epoch=2)["node"] == "node-b"


def test_a_container_that_cannot_start_gives_its_place_to_others_and_is_tried_again(
    rig: Rig,
) -> None:
    rig.settings["pendingSeconds"] = 1
    rig.nodes.add_node("node-a", slices=10)
    rig.nodes.of("broken").waiting = 'CreateContainerConfigError: secret "key" not found'
    rig.operate()
    rig.create("broken", resources={"slices": 8})
    rig.until("broken", "Placed", "False", "CreateContainerConfigError")
    rig.create("chat", resources={"slices": 8})
    rig.until_ready("chat")
    assert rig.status("broken")["failures"] >= 1
    rig.nodes.of("broken").waiting = ""
    rig.delete("chat")
    wait_until(
        lambda: rig.condition("broken", "Ready").get("status") == "True",
        what="it serves once nothing keeps it",
        instead=lambda: rig.condition("broken", "Ready"),
    )


def test_a_session_without_its_claim_names_it_and_is_deleted_without_a_purge(rig: Rig) -> None:
    rig.nodes.add_node("node-a")
    text = 'persistentvolumeclaim "sojourn-store" not found. not found'
    rig.nodes.of("chat").unschedulable = text
    rig.operate()
    rig.create("chat")
    ready = rig.until("chat", "Ready", "False", "ClaimNotFound")
    assert (
        "PersistentVolumeClaim sojourn-store is not in namespace team; create it"
        in (ready["message"])
    )
    assert rig.condition("chat", "Placed")["status"] == "False"
    rig.delete("chat")
    wait_until(lambda: rig.session("chat") is None, what="the session is gone", seconds=20.0)
    assert rig.nodes.purged == []
    assert rig.pods("chat") == []
    assert [text for reason, text, _ in rig.events("chat") if reason == "ContextNotDeleted"] == []


def test_an_unknown_model_is_named_and_the_session_starts_once_it_is_there(rig: Rig) -> None:
    rig.nodes.add_node("node-a")
    rig.operate()
    rig.create("chat", model="other")
    ready = rig.until("chat", "Ready", "False", "UnknownModel")
    assert "LLMModel other" in ready["message"]
    assert [n for reason, _, n in rig.events("chat") if reason == "Rejected"] == [1]
    create_model(rig, "other")
    rig.until_ready("chat")


def test_a_service_of_someone_else_is_not_taken_over(rig: Rig) -> None:
    rig.nodes.add_node("node-a")
    rig.core.create_namespaced_service(
        NAMESPACE, {"metadata": {"name": "chat"}, "spec": {"ports": [{"port": 80}]}}
    )
    rig.operate()
    rig.create("chat")
    ready = rig.until("chat", "Ready", "False", "ServiceNameTaken")
    assert "rename" in ready["message"]


def set_quota(rig: Rig, services: int, *, used: int) -> None:
    """Of the namespace's Services; no controller counts them here, only the API server."""
    hard = {"services": str(services)}
    rig.core.patch_namespaced_resource_quota("few", NAMESPACE, {"spec": {"hard": hard}})
    status = {"status": {"hard": hard, "used": {"services": str(used)}}}
    rig.core.patch_namespaced_resource_quota_status("few", NAMESPACE, status)


def test_a_refused_service_is_told_keeps_no_slices_and_is_tried_again(rig: Rig) -> None:
    rig.nodes.add_node("node-a")
    quota = {"metadata": {"name": "few"}, "spec": {"hard": {"services": "1"}}}
    rig.core.create_namespaced_resource_quota(NAMESPACE, quota)
    try:
        set_quota(rig, 1, used=0)
        rig.operate()
        rig.create("first", **BIG)
        rig.until_ready("first")
        rig.create("second", resources={"slices": 20, "share": 100})
        ready = rig.until("second", "Ready", "False", "PodRefused")
        assert "exceeded quota" in ready["message"]
        assert "change what the message names: a quota" in ready["message"]
        assert rig.condition("second", "Placed")["status"] == "False"
        set_quota(rig, 5, used=1)
        wait_until(
            lambda: rig.condition("second", "Ready").get("status") == "True",
            what="it serves once the quota is raised",
            instead=lambda: rig.condition("second", "Ready"),
        )
    finally:
        rig.core.delete_namespaced_resource_quota("few", NAMESPACE)


def test_a_service_that_somebody_deleted_is_back_while_its_session_serves(rig: Rig) -> None:
    rig.settings["relistSeconds"] = 1
    rig.nodes.add_node("node-a")
    rig.operate()
    rig.create("chat")
    rig.until_ready("chat")
    first = rig.core.read_namespaced_service("chat", NAMESPACE)
    rig.core.delete_namespaced_service("chat", NAMESPACE)

    def services() -> list[str]:
        found = rig.core.list_namespaced_service(NAMESPACE).items
        return [one.metadata.uid for one in found if one.metadata.name == "chat"]

    (uid,) = wait_until(services, what="the Service is back")
    assert uid != first.metadata.uid
    told = wait_until(
        lambda: [count for reason, _, count in rig.events("chat") if reason == "ServiceRestored"],
        what="it is told",
    )
    assert told == [1]
    assert rig.status("chat")["epoch"] == 1
    assert rig.condition("chat", "Ready")["status"] == "True"


def test_a_forbidden_tier_is_refused_with_its_reason(rig: Rig) -> None:
    rig.nodes.add_node("node-a")
    tenant = {
        "apiVersion": names.API_VERSION,
        "kind": "Tenant",
        "metadata": {"name": "acme"},
        "spec": {"namespaces": [NAMESPACE], "tiers": ["silver"]},
    }
    rig.custom.create_cluster_custom_object(names.GROUP, names.VERSION, "tenants", tenant)
    rig.operate()
    rig.create("golden", tier="gold")
    rig.until("golden", "Ready", "False", "TierForbidden")
    assert [n for reason, _, n in rig.events("golden") if reason == "Rejected"] == [1]
    rig.create("chat")
    rig.until_ready("chat")
    group = (names.GROUP, names.VERSION, "tenants", "acme")

    def used() -> bool:
        status = rig.custom.get_cluster_custom_object(*group).get("status", {})
        return bool(status.get("shareUsed") == 100 and status.get("sessions") == 1)

    wait_until(used, what="the tenant's figures")


def test_a_node_that_is_about_to_go_is_left_before_it_goes(rig: Rig) -> None:
    """As the cluster autoscaler announces it."""
    rig.nodes.add_node("node-a")
    rig.operate()
    rig.create("chat", tier="gold")
    rig.until_ready("chat")
    rig.nodes.add_node("node-b")
    taint = {"key": "ToBeDeletedByClusterAutoscaler", "effect": "NoSchedule"}
    rig.core.patch_node("node-a", {"spec": {"taints": [taint]}})
    status = rig.until_ready("chat", epoch=2)
    assert status["node"] == "node-b"
    assert status["snapshot"]["epoch"] == 1
