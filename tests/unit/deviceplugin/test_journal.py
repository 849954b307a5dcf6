"""The journal of slots: what is read again after a kill at any byte."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sojourn_deviceplugin.journal import LINES, Journal


def ids(*numbers: int) -> frozenset[str]:
    return frozenset(f"d-{n}" for n in numbers)


def test_what_is_recorded_is_read_again(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.record("1", ids(1, 2))
    journal.record("2", ids(3))
    journal.record("1", frozenset())
    journal.close()
    assert Journal(tmp_path / "journal").held == {"2": ids(3)}


def test_it_remembers_who_was_told_to_be_a_client_of_mps(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    for slot in ("1", "2", "3"):
        journal.record(slot, ids(int(slot)), mps=slot != "2")
    journal.record("3", frozenset())
    assert journal.mps == {"1"}
    journal.close()
    again = Journal(tmp_path / "journal")
    assert (again.mps, again.held) == ({"1"}, {"1": ids(1), "2": ids(2)})
    again.forget({"2"})  # written anew
    again.close()
    assert Journal(tmp_path / "journal").mps == {"1"}


def test_it_does_not_grow_without_bound(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    for n in range(5 * LINES):
        journal.record(str(n), ids(*range(20)))
        journal.record(str(n), frozenset())
    journal.close()
    assert len((tmp_path / "journal").read_text().splitlines()) <= LINES


def test_forgotten_slots_are_gone(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.record("1", ids(1))
    journal.record("2", ids(2))
    journal.forget({"1"})
    journal.close()
    assert Journal(tmp_path / "journal").held == {"2": ids(2)}


@given(cut=st.integers(0, 200))
def test_a_torn_last_line_costs_that_line_only(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    path = tmp_path_factory.mktemp("journal") / "journal"
    journal = Journal(path)
    journal.record("1", ids(1))
    whole = path.read_bytes()
    journal.record("2", ids(2, 3, 4))
    journal.close()
    torn = path.read_bytes()[: len(whole) + cut]
    path.write_bytes(torn)
    held = Journal(path).held
    assert held["1"] == ids(1)
    assert held.get("2", ids(2, 3, 4)) == ids(2, 3, 4)
