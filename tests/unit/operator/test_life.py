"""The state machine of a session: what each look says and asks for."""

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sojourn_api.names import CONTEXT_SAVED, PAUSED, PLACED, READY, TARGET_MET
from sojourn_api.objects import Offender, SnapshotPolicy
from sojourn_operator.act.status import Verdict, of
from sojourn_operator.seen.pod import Terminated
from sojourn_operator.session import ending, life, orders, pacing
from sojourn_operator.session.scene import Runtime, Scene

from tests.unit.pretend_session import TIER, KilledError, Pretend, place, pod, report, session


def serving() -> Pretend:
    found = Pretend()
    found.place()
    found.run_pods()
    return found


def story(cuts: list[int] | None = None) -> Pretend:
    """Placed, paused for gold, placed again, evicted, placed, deleted."""
    found = Pretend(cuts=cuts)
    acts = (
        found.place,
        found.run_pods,
        found.pause,
        found.end_pods,
        found.place,
        found.run_pods,
        lambda: evict(found),
        found.end_pods,
        found.place,
        found.run_pods,
        found.delete,
        found.end_pods,
    )
    for act in acts:
        again(act)
    return found


def again(act: Callable[[], None]) -> None:
    """Whoever acts on the session is killed as well, and tries again."""
    for _ in range(20):
        try:
            act()
        except KilledError:
            continue
        return


def evict(found: Pretend) -> None:
    for name, one in found.pods.items():
        if one.phase == "Running" and not one.deleting:
            found.pods[name] = dataclasses.replace(
                one, disruption="EvictionByEvictionAPI", deleted_at=found.now, grace=30
            )
    found.settle()


def end_of(found: Pretend) -> object:
    return found.gone, found.pods, set(found.snapshots), found.events, found.created, found.purged


@settings(deadline=None)
@given(cuts=st.lists(st.integers(1, 60), max_size=8, unique=True))
def test_a_kill_at_any_write_ends_in_the_same_state(cuts: list[int]) -> None:
    assert end_of(story(cuts)) == end_of(story())


def test_the_whole_story_leaves_what_it_should() -> None:
    found = story()
    assert found.gone
    assert found.created == ["chat-1", "chat-2", "chat-3"]
    assert set(found.snapshots) == {"chat-1", "chat-2", "chat-3"}
    assert found.purged


def test_a_start_goes_from_placing_to_serving() -> None:
    found = Pretend()
    found.place()
    assert found.says(READY) == ("False", "Starting")
    found.run_pods()
    assert found.says(READY) == ("True", "Serving")
    assert found.says(PLACED) == ("True", "Placed")
    assert found.says(PAUSED) == ("False", "Running")
    assert found.status.started_at


KEPT = [
    ({"node": "node-a", "waiting": 'CreateContainerConfigError: secret "key" not found'}, True),
    ({"node": "node-a", "waiting": "ImagePullBackOff: Back-off pulling image"}, True),
    ({"node": "node-a", "waiting": "WordToCome"}, True),
    ({"node": "node-a", "unprepared": True}, False),
    ({"unschedulable": "0/1 nodes are available: 1 Insufficient cpu."}, False),
]


@pytest.mark.parametrize(("state", "early"), KEPT)
def test_a_start_that_is_kept_from_running_for_too_long_gives_up_its_place(
    state: dict[str, Any], *, early: bool
) -> None:
    found = Pretend()
    found.place()
    found.pods["chat-1"] = dataclasses.replace(found.pods["chat-1"], **state)
    found.settle()
    assert found.says(PLACED)[0] == "True"
    assert (found.says(READY)[1] != "Starting") == early
    assert found.look().deadline == found.now + 60.0
    found.now += 60.0
    found.settle()
    reason = found.says(READY)[1]
    assert found.says(PLACED) == ("False", reason)
    assert reason != "Starting"
    assert "tries again in 5 s" in of(found.status, READY).message
    assert found.status.failure is not None
    assert (found.status.failures, found.status.failure.retry) == (1, True)
    found.end_pods()
    assert found.pods == {}
    assert len({name for name, _ in found.told}) == 1, "the wait and its end are one event"
    found.place()
    assert found.created == ["chat-1", "chat-2"]


def test_a_slow_image_is_no_failed_start() -> None:
    """While an image is pulled, the kubelet says nothing but ContainerCreating."""
    found = Pretend()
    found.place()
    found.pods["chat-1"] = dataclasses.replace(found.pods["chat-1"], node="node-a")
    found.now += 600.0
    found.settle()
    assert found.says(PLACED)[0] == "True"
    found.run_pods()
    assert found.says(READY) == ("True", "Serving")


