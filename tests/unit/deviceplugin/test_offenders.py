"""Charges: told once, remembered for a while, and settled before anybody is to be stopped."""

from dataclasses import replace

import pytest
from sojourn_api import names
from sojourn_api.objects import Offender
from sojourn_deviceplugin.config import Policy
from sojourn_deviceplugin.ledger import Grant, Holder
from sojourn_deviceplugin.offenders import REMEMBERED_NS, Book, Charge, kept

SECOND = 1_000_000_000
GRANT = Grant(0, frozenset({"d-1"}), slot="1", made_ns=0, holder=Holder("team", "s-1", "runtime"))
CHARGE = Charge(GRANT, uid="u", reason=names.OVER_MEMORY, size=100, message="100 over")


def test_a_charge_is_news_once() -> None:
    book = Book(Policy.REPORT)
    assert book.look([CHARGE], now_ns=0) == [CHARGE]
    assert book.look([CHARGE], now_ns=SECOND) == []
    assert book.look([replace(CHARGE, reason=names.YIELD_IGNORED)], now_ns=SECOND) != []


def test_it_names_pod_and_measure() -> None:
    book = Book(Policy.REPORT)
    book.look([CHARGE], now_ns=0)
    assert book.standing() == (Offender("team", "s-1", "u", "OverMemory", "100 over"),)


def test_its_words_change_when_it_has_doubled() -> None:
    book = Book(Policy.REPORT)
    for size in (100, 150, 199):
        book.look([replace(CHARGE, size=size, message=f"{size} over")], now_ns=0)
    assert book.standing()[0].message == "100 over"
    book.look([replace(CHARGE, size=200, message="200 over")], now_ns=0)
    assert book.standing()[0].message == "200 over"


def test_it_is_forgotten_after_a_while_and_with_its_grant() -> None:
    book = Book(Policy.REPORT)
    book.look([CHARGE], now_ns=0)
    book.look([], now_ns=REMEMBERED_NS)
    assert book.standing()
    book.look([], now_ns=REMEMBERED_NS + 1)
    assert not book.standing()
    book.look([CHARGE], now_ns=0)
    book.forget([GRANT])
    assert book.standing()
    book.forget([replace(GRANT, slot="2")])
    assert not book.standing()


@pytest.mark.parametrize(
    ("policy", "looks", "stop"),
    [
        (Policy.STOP, [0, 1, 2, 3], True),
        (Policy.STOP, [0, 1, 2], False),  # too short
        (Policy.STOP, [0, 5], False),  # too few
        (Policy.REPORT, [0, 1, 2, 3, 4, 5], False),
    ],
)
def test_only_what_lasts_is_to_be_stopped_and_only_by_policy(
    *, policy: Policy, looks: list[int], stop: bool
) -> None:
    book = Book(policy)
    for second in looks:
        book.look([CHARGE], now_ns=second * SECOND)
    assert book.standing()[0].stop == stop


def test_the_condition_says_what_is_held_and_what_cannot_be_seen() -> None:
    found = kept((Offender("team", "s-1", "u", "OverMemory", "100 over"),), sees=True)
    assert (found.status, found.reason, found.message) == ("False", "OverMemory", "100 over")
    assert (kept((), sees=True).status, kept((), sees=False).status) == ("True", "Unknown")
