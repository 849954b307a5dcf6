"""What a session's status and events say when the plan lets it wait, places or stops it."""

import dataclasses

import pytest
from sojourn_operator.plan import actions
from sojourn_operator.session import orders
from sojourn_operator.session.note import Note

from tests.unit.pretend_session import session


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
