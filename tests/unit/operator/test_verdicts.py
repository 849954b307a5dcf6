"""What models and snapshots say of themselves, by what sessions found."""

import dataclasses

import pytest
from sojourn_api.names import CONTEXT_SAVED, READY
from sojourn_api.objects import (
    Condition,
    Failure,
    Gpu,
    GpuNode,
    Model,
    ObjectMeta,
    Session,
    Snapshot,
    SnapshotRef,
)
from sojourn_api.weights import Numbers
from sojourn_operator import clock, reasons
from sojourn_operator.act import status
from sojourn_operator.act.status import Verdict
from sojourn_operator.seen.cache import Seen
from sojourn_operator.seen.world import World
from sojourn_operator.session.scene import Runtime
from sojourn_operator.verdicts import (
    OF_THE_FILE,
    model_verdict,
    snapshot_verdict,
    weights_by_model,
)

from tests.unit.pretend_session import pod, session

GIB = 1 << 30
MODEL = Model(
    ObjectMeta("smollm2", "", "uid", 3, ""),
    uri="file:///models/m",
    weight_bytes=2 * GIB,
    kv_bytes_per_token=1,
    layers=1,
    heads=1,
    kv_heads=1,
    context_length=1024,
)
GPU = Gpu(0, "GPU-0", "A100-80GB", 80 * GIB, GIB, 80, 80, healthy=True)
NODE = GpuNode(ObjectMeta("node-a", "", "uid", 1, ""), (GPU,))
WORLD = World(now=0.0, sessions={}, gpu_nodes={"node-a": NODE})


def failed(at: float, *, reason: str = "ModelNotFound", generation: int = 3) -> Session:
    failure = Failure(reason, "/models/m: no file", False, clock.text(at), 1, generation)  # noqa: FBT003
    found = session()
    return dataclasses.replace(found, status=dataclasses.replace(found.status, failure=failure))


def answered(at: float) -> Session:
    found = session()
    return dataclasses.replace(
        found, status=dataclasses.replace(found.status, started_at=clock.text(at))
    )


def said(verdict: Verdict, *, at: float, generation: int = 3) -> Model:
    """The model with what was said of it."""
    ready = Condition(
        READY, verdict.status, verdict.reason, verdict.message, generation, clock.text(at)
    )
    return dataclasses.replace(MODEL, conditions=(ready,))


def reason(*sessions: Session, model: Model = MODEL) -> str:
    return model_verdict(WORLD, model, sessions=sessions).reason


@pytest.mark.parametrize("why", sorted(OF_THE_FILE))
def test_a_model_says_what_the_latest_start_found_wrong_with_its_file(why: str) -> None:
    verdict = model_verdict(WORLD, MODEL, sessions=[answered(100), failed(200, reason=why)])
    assert (verdict.status, verdict.reason) == ("False", why)
    assert "namespace team ended: /models/m: no file" in verdict.message


def test_a_later_start_that_answers_makes_it_usable_again() -> None:
    assert reason(failed(200), answered(300)) == reasons.USABLE


def test_a_later_start_of_the_good_session_does_not_bring_an_old_failure_back() -> None:
    good = said(Verdict(READY, "True", reasons.USABLE, ""), at=300)
    assert reason(failed(200), model=good) == reasons.USABLE
    assert reason(failed(300), model=good) == "ModelNotFound"


def test_other_failures_say_nothing_of_the_file() -> None:
    assert reason(failed(200, reason="StoreFull")) == reasons.USABLE


def test_a_changed_model_has_to_be_tried_anew() -> None:
    assert reason(failed(200, generation=2)) == reasons.USABLE
    bad = model_verdict(WORLD, MODEL, sessions=[failed(200)])
    assert reason(model=said(bad, at=200, generation=2)) == reasons.USABLE


def test_it_stays_when_the_session_that_found_it_goes() -> None:
    bad = model_verdict(WORLD, MODEL, sessions=[failed(200)])
    assert model_verdict(WORLD, said(bad, at=200)) == bad
    assert reason(answered(300), model=said(bad, at=200)) == reasons.USABLE


WEIGHTS = Numbers(2 * GIB, 1, 1, 1, 1, 1024)


def test_a_model_says_what_its_weights_have_otherwise() -> None:
    assert model_verdict(WORLD, MODEL, weights=[WEIGHTS]).reason == reasons.USABLE
    odd = model_verdict(WORLD, MODEL, weights=[dataclasses.replace(WEIGHTS, layers=2)])
    assert (odd.status, odd.reason) == ("True", reasons.NUMBERS_DIFFER)
    assert "spec.layers is 1 and theirs 2" in odd.message
    short = [WEIGHTS, dataclasses.replace(WEIGHTS, kv_bytes_per_token=2)]
    wrong = model_verdict(WORLD, MODEL, weights=short)
    assert (wrong.status, wrong.reason) == ("False", "ModelMismatch")


def test_what_weights_have_otherwise_stays_while_nobody_reads_them() -> None:
    odd = model_verdict(WORLD, MODEL, weights=[dataclasses.replace(WEIGHTS, layers=2)])
    assert model_verdict(WORLD, said(odd, at=200)) == odd
    assert reason(model=said(odd, at=200, generation=2)) == reasons.USABLE
    again = model_verdict(WORLD, said(odd, at=200), weights=[WEIGHTS])
    assert again.reason == reasons.USABLE


def test_the_weights_of_a_model_are_those_that_its_sessions_have_open() -> None:
    seen = {"team/chat": Seen(session())}
    pods = {"team/chat-1": pod(1), "team/chat-2": pod(2)}
    runtimes = {"uid-chat-1": Runtime(weights=WEIGHTS), "uid-chat-2": Runtime()}
    world = World(now=0.0, sessions=seen, pods=pods, runtimes=runtimes)
    assert weights_by_model(world) == {"smollm2": {WEIGHTS}}


def test_a_model_that_no_gpu_holds_and_one_without_gpus_say_so() -> None:
    large = dataclasses.replace(MODEL, weight_bytes=80 * GIB)
    assert reason(model=large) == reasons.TOO_LARGE
    empty = dataclasses.replace(WORLD, gpu_nodes={})
    assert model_verdict(empty, MODEL).reason == reasons.NO_GPU


REF = SnapshotRef("chat-1", "file:///store", 1, 1, 1, "", "", "", 1, "")
SNAPSHOT = Snapshot(ObjectMeta("chat-1", "team", "uid", 1, ""), "chat", REF)


def context(found: Session, verdict: Verdict) -> Session:
    judged = status.judged(found.status, verdict, generation=1, now=0.0)
    return dataclasses.replace(found, status=judged)


@pytest.mark.parametrize("why", ["SnapshotMissing", "SnapshotCorrupt"])
def test_a_snapshot_that_a_start_did_not_find_whole_says_so(why: str) -> None:
    lost = Verdict(CONTEXT_SAVED, "False", why, "last saved: 7 tokens")
    verdict = snapshot_verdict(SNAPSHOT, context(failed(200, reason=why), lost))
    assert verdict == Verdict(READY, "False", why, "/models/m: no file")


def test_a_snapshot_that_was_found_again_is_ready_again() -> None:
    served = Verdict(CONTEXT_SAVED, "False", reasons.UNSAVED, "in memory")
    verdict = snapshot_verdict(SNAPSHOT, context(answered(300), served))
    assert verdict == Verdict(READY, "True", reasons.SAVED, "saved at file:///store")


def test_a_session_that_has_not_looked_yet_says_nothing_of_a_snapshot() -> None:
    assert snapshot_verdict(SNAPSHOT, session()) is None