def test_a_start_that_no_time_mends_is_tried_less_often_each_time_and_at_once_when_changed() -> (
    None
):
    found = Pretend()
    for failures in range(1, 4):
        found.place()
        name = f"chat-{failures}"
        found.pods[name] = dataclasses.replace(
            found.pods[name], node="node-a", waiting="InvalidImageName: ?", created=found.now
        )
        found.now += 60.0
        found.settle()
        found.end_pods()
        assert pacing.not_before(found.session) == found.now + 5.0 * 2 ** (failures - 1)
        assert pacing.avoid(found.session, now=found.now) == ()
    meta = dataclasses.replace(found.session.meta, generation=2)
    assert pacing.not_before(dataclasses.replace(found.session, meta=meta)) == 0.0


def test_a_missing_claim_is_told_at_once_and_no_node_is_left_out_for_it() -> None:
    found = Pretend()
    for failures in (1, 2):
        found.place()
        name = f"chat-{failures}"
        text = 'persistentvolumeclaim "sojourn-store" not found. not found'
        found.pods[name] = dataclasses.replace(found.pods[name], unschedulable=text)
        found.settle()
        assert found.says(PLACED) == ("False", "ClaimNotFound")
        assert of(found.status, READY).message == (
            "PersistentVolumeClaim sojourn-store is not in namespace team; create it "
            f"(examples/namespace.yaml); tries again in {5 * failures} s "
            f"(failure {failures} in a row)"
        )
        assert found.pods == {}
        assert pacing.avoid(found.session, now=found.now) == ()
    assert len({name for name, _ in found.told}) == 1


def test_an_unbound_claim_has_time_and_is_no_fault_of_its_node() -> None:
    found = Pretend()
    found.place()
    found.pods["chat-1"] = dataclasses.replace(
        found.pods["chat-1"],
        unschedulable="pod has unbound immediate PersistentVolumeClaims",
        claims=("sojourn-store",),
    )
    found.settle()
    assert found.says(READY) == ("False", "ClaimNotBound")
    assert found.says(PLACED)[0] == "True"
    found.now += 60.0
    found.settle()
    assert found.says(PLACED) == ("False", "ClaimNotBound")
    assert pacing.avoid(found.session, now=found.now) == ()


def test_a_node_without_the_image_is_left_out_for_a_while() -> None:
    found = Pretend()
    found.place()
    found.pods["chat-1"] = dataclasses.replace(
        found.pods["chat-1"], node="node-a", waiting="ErrImageNeverPull: runtime:9"
    )
    found.now += 60.0
    found.settle()
    assert pacing.avoid(found.session, now=found.now) == ("node-a",)


def test_a_pause_tells_why_before_and_after() -> None:
    found = serving()
    found.pause()
    assert found.says(PAUSED) == ("False", "PreemptedByGold")
    assert found.says(READY) == ("False", "Pausing")
    found.end_pods()
    assert found.says(PAUSED) == ("True", "PreemptedByGold")
    assert found.says(CONTEXT_SAVED) == ("True", "Saved")
    assert found.status.snapshot is not None
    assert found.status.snapshot.name == "chat-1"
    assert found.pods == {}


OFFENCE = Offender(
    "team", "chat-1", "uid", "OverMemory", "gpu-0: 1024 MiB more than granted", stop=True
)


def test_an_offender_is_paused_with_its_context_and_comes_back_after_a_while() -> None:
    found = serving()
    found.now += 10 * ending.CALM_SECONDS
    found.offence = OFFENCE
    found.settle()
    assert found.says(PAUSED) == ("False", "OverMemory")
    assert of(found.status, PAUSED).message == OFFENCE.message
    found.offence = None  # the grant is over
    found.end_pods()
    assert found.says(PAUSED) == ("True", "OverMemory")
    assert found.says(CONTEXT_SAVED) == ("True", "Saved")
    assert of(found.status, PAUSED).message == OFFENCE.message
    assert (found.status.failures, found.status.failure is not None) == (1, True)
    assert pacing.not_before(found.session) == found.now + ending.BACK_OFF_SECONDS
    assert [told for told in found.events if "OverMemory" in told]


