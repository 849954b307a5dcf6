"""Whatever keeps a session from answering, its status says what to do about it."""

import dataclasses
import re
from pathlib import Path

import pytest
import sojourn_operator
from sojourn_api.names import PAUSED, READY
from sojourn_api.objects import IdleAction
from sojourn_operator import reasons
from sojourn_operator.act.status import of
from sojourn_operator.seen.pod import Terminated
from sojourn_operator.session import life, orders
from sojourn_operator.session.remedies import OTHERWISE, REMEDIES, not_ready, remedied
from sojourn_operator.session.scene import Scene

from tests.unit.pretend_session import Pretend, pod, session

ROOT = Path(__file__).parents[3]


def test_every_reason_that_the_docs_know_has_a_remedy() -> None:
    """What a runtime reports brings its own; another test holds that the docs know all reasons."""
    row = re.search(r"^\| `Ready` \|.*$", (ROOT / "docs" / "operator.md").read_text(), re.MULTILINE)
    assert row
    ours = row[0].split("|")[3].partition("what the runtime reported")[0]
    words = re.findall(r"`(\w+)`", ours)
    assert len(words) > 15
    assert not [word for word in words if word not in REMEDIES]


def test_no_other_module_says_that_a_session_is_not_ready() -> None:
    source = Path(sojourn_operator.__file__).parent
    makers = {path.name for path in source.rglob("*.py") if "(READY, FALSE" in path.read_text()}
    assert makers == {"remedies.py", "verdicts.py"}  # the latter's are models and the like


def test_a_remedy_is_said_once() -> None:
    once = remedied(reasons.CRASHED, "exit code 1")
    assert remedied(reasons.CRASHED, once) == once
    assert not_ready("WordToCome", "what").message == f"what; {OTHERWISE}"


WAITING = [
    ("ErrImageNeverPull", "images.pullPolicy"),
    ("ErrImagePull", "spec.template.imagePullSecrets"),
    ("CreateContainerConfigError", "spec.apiKey"),
    ("RunContainerError", "sojourn-runtime"),
    ("WordToCome", "kubectl describe pod"),
]


@pytest.mark.parametrize(("word", "remedy"), WAITING)
def test_a_container_that_does_not_run_is_told_with_a_remedy_and_one_event(
    word: str, remedy: str
) -> None:
    found = Pretend()
    found.place()
    told = set()
    for tries in ("1", "2"):
        waiting = f"{word}: runtime:9 failed, try {tries}"
        one = pod(1, node="node-a", waiting=waiting)
        step = life.look(Scene(found.session, now=found.now, pods=(one,)))
        ready = of(step.status, READY)
        assert (ready.status, ready.reason) == ("False", word)
        assert waiting in ready.message
        assert remedy in ready.message
        told |= {(note.name, note.once_per, note.warning) for note in step.notes}
    assert len(told) == 1


@pytest.mark.parametrize(
    ("limit", "numbers", "remedy", "other"),
    [
        (1 << 30, "its memory limit is 1.07 GB", "limits.memory", "requests.memory"),
        (0, "it has no memory limit, so node node-a", "requests.memory", "limits.memory"),
    ],
)
def test_a_session_killed_for_memory_says_how_much_it_had_and_what_to_change(
    limit: int, numbers: str, remedy: str, other: str
) -> None:
    found = Pretend()
    found.place()
    found.run_pods()
    killed = Terminated(exit_code=137, reason="OOMKilled", message="")
    for name, one in found.pods.items():
        found.pods[name] = dataclasses.replace(
            one, phase="Failed", terminated=killed, memory_limit=limit
        )
    found.settle()
    ready = of(found.status, READY)
    assert ready.reason == "OOMKilled"
    for part in ("exit code 137", numbers, f"spec.template.resources.{remedy}", "5 s"):
        assert part in ready.message
    assert other not in ready.message
    assert any(numbers in text and remedy in text for _, text, _ in found.events)


def test_an_idle_session_says_for_how_long_it_was_since_when_it_rests_and_how_to_wake_it() -> None:
    found = session(idle_after_seconds=600, idle_action=IdleAction.PAUSE)
    told = orders.told_to_pause(
        found, by="", reason=reasons.IDLE, message=orders.resting(found, reasons.IDLE), now=0.0
    )
    assert "no requests for 600 s" in of(told, PAUSED).message
    rests = dataclasses.replace(told, paused_at="2026-01-01T10:00:00Z")
    held = orders.held_back(dataclasses.replace(found, status=rests), now=1.0)
    ready = of(held, READY)
    assert ready.reason == reasons.IDLE
    for part in ("for 600 s", "since 2026-01-01T10:00:00Z", "sojourn.dev/wake=", "gateway"):
        assert part in ready.message


def test_what_shall_rest_is_not_said_to_come_back_by_itself() -> None:
    found = Pretend(session(suspend=True))
    ready = of(orders.held_back(found.session, now=0.0), READY)
    assert ready.message == ("spec.suspend is true; set it to false to bring the session back")
