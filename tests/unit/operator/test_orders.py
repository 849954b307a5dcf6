"""What a session's status and events say when the plan lets it wait, places or stops it."""

import dataclasses
import re
from pathlib import Path

import pytest
from sojourn_api.names import PLACED, READY, SESSION_CONDITIONS, TARGET_MET
from sojourn_api.objects import SessionStatus
from sojourn_operator.act.status import PENDING, of
from sojourn_operator.plan import actions
from sojourn_operator.session import orders
from sojourn_operator.session.note import Note
from sojourn_operator.session.remedies import REMEDIES

from tests.unit.pretend_session import Pretend, place, session


def waits(reason: str, message: str, *, generation: int = 1, epoch: int = 0) -> Note | None:
    found = session()
    meta = dataclasses.replace(found.meta, generation=generation)
    status = dataclasses.replace(found.status, epoch=epoch)
    found = dataclasses.replace(found, meta=meta, status=status)
    return orders.begins_to_wait(found, reason=reason, message=message)


def fact(note: Note | None) -> tuple[str, str]:
    """What the teller knows a fact by."""
    assert note is not None
    return note.name, note.once_per


@pytest.mark.parametrize("reason", [actions.NO_GPU, actions.QUOTA])
def test_what_only_a_change_ends_is_one_warning_with_its_remedy(reason: str) -> None:
    note = waits(reason, "needs 400 slices; the most is 79")
    assert note is not None
    assert (note.reason, note.warning) == ("Rejected", True)
    assert note.message.startswith(f"{reason}: needs 400 slices; the most is 79; ")
    assert len(note.message) > len(f"{reason}: needs 400 slices; the most is 79; ")
    assert fact(waits(reason, "needs 400 slices; the most is 81")) == fact(note)


def test_it_is_told_again_for_another_spec_or_start_and_for_another_reason() -> None:
    facts = {
        fact(waits(actions.NO_GPU, "none")),
        fact(waits(actions.NO_GPU, "none", generation=2)),
        fact(waits(actions.NO_GPU, "none", epoch=1)),
        fact(waits(actions.QUOTA, "none")),
    }
    assert len(facts) == 4


def test_waiting_for_room_is_no_warning_and_a_failed_start_has_had_its_event() -> None:
    note = waits(actions.NO_ROOM, "the most free is 3")
    assert note is not None
    assert (note.reason, note.warning) == ("WaitingForRoom", False)
    assert waits(actions.BACK_OFF, "tries again in 5 s") is None


NEW = session()


@pytest.mark.parametrize(
    "status",
    [
        orders.waiting(NEW, reason=actions.NO_GPU, message="none", now=0.0, system="ops"),
        orders.held_back(NEW, now=0.0),
        orders.placed(NEW, place("node-a"), message="", now=0.0),
    ],
    ids=["no GPU", "suspended from birth", "placed"],
)
def test_a_session_that_was_looked_at_has_no_condition_left_unjudged(status: SessionStatus) -> None:
    told = [of(status, kind) for kind in SESSION_CONDITIONS]
    assert PENDING not in [one.reason for one in told]
    target = of(status, TARGET_MET)
    assert (target.reason, target.message) == ("NoTraffic", "the session does not run")


@pytest.mark.parametrize("paused", [False, True])
def test_an_endpoint_that_somebody_wrote_is_mended_and_not_repeated(*, paused: bool) -> None:
    found = Pretend()
    found.place()
    found.run_pods()
    if paused:
        found.pause()
        found.end_pods()
    own = found.status.endpoint
    evil = dataclasses.replace(found.status, endpoint="http://evil")
    found.session = dataclasses.replace(found.session, status=evil)
    found.settle()
    assert own == "http://chat.team.svc:8000/v1"
    assert found.status.endpoint == own
    assert "evil" not in of(found.status, READY).message


def test_what_is_yet_to_be_saved_is_in_the_event_alone_and_the_same_fact_with_other_numbers() -> (
    None
):
    pause = actions.Pause("team/chat", "team/golden", "Preempted", "for gold", "1 MB to be saved")
    note = orders.preempted(NEW, pause)
    assert (note.reason, note.message) == ("Preempted", "for gold; 1 MB to be saved")
    later = dataclasses.replace(pause, to_save="2 MB to be saved")
    assert fact(orders.preempted(NEW, later)) == fact(note)
    assert orders.preempted(NEW, dataclasses.replace(pause, to_save="")).message == "for gold"


@pytest.mark.parametrize("reason", sorted(REMEDIES))
def test_no_command_that_a_session_tells_has_a_blank_to_fill_in(reason: str) -> None:
    status = orders.waiting(NEW, reason=reason, message="what", now=0.0, system="ops")
    message = of(status, READY).message
    assert not re.search(r"NAME|[{}]", message)
    if "operator explain" in message:
        command = (
            "kubectl exec -n ops deploy/sojourn-operator -- sojourn-operator explain team/chat"
        )
        assert f"`{command}`" in message


@pytest.mark.parametrize("reason", [actions.NO_ROOM, actions.NODES_OUT])
def test_who_waits_for_room_is_told_how_to_see_why(reason: str) -> None:
    status = orders.waiting(NEW, reason=reason, message="what", now=0.0, system="ops")
    assert (of(status, READY).reason, of(status, PLACED).reason) == ("WaitingForRoom", reason)
    assert "sojourn-operator explain team/chat" in of(status, READY).message


def test_an_idle_session_says_the_command_that_wakes_it_with_its_own_name() -> None:
    found = Pretend()
    found.place()
    found.run_pods()
    found.pause(by="", reason="Idle")
    found.end_pods()
    assert "kubectl annotate llms -n team chat sojourn.dev/wake=" in of(found.status, READY).message


def test_the_chart_names_the_operator_as_the_hint_does() -> None:
    chart = (Path(__file__).parents[3] / "charts/sojourn/templates/operator.yaml").read_text()
    assert "kind: Deployment\nmetadata:\n  name: sojourn-operator\n" in chart