def test_an_offence_that_is_only_reported_pauses_nobody() -> None:
    found = serving()
    found.offence = dataclasses.replace(OFFENCE, stop=False)
    found.settle()
    assert found.says(READY) == ("True", "Serving")
    assert [told for told in found.events if "OverMemory" in told]


def test_another_pause_that_is_under_way_keeps_its_reason() -> None:
    found = serving()
    found.pause()
    found.offence = OFFENCE
    found.settle()
    assert found.says(PAUSED) == ("False", "PreemptedByGold")


def test_a_pod_that_stops_answering_is_not_ready() -> None:
    found = serving()
    found.pods["chat-1"] = dataclasses.replace(
        found.pods["chat-1"], ready=False, ready_message="readiness probe failed"
    )
    found.settle()
    assert found.says(READY) == ("False", "NotAnswering")
    assert "probe failed" in of(found.status, READY).message


def test_a_context_that_could_not_be_saved_is_no_clean_pause() -> None:
    found = serving()
    found.pause()
    words = report(1, reason="StoreFull", message="store: full; make room", snapshot=None)
    found.end_pods(words, code=1)
    assert found.says(CONTEXT_SAVED) == ("False", "StoreFull")
    assert found.says(PAUSED)[0] == "False"
    assert found.status.failure is not None
    assert found.status.failure.retry


def test_a_pause_before_the_runtime_listens_keeps_what_was_saved_before() -> None:
    """SIGTERM meets a process without its handler: the kubelet reports 137 and no message."""
    found = serving()
    found.pause()
    found.end_pods()
    found.place()
    found.pods["chat-2"] = dataclasses.replace(found.pods["chat-2"], phase="Running", node="node-a")
    found.pause(by="", reason="Suspended")
    killed = Terminated(137, "ContainerStatusUnknown", "")
    found.pods["chat-2"] = dataclasses.replace(
        found.pods["chat-2"], phase="Failed", terminated=killed
    )
    found.settle()
    assert found.says(PAUSED) == ("True", "Suspended")
    assert found.says(CONTEXT_SAVED) == ("True", "Saved")
    assert found.status.failure is None


def test_a_start_that_fails_before_it_answers_keeps_what_was_saved_before() -> None:
    """Killed for want of memory while it restores, say: nothing of it was ever in memory alone."""
    found = serving()
    found.pause()
    found.end_pods()
    found.place()
    found.pods["chat-2"] = dataclasses.replace(
        found.pods["chat-2"], phase="Running", node="node-a", started=True
    )
    found.settle()
    found.crash_pods()
    assert found.says(READY) == ("False", "Crashed")
    assert found.says(CONTEXT_SAVED) == ("True", "Saved")


def failed_start(reason: str, *, retry: bool = True) -> Pretend:
    """Paused well, placed again, and that start ends with a report before it answers."""
    found = serving()
    found.pause()
    found.end_pods()
    found.place()
    fail_start(found, reason, retry=retry)
    return found


def fail_start(found: Pretend, reason: str, *, retry: bool = True) -> None:
    name = f"chat-{found.status.epoch}"
    found.pods[name] = dataclasses.replace(
        found.pods[name], phase="Running", node="node-a", started=True
    )
    found.settle()
    found.crash_pods(report(found.status.epoch, reason=reason, retry=retry, snapshot=None))


def test_a_failed_start_leaves_the_saved_context_saved() -> None:
    found = failed_start("ModelNotFound", retry=False)
    assert found.says(READY) == ("False", "ModelNotFound")
    assert found.says(CONTEXT_SAVED) == ("True", "Saved")


@pytest.mark.parametrize("reason", ["SnapshotMissing", "SnapshotCorrupt"])
def test_a_context_that_is_gone_is_not_called_saved(reason: str) -> None:
    found = failed_start(reason)
    assert found.says(CONTEXT_SAVED) == ("False", reason)
    assert found.status.snapshot is not None, "the next start shall expect it, too"
    found.place()
    assert found.says(CONTEXT_SAVED) == ("False", reason), "this start has not found it yet"
    fail_start(found, "Crashed")
    assert found.says(CONTEXT_SAVED) == ("False", reason), "another failure says nothing of it"
    found.place()
    found.pause(by="", reason="Suspended")
    found.end_pods()
    assert found.says(PAUSED) == ("True", "Suspended")
    assert found.says(CONTEXT_SAVED) == ("False", reason)


def test_a_context_that_was_found_again_is_saved() -> None:
    found = failed_start("SnapshotMissing")
    found.place()
    found.run_pods()
    assert found.says(CONTEXT_SAVED) == ("False", "InMemory")
    found.pause()
    found.end_pods()
    assert found.says(CONTEXT_SAVED) == ("True", "Saved")


