"""Which of the runtimes' own figures are believed."""

from dataclasses import replace

import pytest
from sojourn_api.arbiter import Allocator, PageState
from sojourn_api.objects import AllocatorUse
from sojourn_deviceplugin import allocators, health, registry
from sojourn_deviceplugin.config import Config
from sojourn_deviceplugin.facts import GpuFacts
from sojourn_deviceplugin.ledger import Grant, Holder
from sojourn_deviceplugin.offers import Offer

GIB = 1024**3
NOW = 10**12
INSIDE = Allocator(NOW, reserved=8 * GIB, used=5 * GIB, inactive_split=GIB, largest_free=2 * GIB)


def page(inside: Allocator | None) -> PageState:
    return PageState(0, 0, 0, 0, 0, False, 0, 0, 0, 0, True, inside)  # noqa: FBT003


def told(inside: Allocator | None) -> Allocator | None:
    return allocators.told(page(inside), limit=80 * GIB, now_ns=NOW)


def test_a_fresh_record_is_told() -> None:
    assert told(INSIDE) == INSIDE
    assert told(replace(INSIDE, inactive_split=None, largest_free=None)) is not None
    assert told(replace(INSIDE, at_ns=NOW + 1000)) is not None  # made while it is looked for


def test_one_that_was_never_made_is_unknown() -> None:
    assert told(None) is None
    assert allocators.told(None, limit=GIB, now_ns=NOW) is None


@pytest.mark.parametrize("at_ns", [NOW - allocators.FRESH_NS, NOW + allocators.FRESH_NS])
def test_an_old_record_and_one_of_the_future_are_unknown(at_ns: int) -> None:
    assert told(replace(INSIDE, at_ns=at_ns)) is None


@pytest.mark.parametrize(
    "impossible",
    [
        replace(INSIDE, reserved=2**64 - 1),
        replace(INSIDE, used=9 * GIB),
        replace(INSIDE, inactive_split=9 * GIB),
        replace(INSIDE, largest_free=9 * GIB),
    ],
)
def test_an_impossible_record_is_unknown(impossible: Allocator) -> None:
    assert told(impossible) is None


def test_each_pod_of_the_gpu_has_one_entry() -> None:
    facts = GpuFacts(uuid="GPU-0", model="NVIDIA H200", total_bytes=80 * GIB)
    (known,) = registry.enroll({}, (facts,), Config()).values()
    grants = [
        Grant(ordinal, frozenset({slot}), slot, 0, Holder("a", pod, container) if pod else None)
        for slot, ordinal, pod, container in (
            ("1", 0, "x-1", "runtime"),
            ("2", 0, "x-1", "sidecar"),
            ("3", 1, "y-1", "runtime"),
            ("4", 0, "", ""),
            ("5", 0, "z-1", "runtime"),
        )
    ]
    pages = {"1": page(INSIDE), "2": page(INSIDE), "3": page(INSIDE), "5": page(None)}
    found = allocators.uses(
        Offer(known, health.HEALTHY), grants, lambda grant: pages.get(grant.slot), now_ns=NOW
    )
    assert found == (AllocatorUse("a/x-1", 8 * GIB, 5 * GIB, GIB, 2 * GIB),)
