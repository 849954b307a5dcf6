"""A session that was started by wrong numbers says so, and serves on."""

import dataclasses
from typing import Any

import pytest
from sojourn_api.names import READY
from sojourn_api.objects import Model, ObjectMeta, SessionStatus
from sojourn_api.weights import Numbers
from sojourn_operator import loop, reasons, wants
from sojourn_operator.act.status import of
from sojourn_operator.seen.cache import Seen
from sojourn_operator.seen.world import World, scene_of
from sojourn_operator.session import doubts, life
from sojourn_operator.session.scene import Runtime, Scene

from tests.unit.pretend_session import Pretend, session

WEIGHTS = Numbers(1 << 30, 1024, 2, 4, 2, 8192)
MODEL = Model(
    ObjectMeta("smollm2", "", "uid-smollm2", 1, ""),
    uri="file:///m",
    weight_bytes=1 << 30,
    kv_bytes_per_token=1024,
    layers=2,
    heads=4,
    kv_heads=2,
    context_length=8192,
)


def serving(wanted: int | None, model: Model = MODEL, *, known: int = 4096) -> Scene:
    """A session that was started with 4,096 tokens, which its status knows, and wants others."""
    found = Pretend(session(context_length=4096))
    found.place()
    found.run_pods()
    spec = dataclasses.replace(found.session.spec, context_length=wanted)
    status = dataclasses.replace(found.status, context_length=known)
    pods = [dataclasses.replace(pod, context_length=4096) for pod in found.pods.values()]
    world = World(
        now=found.now,
        sessions={"team/chat": Seen(dataclasses.replace(found.session, spec=spec, status=status))},
        models={model.meta.name: model},
        runtimes={pod.uid: Runtime(weights=WEIGHTS) for pod in pods},
    )
    return scene_of(world, "team/chat", pods=pods, lost_nodes=frozenset())


@pytest.mark.parametrize("wanted", [None, 4096, 8192])
def test_a_length_that_the_model_has_is_no_doubt(wanted: int | None) -> None:
    step = life.look(serving(wanted, known=0))
    assert of(step.status, READY).message.startswith("answers at ")
    assert ";" not in of(step.status, READY).message
    assert step.notes == ()
    assert step.status.context_length == 4096, "what it holds, whatever it wants later"


def test_a_length_that_the_model_lacks_is_told_at_once_and_the_session_serves_on() -> None:
    step = life.look(serving(9000))
    ready = of(step.status, READY)
    assert (ready.status, ready.reason) == ("True", reasons.SERVING)
    assert "spec.contextLength is 9000, LLMModel smollm2 has 8192" in ready.message
    assert "lower spec.contextLength to at most 8192" in ready.message
    assert "until then the session goes on with 4096" in ready.message
    (note,) = step.notes
    assert (note.reason, note.warning) == ("ContextTooLong", True)


def test_a_length_that_the_model_lacks_keeps_a_session_from_starting() -> None:
    seen = {"team/chat": Seen(session(context_length=9000))}
    trouble = loop._trouble(World(0.0, seen, models={"smollm2": MODEL}), "team/chat")
    assert trouble is not None
    assert trouble.reason == "ContextTooLong"
    assert "lower spec.contextLength to at most 8192" in trouble.message


def test_a_session_that_has_served_comes_back_with_what_it_had() -> None:
    asked = session(context_length=9000)
    served = dataclasses.replace(asked, status=SessionStatus(context_length=4096))
    world = World(0.0, {"team/chat": Seen(served)}, models={"smollm2": MODEL})
    assert loop._trouble(world, "team/chat") is None
    assert wants.context_length(served, MODEL) == 4096
    corrected = dataclasses.replace(served, spec=session(context_length=8000).spec)
    assert wants.context_length(corrected, MODEL) == 8000


@pytest.mark.parametrize(
    ("change", "reason"),
    [({"layers": 9}, reasons.NUMBERS_DIFFER), ({"kv_bytes_per_token": 1}, "ModelMismatch")],
)
def test_a_model_that_says_otherwise_than_its_weights_is_told_by_its_sessions(
    change: dict[str, Any], reason: str
) -> None:
    step = life.look(serving(4096, dataclasses.replace(MODEL, **change)))
    ready = of(step.status, READY)
    assert (ready.status, ready.reason) == ("True", reasons.SERVING)
    assert "LLMModel smollm2 does not describe its weights: spec." in ready.message
    (note,) = step.notes
    assert note.reason == reason
    assert note.message in ready.message


def test_nothing_is_held_against_a_model_whose_weights_nobody_has_open() -> None:
    assert doubts.mismatch(dataclasses.replace(MODEL, layers=9), None) is None


def test_a_spec_that_fits_no_gpu_is_told_at_once_by_one_event_and_the_session_serves_on() -> None:
    why = "needs 400 slices on one GPU; no GPU has 400 slices (the most is 79)"
    scene = serving(4096)
    facts = set()
    for text in (why, why.replace("79", "80")):
        doubt = doubts.unplaceable(scene.session, text)
        step = life.look(dataclasses.replace(scene, doubts=(doubt,)))
        ready = of(step.status, READY)
        assert (ready.status, ready.reason) == ("True", reasons.SERVING)
        assert f"applies from the next start, for which there is no place: {text}" in ready.message
        assert "change spec.resources" in ready.message
        (note,) = step.notes
        assert (note.reason, note.warning) == ("NoMatchingGPU", True)
        facts.add((note.name, note.once_per))
    assert len(facts) == 1