def test_a_context_seen_by_a_start_that_fails_otherwise_is_saved() -> None:
    found = failed_start("SnapshotMissing")
    found.place()
    name = f"chat-{found.status.epoch}"
    found.pods[name] = dataclasses.replace(
        found.pods[name], phase="Running", node="node-a", started=True
    )
    found.settle()
    found.crash_pods(report(1, reason="SnapshotOfOtherModel", retry=False))
    assert found.says(CONTEXT_SAVED) == ("True", "Saved")


def test_a_start_says_nothing_of_memory_before_it_answers() -> None:
    found = Pretend()
    found.place()
    assert found.says(CONTEXT_SAVED) == ("False", "NotStarted")
    found.pods["chat-1"] = dataclasses.replace(found.pods["chat-1"], node="node-a", started=True)
    found.settle()
    assert found.says(CONTEXT_SAVED) == ("False", "NothingToSave")
    found.run_pods()
    assert found.says(CONTEXT_SAVED) == ("False", "InMemory")
    found.pause()
    found.end_pods()
    found.place()
    assert found.says(CONTEXT_SAVED) == ("True", "Saved")


def test_a_pause_that_is_cut_off_tells_what_was_not_saved() -> None:
    """The runtime wrote its last word before the kubelet's SIGKILL."""
    found = serving()
    found.pause()
    text = "the pause has waited for the store for 27 s; tokens not saved: 40"
    words = report(1, reason="PauseCutOff", message=text, retry=True)
    found.end_pods(words, code=137)
    assert found.says(READY) == ("False", "PauseCutOff")
    assert found.says(CONTEXT_SAVED) == ("False", "PauseCutOff")
    assert "last saved: 100 tokens" in of(found.status, CONTEXT_SAVED).message
    assert text in of(found.status, READY).message


def test_a_runtime_that_leaves_polls_unanswered_is_not_ready_whatever_its_kubelet_said_last() -> (
    None
):
    found = serving()
    before = dict(found.pods)
    found.runtime = Runtime(silent="3 polls in 15 s")
    found.settle()
    assert found.says(READY) == ("False", "NotAnswering")
    message = of(found.status, READY).message
    assert "no answer to 3 polls in 15 s" in message
    assert "node node-a is ready" in message
    assert found.pods == before
    assert found.says(PLACED)[0] == "True"
    assert found.says(TARGET_MET) == ("Unknown", "NotAnswering")
    found.runtime = Runtime()
    found.settle()
    assert found.says(READY) == ("True", "Serving")


@pytest.mark.parametrize("ready", [True, False])
def test_an_engine_that_stands_still_is_not_ready_and_says_for_what(*, ready: bool) -> None:
    found = serving()
    found.pods["chat-1"] = dataclasses.replace(found.pods["chat-1"], ready=ready)
    found.runtime = Runtime(stalled="the store")
    found.settle()
    assert found.says(READY) == ("False", "EngineStalled")
    assert "waits for the store" in of(found.status, READY).message


def test_a_spoilt_part_of_the_context_is_told_once_per_start() -> None:
    found = serving()
    before = set(found.told)
    for count in (1, 2):
        found.runtime = Runtime(damage=f"blocks computed again: {count}")
        found.settle()
    damaged = [event for event in found.events if event[0] == "ContextDamaged"]
    assert len(damaged) == 2
    assert len(found.told - before) == 1, "one name, one start: one event"


def test_damage_that_no_poll_saw_is_told_at_the_pause() -> None:
    found = serving()
    found.pause()
    found.end_pods(report(1, damage="blocks computed again: 2"))
    assert ("ContextDamaged", "blocks computed again: 2", "1") in found.events
    assert found.says(CONTEXT_SAVED) == ("True", "Saved")


def test_a_failed_pod_is_kept_for_its_logs_until_the_next_start() -> None:
    found = serving()
    found.crash_pods()
    assert found.says(READY) == ("False", "Crashed")
    assert list(found.pods) == ["chat-1"]
    assert found.pods["chat-1"].finalizers == ()
    found.place()
    assert "chat-1" not in found.pods


def test_a_failed_pod_goes_when_the_session_shall_rest() -> None:
    found = serving()
    found.crash_pods()
    spec = dataclasses.replace(found.session.spec, suspend=True)
    found.session = dataclasses.replace(found.session, spec=spec)
    found.settle()
    assert found.pods == {}


