"""What a runtime reports as wrong becomes a condition, one event, no crash loop, and no loss.

The whole chain of the pure side, for each reason that the runtime has: termination message, status,
notes, and when the next start is allowed.
"""

import dataclasses
import json

import pytest
from sojourn_api.names import CONTEXT_SAVED, PAUSED, PLACED, READY
from sojourn_operator.act.status import of
from sojourn_operator.session import ending, pacing
from sojourn_runtime.context.errors import ContextError
from sojourn_runtime.context.transfer import TargetInUse
from sojourn_runtime.hooks import ArbiterUnavailable
from sojourn_runtime.model.errors import ModelError

from tests.unit.pretend_session import Pretend

FINAL = (
    "ModelNotFound",
    "WeightsTruncated",
    "UnknownWeightsFormat",
    "WeightsDigestMismatch",
    "UnsupportedModel",
    "ModelMismatch",
    "ContextTooLong",
    "SnapshotCorrupt",
    "SnapshotOfOtherModel",
    "StaleEpoch",
    "InvalidConfiguration",
)
"""Only a change of the session or of its model can mend these."""
PASSING = (
    "StoreUnwritable",
    "StoreFull",
    "SnapshotMissing",
    "ArbiterUnavailable",
    "PauseCutOff",
    "ShardLost",
    "Crashed",
)
"""Tried again, ever more seldom."""
MOST_SECONDS = 300.0

every_reason = pytest.mark.parametrize("reason", [*FINAL, *PASSING])


def words(reason: str, *, start: int = 1) -> str:
    """A termination message; it names a file of this start, as many do."""
    message = f"file:///store/journal-{start}-1.log: {reason}; look there"
    said = {"v": 1, "reason": reason, "message": message, "retry": reason in PASSING}
    return json.dumps(said)


def fails(found: Pretend, reason: str) -> None:
    """One start that ends before it answers anybody."""
    found.place()
    epoch = found.status.epoch
    name = f"chat-{epoch}"
    running = dataclasses.replace(
        found.pods[name], phase="Running", node="node-a", started=True, ready=False
    )
    found.pods[name] = running
    found.settle()
    found.crash_pods(words(reason, start=epoch))


def with_saved_context() -> Pretend:
    found = Pretend()
    found.place()
    found.run_pods()
    found.pause()
    found.end_pods()
    return found


def test_every_reason_of_the_runtime_is_in_the_table_with_its_retry() -> None:
    known: list[type[ModelError | ContextError | ArbiterUnavailable]] = [
        ModelError,
        *ModelError.__subclasses__(),
    ]
    known += [ContextError, *ContextError.__subclasses__(), ArbiterUnavailable]
    for one in (one for one in known if one is not TargetInUse):  # of a tool, not of a session
        assert one.reason in (PASSING if one.retry else FINAL)


@every_reason
def test_the_condition_has_the_reason_the_message_and_what_happens_next(reason: str) -> None:
    found = Pretend()
    fails(found, reason)
    assert found.says(READY) == ("False", reason)
    assert found.says(PLACED) == ("False", reason)
    assert found.says(PAUSED) == ("False", "NotStarted")
    message = of(found.status, READY).message
    assert "journal-1-1.log" in message
    assert "look there" in message
    then = "tries again in 5 s" if reason in PASSING else "until the session or its model"
    assert then in message


@every_reason
def test_one_event_tells_it_however_often_it_is_looked_at(reason: str) -> None:
    found = Pretend()
    fails(found, reason)
    found.now += 60
    found.settle()
    told = [event for event in found.events if event[0] == "Failed"]
    assert [message.split(":")[0] for _, message, _ in told] == [reason]


@pytest.mark.parametrize("reason", PASSING)
def test_the_same_failure_of_later_starts_raises_the_count_of_one_event(reason: str) -> None:
    """Though the message names a file with the number of the start."""
    found = Pretend()
    for _ in range(4):
        fails(found, reason)
    assert len({name for name, _ in found.told}) == 1
    assert {once for _, once in found.told} == {"1", "2", "3", "4"}


@pytest.mark.parametrize("reason", FINAL)
def test_what_only_a_change_can_mend_is_not_started_again(reason: str) -> None:
    found = Pretend()
    fails(found, reason)
    found.now += 10 * MOST_SECONDS
    found.settle()
    assert found.created == ["chat-1"]
    failure = found.status.failure
    assert failure is not None
    model = failure.model_generation
    assert pacing.blocked_by_failure(found.session, model_generation=model)
    assert not pacing.blocked_by_failure(found.session, model_generation=model + 1)
    meta = dataclasses.replace(found.session.meta, generation=2)
    changed = dataclasses.replace(found.session, meta=meta)
    assert not pacing.blocked_by_failure(changed, model_generation=model)


@pytest.mark.parametrize("reason", PASSING)
def test_what_may_pass_is_tried_ever_more_seldom(reason: str) -> None:
    found = Pretend()
    waits = []
    for _ in range(9):
        fails(found, reason)
        waits.append(pacing.not_before(found.session) - found.now)
    assert waits[:4] == [5.0, 10.0, 20.0, 40.0]
    assert waits[-1] == MOST_SECONDS


@every_reason
def test_the_saved_context_is_left_and_named(reason: str) -> None:
    found = with_saved_context()
    saved, recorded, told = found.status.snapshot, dict(found.snapshots), set(found.told)
    assert saved is not None
    fails(found, reason)
    assert found.status.snapshot == saved
    assert found.snapshots == recorded
    assert not found.purged
    assert saved.uri in of(found.status, CONTEXT_SAVED).message
    kept = found.says(CONTEXT_SAVED)
    assert kept == (("False", reason) if reason in ending.GONE else ("True", "Saved"))
    assert len(found.told - told) == 1


def test_a_crash_without_a_report_says_when_it_is_tried_again() -> None:
    found = Pretend()
    found.place()
    found.run_pods()
    found.crash_pods("", code=139)
    message = of(found.status, READY).message
    assert "exit code 139" in message
    assert "tries again in 5 s" in message
    assert found.says(CONTEXT_SAVED) == ("Unknown", "NoReport")
