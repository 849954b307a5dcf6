"""Who is said to hold a grant to its memory."""

from dataclasses import replace

import pytest
from sojourn_deviceplugin.enforcement import of, on_several
from sojourn_deviceplugin.ledger import Grant, Holder

HOLDER = Holder("team", "s-1", "runtime")
GRANT = Grant(0, frozenset({"d-1"}), slot="1", made_ns=0, holder=HOLDER)


@pytest.mark.parametrize(
    ("capped", "told", "mps", "alive", "who"),
    [
        (True, True, True, True, "driver"),
        (False, True, True, True, "mps"),
        (False, True, False, True, "runtime"),  # the daemon is gone
        (False, False, True, True, "runtime"),  # it came after the container
        (False, False, False, False, "none"),
    ],
)
def test_the_strongest_that_is_known_to_hold(
    *, capped: bool, told: bool, mps: bool, alive: bool, who: str
) -> None:
    assert of(replace(GRANT, mps=told), capped=capped, mps=mps, alive=alive) == who


def test_a_container_on_several_gpus_is_known_by_its_holder() -> None:
    other = replace(GRANT, ordinal=1)
    assert on_several([GRANT, other], GRANT)
    assert not on_several([GRANT, replace(other, holder=Holder("team", "s-2", "runtime"))], GRANT)
    assert not on_several([GRANT, replace(GRANT, slot="2")], GRANT)
