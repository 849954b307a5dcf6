"""Events: what makes two facts the same."""

from typing import Any

from sojourn_operator.act.events import BURST, PER_SECOND, Teller, body
from sojourn_operator.kinds import Kind
from sojourn_operator.session.note import Note, Subject

CHAT = Subject("LLMSession", "chat", "team", "uid-1")


def test_the_same_words_at_a_later_start_are_the_same_event() -> None:
    first = Note(CHAT, "Placed", "on node-a", once_per="1")
    assert first.name == Note(CHAT, "Placed", "on node-a", once_per="2").name


def test_other_words_or_another_object_are_another_event() -> None:
    first = Note(CHAT, "Placed", "on node-a", once_per="1")
    again = Subject("LLMSession", "chat", "team", "uid-2")
    others = [
        Note(CHAT, "Placed", "on node-b", once_per="1"),
        Note(CHAT, "Resumed", "on node-a", once_per="1"),
        Note(again, "Placed", "on node-a", once_per="1"),
    ]
    assert len({note.name for note in [first, *others]}) == 4


def test_messages_that_differ_in_numbers_only_can_be_one_event() -> None:
    first = Note(CHAT, "WaitingForRoom", "20 of 60 free", once_per="1", same="")
    assert first.name == Note(CHAT, "WaitingForRoom", "30 of 60 free", once_per="1", same="").name


def test_an_event_fits_the_api_servers_bounds() -> None:
    note = Note(CHAT, "Failed", "x" * 5000, once_per="1", warning=True)
    found = body(note, now=0)
    assert len(found["message"]) == 1024
    assert found["type"] == "Warning"
    assert found["involvedObject"]["uid"] == "uid-1"
    assert found["metadata"]["namespace"] == "team"


def test_the_event_of_a_cluster_wide_object_lives_in_the_default_namespace() -> None:
    note = Note(Subject("LLMModel", "smollm2", "", "uid-3"), "TooLarge", "no", once_per="1")
    assert body(note, now=0)["metadata"]["namespace"] == "default"


class Told:
    """An API server that takes every event."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def create(self, _kind: Kind, raw: dict[str, Any]) -> dict[str, Any]:
        self.reasons.append(raw["reason"])
        return raw


def test_a_flood_of_normal_events_is_cut_and_warnings_are_not() -> None:
    api = Told()
    teller = Teller(api)  # type: ignore[arg-type]
    for number in range(BURST + 50):
        teller.tell(Note(CHAT, "Placed", f"on node-{number}", once_per="1"), now=0.0)
    assert len(api.reasons) == BURST
    teller.tell(Note(CHAT, "Failed", "no", once_per="1", warning=True), now=0.0)
    assert api.reasons[-1] == "Failed"
    later = 10 / PER_SECOND
    for number in range(50):
        teller.tell(Note(CHAT, "Started", f"on node-{number}", once_per="1"), now=later)
    assert api.reasons.count("Started") == 10
