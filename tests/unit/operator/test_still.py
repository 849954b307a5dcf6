"""Which sessions need no look, and what makes them need one again."""

import dataclasses
from typing import Any

import pytest
from sojourn_operator.session import life
from sojourn_operator.session.scene import Runtime, Scene
from sojourn_operator.session.still import Still

from tests.unit.pretend_session import TIER, Pretend


def at_rest() -> Scene:
    """A session that serves, its status written."""
    found = Pretend()
    found.place()
    found.run_pods()
    scene = Scene(found.session, found.now, pods=tuple(found.pods.values()), tier=TIER)
    assert not life.look(scene).asks(scene.status)
    return scene


def remembered(scene: Scene) -> Still:
    still = Still()
    still.note("team/chat", scene, life.look(scene))
    return still


def test_a_session_that_serves_needs_no_look_whatever_the_time() -> None:
    scene = at_rest()
    still = remembered(scene)
    assert still.holds("team/chat", dataclasses.replace(scene, now=scene.now + 1000))
    assert not still.holds("team/other", scene)


@pytest.mark.parametrize(
    "change",
    [
        {"runtime": Runtime(phase="Serving", exact=False)},
        {"lost_nodes": frozenset({"node-a"})},
        {"cordoned": True},
        {"tier": None},
        {"pods": ()},
        {"model_generation": 7},
    ],
    ids=lambda change: next(iter(change)),
)
def test_any_change_of_its_scene_asks_for_a_look(change: dict[str, Any]) -> None:
    scene = at_rest()
    assert not remembered(scene).holds("team/chat", dataclasses.replace(scene, **change))


def test_a_step_that_asks_for_something_is_not_remembered() -> None:
    scene = dataclasses.replace(at_rest(), pods=())
    assert life.look(scene).asks(scene.status)
    assert not remembered(scene).holds("team/chat", scene)


def test_what_is_ending_is_looked_at_every_time() -> None:
    """Nothing is asked for while its pod saves, but the clock alone may call that lost."""
    scene = at_rest()
    pod = dataclasses.replace(scene.pods[0], deleted_at=scene.now + 30, grace=30)
    scene = dataclasses.replace(scene, pods=(pod,))
    status = life.look(scene).status
    session = dataclasses.replace(scene.session, status=status)
    scene = dataclasses.replace(scene, session=session)
    assert not life.look(scene).asks(scene.status)
    assert not remembered(scene).holds("team/chat", scene)


def test_what_is_gone_is_forgotten() -> None:
    scene = at_rest()
    still = remembered(scene)
    still.keep(())
    assert not still.holds("team/chat", scene)
