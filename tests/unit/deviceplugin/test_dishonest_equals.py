"""Equals that lie about their accounts or keep the turn: they gain time, and starve nobody."""

import time
from pathlib import Path

import pytest
from sojourn_api import arbiter
from sojourn_api.arbiter_page import Page
from sojourn_api.arbiter_turn import STARVED_NS, TURN_LIMIT_NS, Turns

HOUR_NS = 3_600_000_000_000


@pytest.fixture
def grants(tmp_path: Path) -> Path:
    """One honest grant in slot 1, and a liar's in slot 2, which lives and has work."""
    index = arbiter.create_index(tmp_path)
    for slot in ("1", "2"):
        arbiter.create_grant(tmp_path, slot, arbiter.Tier(priority=1000, share=1000))
    arbiter.bump(index)
    return tmp_path


@pytest.fixture
def honest(grants: Path) -> Page:
    return Page(grants / "1" / arbiter.POD)


@pytest.fixture
def liar(grants: Path) -> Page:
    page = Page(grants / "2" / arbiter.POD)
    page.words[arbiter.W_WANTS] = 1
    return page


@pytest.mark.parametrize(("limit_ns", "goes"), [(HOUR_NS, False), (0, True)])
def test_a_turn_counts_no_longer_than_its_limit(
    grants: Path, honest: Page, liar: Page, limit_ns: int, *, goes: bool
) -> None:
    liar.words[arbiter.W_CREDIT] = HOUR_NS  # it would be last, but for the turn
    liar.words[arbiter.W_TURN] = time.monotonic_ns()
    turns = Turns(grants, honest, own_slot="1", turn_limit_ns=limit_ns, starved_ns=HOUR_NS)
    turns.want(wants=True)
    assert turns.mine() is goes


@pytest.mark.parametrize(("starved_ns", "goes"), [(HOUR_NS, False), (0, True)])
def test_who_has_waited_for_long_goes_whatever_others_claim(
    grants: Path, honest: Page, liar: Page, starved_ns: int, *, goes: bool
) -> None:
    turns = Turns(grants, honest, own_slot="1", starved_ns=starved_ns)
    turns.want(wants=True)
    turns.spent(1_000_000)
    liar.words[arbiter.W_CREDIT] = 0  # "I have had nothing"
    assert turns.mine() is goes


def test_a_turn_that_begins_in_the_future_is_none(grants: Path, honest: Page, liar: Page) -> None:
    liar.words[arbiter.W_CREDIT] = HOUR_NS
    liar.words[arbiter.W_TURN] = time.monotonic_ns() + HOUR_NS
    turns = Turns(grants, honest, own_slot="1", starved_ns=HOUR_NS)
    turns.want(wants=True)
    assert turns.mine()


def test_the_bounds_are_those_that_the_docs_name() -> None:
    assert (TURN_LIMIT_NS, STARVED_NS) == (1_000_000_000, 2_000_000_000)