def test_a_pod_that_vanished_is_told_as_lost_and_not_started_again_under_its_number() -> None:
    found = serving()
    del found.pods["chat-1"]
    found.settle()
    assert found.says(READY) == ("False", "PodLost")
    found.place()
    assert found.created == ["chat-1", "chat-2"]


def test_a_lost_node_frees_the_session_and_its_late_pod_still_tells_what_it_saved() -> None:
    found = serving()
    found.lost = frozenset({"node-a"})
    found.settle()
    assert found.says(PLACED) == ("False", "NodeLost")
    assert found.pods["chat-1"].deleting
    found.lost = frozenset()
    found.end_pods()
    assert found.says(CONTEXT_SAVED) == ("True", "Saved")
    assert found.pods == {}


def test_a_deleted_session_on_a_lost_node_does_not_wait_for_it() -> None:
    found = serving()
    found.lost = frozenset({"node-a"})
    found.delete()
    assert found.gone


def test_retained_context_is_not_purged() -> None:
    found = Pretend(session(snapshot_policy=SnapshotPolicy.RETAIN))
    found.place()
    found.run_pods()
    found.delete()
    found.end_pods()
    assert found.gone
    assert not found.purged


def test_a_context_in_a_bucket_is_said_to_be_left() -> None:
    found = Pretend(purges=False)
    found.place()
    found.run_pods()
    found.delete()
    found.end_pods()
    assert found.gone
    assert not found.purged
    (told,) = [text for reason, text, _ in found.events if reason == "ContextNotDeleted"]
    assert "team/chat of the store is left" in told
    assert "a session made anew under the name clears it" in told


def test_a_session_that_never_ran_has_nothing_to_purge() -> None:
    found = Pretend()
    found.delete()
    assert found.gone
    assert not found.purged


@pytest.mark.parametrize("purges", [True, False])
def test_a_session_of_which_no_container_ran_is_gone_at_once_without_a_purge(
    *, purges: bool
) -> None:
    found = Pretend(purges=purges)
    for epoch in (1, 2):
        found.place()
        name = f"chat-{epoch}"
        found.pods[name] = dataclasses.replace(
            found.pods[name], node="node-a", waiting="ErrImagePull: no such tag"
        )
        found.now += 60.0
        found.settle()
        found.end_pods()
    assert found.says(CONTEXT_SAVED) == ("False", "NotStarted")
    found.place()
    found.delete()
    found.end_pods()
    assert found.gone
    assert not found.purged
    assert [reason for reason, _, _ in found.events if reason == "ContextNotDeleted"] == []


@pytest.mark.parametrize("waiting", ["", "CreateContainerError: no such command"])
def test_whatever_an_earlier_start_may_have_left_is_purged(waiting: str) -> None:
    """Though it never answered, and a later start did not come so far."""
    found = Pretend()
    found.place()
    found.pods["chat-1"] = dataclasses.replace(
        found.pods["chat-1"], node="node-a", started=not waiting, waiting=waiting
    )
    found.settle()
    found.now += 60.0
    found.pods["chat-1"] = dataclasses.replace(found.pods["chat-1"], phase="Failed")
    found.settle()
    found.place()
    found.delete()
    assert found.purged


def test_what_was_retained_under_the_name_is_purged_with_a_session_that_never_ran() -> None:
    found = Pretend()
    placed = orders.placed(found.session, place(), message="", now=found.now, after=4)
    found.session = dataclasses.replace(found.session, status=placed)
    found.delete()
    assert found.purged


def test_a_deleted_session_says_what_it_waits_for() -> None:
    found = serving()
    found.delete()
    assert found.says(READY) == ("False", "Deleting")
    assert "waits for the end of its pod chat-1" in of(found.status, READY).message
    found.end_pods()
    assert found.says(READY) == ("False", "Deleting")
    ready = of(found.status, READY).message
    assert "the pod chat-purge, which removes its saved context" in ready
    assert "comes back" not in ready


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ({"unschedulable": "0/1 nodes fit"}, "did not start in 120 s: not scheduled to any node"),
        ({"node": "n", "waiting": "ErrImagePull: x"}, "did not start in 120 s: its container"),
        ({"phase": "Running", "node": "n", "started": True}, "did not end in 120 s"),
        ({"phase": "Failed", "reason": "Evicted"}, "ended as Failed Evicted"),
    ],
)
def test_a_purge_that_failed_says_how(state: dict[str, Any], told: str) -> None:
    found = serving()
    meta = dataclasses.replace(found.session.meta, deleting=True)
    purge = pod(0, name="chat-purge", created=found.now - 120.0, finalizers=(), **state)
    gone = dataclasses.replace(found.session, meta=meta)
    gone = dataclasses.replace(gone, status=paused(found).status)
    step = life.look(Scene(gone, now=found.now, purges=True, purge=purge))
    assert step.finish
    (note,) = step.notes
    assert note.reason == "ContextNotDeleted"
    assert f"the pod chat-purge {told}" in note.message


