"""Counting and naming slices, and taking them out of service."""

from hypothesis import given
from hypothesis import strategies as st
from sojourn_deviceplugin import slices

GIB = 1024**3


def test_slices_are_what_fits_after_the_drivers_and_our_reserve() -> None:
    found = slices.count(total=80 * GIB, driver=GIB // 2, reserve=GIB // 4, slice_bytes=GIB)
    assert found == 79


def test_a_gpu_smaller_than_the_reserve_has_none() -> None:
    assert slices.count(total=GIB, driver=GIB, reserve=GIB, slice_bytes=GIB) == 0


def test_names_are_short_and_stable() -> None:
    uuid = "GPU-5a1c9f0e-1234-5678-9abc-def012345678"
    assert slices.device_ids(uuid, 2) == ("5a1c9f0e-0", "5a1c9f0e-1")
    assert len(slices.device_id(uuid, 10**6)) <= 63


def test_sixteen_gpus_of_288_slices_stay_far_below_the_message_limit() -> None:
    ids = slices.device_ids("GPU-5a1c9f0e", 288)
    assert slices.message_bytes(ids, numa=True) < slices.MESSAGE_LIMIT / 100


def test_memory_within_grants_is_not_foreign() -> None:
    assert slices.foreign(used=5, granted=5, slice_bytes=2) == slices.Foreign(bytes=0, slices=0)
    assert slices.foreign(used=6, granted=5, slice_bytes=2) == slices.Foreign(bytes=1, slices=1)


names = st.integers(0, 30).map(lambda n: f"d-{n}")


@given(
    total=st.integers(0, 30),
    held=st.frozensets(names),
    kept=st.frozensets(names),
    wanted=st.integers(0, 40),
)
def test_only_free_slices_go_out_as_many_as_possible_and_the_same_again(
    total: int, held: frozenset[str], kept: frozenset[str], wanted: int
) -> None:
    ids = tuple(f"d-{n}" for n in range(total))
    out = slices.out_of_service(ids, held=held, kept=kept, wanted=wanted)
    free = set(ids) - held
    assert out <= free
    assert len(out) == min(wanted, len(free))
    assert len(out & kept) == min(wanted, len(free & kept))
    assert slices.out_of_service(ids, held=held, kept=out, wanted=wanted) == out
