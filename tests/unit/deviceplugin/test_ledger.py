"""Grants against the kubelet's list; times are numbers here."""

from sojourn_api.arbiter import Tier
from sojourn_deviceplugin.ledger import SETTLE_NS, UNKNOWN, Grant, Holder, Ledger

A, B = Holder("ns", "a", "runtime"), Holder("ns", "b", "runtime")
GOLD = Tier(priority=2500, share=1000)


def ids(*numbers: int) -> frozenset[str]:
    return frozenset(f"d-{n}" for n in numbers)


def granted(*devices: frozenset[str], at: int = 100) -> Ledger:
    ledger = Ledger()
    for n, part in enumerate(devices):
        ledger.allocate(ordinal=0, devices=part, slot=str(n), now_ns=at)
    return ledger


def test_what_the_kubelet_gives_again_was_free() -> None:
    ledger = granted(ids(1, 2), ids(3))
    grant, over = ledger.allocate(ordinal=0, devices=ids(2, 5), slot="9", now_ns=200)
    assert [old.slot for old in over] == ["0"]
    assert [g.slot for g in ledger.grants] == ["1", "9"]
    assert grant.tier == UNKNOWN


def test_equal_names_on_another_gpu_are_other_devices() -> None:
    ledger = granted(ids(1))
    _, over = ledger.allocate(ordinal=1, devices=ids(1), slot="9", now_ns=200)
    assert not over


def test_the_list_names_a_grant_once() -> None:
    ledger = granted(ids(1, 2))
    first = ledger.reconcile({(A, 0): ids(1, 2)}, listed_ns=200)
    assert [grant.holder for grant in first.named] == [A]
    assert ledger.reconcile({(A, 0): ids(1, 2)}, listed_ns=300) == type(first)()


def test_a_named_grant_that_the_list_lacks_is_over() -> None:
    ledger = granted(ids(1))
    ledger.reconcile({(A, 0): ids(1)}, listed_ns=200)
    assert [g.slot for g in ledger.reconcile({}, listed_ns=300).over] == ["0"]
    assert not ledger.held(0)


def test_a_young_grant_may_be_missing_for_a_while() -> None:
    ledger = granted(ids(1))
    assert not ledger.reconcile({}, listed_ns=200).over
    assert ledger.reconcile({}, listed_ns=101 + SETTLE_NS).over


def test_a_list_from_before_an_allocation_says_nothing_about_it() -> None:
    """Else the new holder would get the tier of the one before."""
    ledger = granted(ids(1))
    ledger.reconcile({(A, 0): ids(1)}, listed_ns=200)
    ledger.allocate(ordinal=0, devices=ids(1), slot="1", now_ns=500)
    assert (
        ledger.reconcile({(A, 0): ids(1)}, listed_ns=400)
        == type(ledger.reconcile({(A, 0): ids(1)}, listed_ns=400))()
    )
    assert [g.holder for g in ledger.grants] == [None]


def test_another_holder_of_the_same_devices_starts_at_the_lowest_tier() -> None:
    ledger = granted(ids(1))
    ledger.reconcile({(A, 0): ids(1)}, listed_ns=200)
    ledger.promote(ledger.grants[0], GOLD)
    changes = ledger.reconcile({(B, 0): ids(1)}, listed_ns=300)
    assert [(g.holder, g.tier) for g in changes.named] == [(B, UNKNOWN)]


def test_a_restored_grant_keeps_its_tier_when_it_is_named() -> None:
    ledger = Ledger()
    before = Grant(ordinal=0, devices=ids(1), slot="4", made_ns=0, tier=GOLD)
    ledger.restore([before], now_ns=SETTLE_NS)
    ledger.reconcile({(A, 0): ids(1)}, listed_ns=SETTLE_NS + 1)
    assert [(g.holder, g.tier) for g in ledger.grants] == [(A, GOLD)]


def test_an_unknown_holder_is_counted_and_displaces_what_overlaps() -> None:
    ledger = granted(ids(1, 2))
    changes = ledger.reconcile({(A, 0): ids(2, 3)}, listed_ns=200)
    assert [g.slot for g in changes.over] == ["0"]
    assert [(g.devices, g.slot) for g in changes.adopted] == [(ids(2, 3), "")]
    assert ledger.held(0) == ids(2, 3)