def paused(found: Pretend) -> Pretend:
    found.pause()
    found.end_pods()
    return found


def test_failures_are_forgotten_after_a_calm_minute() -> None:
    found = serving()
    found.crash_pods()
    found.place()
    found.run_pods()
    assert found.status.failures == 1
    step = found.look()
    assert step.deadline == found.now + ending.CALM_SECONDS
    found.now += ending.CALM_SECONDS
    found.settle()
    assert found.status.failures == 0
    assert found.status.failure is None


def test_a_session_that_is_ended_again_and_again_waits_longer_each_time() -> None:
    """By kubelets under pressure, say: without a back-off it would come and go for ever."""
    found = serving()
    for number in range(1, 4):
        evict(found)
        found.end_pods()
        assert found.says(PAUSED) == ("True", "Evicted")
        assert found.says(CONTEXT_SAVED) == ("True", "Saved")
        assert found.status.failures == number
        found.place()
        found.run_pods()


def test_an_eviction_after_a_calm_minute_is_no_failure() -> None:
    found = serving()
    found.now += ending.CALM_SECONDS
    evict(found)
    found.end_pods()
    assert found.status.failures == 0


@pytest.mark.parametrize(
    ("conversations", "told"),
    [(0, "100 tokens of context, 5 kB"), (2, "100 tokens of context in 2 conversations, 5 kB")],
)
def test_what_was_saved_is_told_in_figures_that_fit(conversations: int, told: str) -> None:
    """Requests that belong to no stored conversation have context too."""
    found = serving()
    found.pause()
    said = json.loads(report(1))
    said["snapshot"]["conversations"] = conversations
    for name, one in found.pods.items():
        end = Terminated(exit_code=0, reason="Completed", message=json.dumps(said))
        found.pods[name] = dataclasses.replace(one, phase="Succeeded", terminated=end)
    found.settle()
    assert of(found.status, CONTEXT_SAVED).message == f"{told}, at file:///store/chat"


def test_what_the_runtime_is_doing_shows_while_it_starts() -> None:
    found = Pretend()
    found.place()
    scene = Scene(
        found.session,
        now=found.now,
        pods=(pod(1, phase="Running", node="node-a"),),
        runtime=Runtime(phase="Restoring"),
    )
    assert of(life.look(scene).status, READY).message.startswith("restoring on node-a; ")


@pytest.mark.parametrize(
    ("runtime", "expected"),
    [
        (None, ("Unknown", "NoTraffic")),
        (Runtime(target=Verdict(TARGET_MET, "False", "Missed", "slow")), ("False", "Missed")),
    ],
)
def test_target_met_is_what_the_polls_settled_on(
    runtime: Runtime | None, expected: tuple[str, str]
) -> None:
    found = serving()
    pods = tuple(found.pods.values())
    scene = Scene(found.session, now=found.now, pods=pods, tier=TIER, runtime=runtime)
    met = of(life.look(scene).status, TARGET_MET)
    assert (met.status, met.reason) == expected


def test_an_inexact_resume_is_never_silent() -> None:
    found = serving()
    runtime = Runtime(exact=False, exact_reason="recomputed by another kernel class")
    scene = Scene(found.session, now=found.now, pods=tuple(found.pods.values()), runtime=runtime)
    status = life.look(scene).status
    assert status.exact is False
    assert "another kernel class" in of(status, READY).message


def test_an_inexact_resume_is_told_once() -> None:
    found = serving()
    why = "saved by kernel class a, computed again by b"
    runtime = Runtime(exact=False, exact_reason=why)
    told = []
    for now in (found.now, found.now + ending.CALM_SECONDS + 1):
        scene = Scene(found.session, now=now, pods=tuple(found.pods.values()), runtime=runtime)
        told += [(note.name, note.once_per, note.message) for note in life.look(scene).notes]
    assert len(set(told)) == 1
    assert told[0][2] == why
