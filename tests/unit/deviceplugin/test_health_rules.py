"""The rules of condemnation and recovery, one step at a time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sojourn_deviceplugin import health
from sojourn_deviceplugin.facts import RECOVERY_UNKNOWN, GpuFacts, NodeFacts
from sojourn_deviceplugin.xids import Restart, restart

GOOD = GpuFacts(uuid="GPU-1", recovery=RECOVERY_UNKNOWN)
LOST = GpuFacts(uuid="GPU-1", error="GPU is lost")


def at(*, session: int = 1, boot: str = "b1", error: str = "") -> health.Situation:
    node = NodeFacts(gpus=(GOOD,), session=session, error=error)
    return health.Situation(node=node, boot=boot, probes=3)


class Gpu:
    """A GPU under judgement."""

    def __init__(self) -> None:
        self.state = health.State()

    def look(
        self,
        facts: GpuFacts | None = GOOD,
        *xids: int,
        now: health.Situation | None = None,
    ) -> health.Verdict:
        now = now or at()
        state = health.condemn(self.state, xids, now)
        self.state, verdict = health.judge(state, facts, now)
        return verdict


def test_a_fresh_gpu_that_answers_is_healthy() -> None:
    assert Gpu().look() == health.HEALTHY


@pytest.mark.parametrize("xid", [13, 31, 43, 45, 63, 68, 92, 94])
def test_errors_of_applications_condemn_nothing(xid: int) -> None:
    assert Gpu().look(GOOD, xid).healthy


@pytest.mark.parametrize("xid", [46, 48, 62, 64, 95, 109, 119, 120, 140])
def test_a_reset_class_xid_needs_a_reset_however_often_probes_pass(xid: int) -> None:
    gpu = Gpu()
    gpu.look(GOOD, xid)
    assert not any(gpu.look().healthy for _ in range(100))
    gpu.look(LOST)  # a reset: away, and back
    assert gpu.look().healthy


def test_a_restarted_driver_has_reset_the_gpu() -> None:
    gpu = Gpu()
    gpu.look(GOOD, 95)
    assert gpu.look(now=at(session=2)).healthy


def test_a_gpu_off_the_bus_needs_a_reboot_even_if_it_comes_back() -> None:
    gpu = Gpu()
    gpu.look(GOOD, 79)
    gpu.look(LOST)
    gpu.look(None)
    verdict = gpu.look(now=at(session=2))
    assert (verdict.healthy, verdict.reason) == (False, "Xid79")
    assert gpu.look(now=at(boot="b2")).healthy


def test_a_verdict_says_what_to_do_and_no_word_twice() -> None:
    gpu = Gpu()
    told = gpu.look(GOOD, 79)
    assert told.message.endswith("; reboot the node")
    assert "79" not in told.message  # the reason before it says so
    lost = Gpu().look(LOST)
    assert lost.message.startswith("GPU is lost; ")
    assert "reset the GPU" in lost.message


def test_the_gravest_of_several_xids_stands() -> None:
    gpu = Gpu()
    gpu.look(GOOD, 48, 79, 95, 13)
    assert gpu.look().reason == "Xid79"


def test_an_unknown_xid_is_distrusted_until_probes_pass() -> None:
    gpu = Gpu()
    assert gpu.look(GOOD, 9999).reason == "Xid9999"
    assert [gpu.look().healthy for _ in range(3)] == [False, True, True]


def test_a_repeated_fault_starts_its_recovery_anew() -> None:
    gpu = Gpu()
    gpu.look(GOOD, 9999)
    gpu.look()
    gpu.look(GOOD, 9999)
    assert not gpu.look().healthy
    assert gpu.look().healthy


def test_the_driver_asks_and_withdraws() -> None:
    gpu = Gpu()
    gpu.look(GOOD, 79)
    assert gpu.look(GpuFacts(uuid="GPU-1", recovery=2)).reason == "RebootRequired"
    assert gpu.look(GpuFacts(uuid="GPU-1", recovery=0)).healthy


def test_a_gpu_that_was_away_proves_itself_first() -> None:
    gpu = Gpu()
    gpu.look(LOST)
    assert [gpu.look().healthy for _ in range(3)] == [False, False, True]


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (GpuFacts(uuid="GPU-1", remap_pending=True), "RowRemapPending"),
        (GpuFacts(uuid="GPU-1", remap_failed=True), "RowRemapFailed"),
        (None, "GpuMissing"),
    ],
)
def test_signs_of_ill_health_have_names(facts: GpuFacts | None, reason: str) -> None:
    assert Gpu().look(facts).reason == reason


def test_a_silent_nvml_condemns_nobody_for_longer_than_it_lasts() -> None:
    gpu = Gpu()
    assert gpu.look(None, now=at(error="no answer")).reason == "NvmlUnavailable"
    assert gpu.look().healthy


@given(st.lists(st.sampled_from(["good", "lost", "gone", "nvml"]), max_size=30))
def test_nothing_but_a_reboot_or_the_driver_frees_a_node_fault(looks: list[str]) -> None:
    gpu = Gpu()
    gpu.look(GOOD, 79)
    facts = {"good": GOOD, "lost": LOST, "gone": None, "nvml": GOOD}
    for look in looks:
        error = "broken" if look == "nvml" else ""
        assert not gpu.look(facts[look], now=at(error=error)).healthy


def test_the_catalogue_is_complete_for_the_drivers_that_run_sessions() -> None:
    assert restart(48) is Restart.GPU
    assert restart(79) is Restart.NODE
    assert restart(94) is Restart.APP  # contained: the vendor says so, others mark it bad
    assert restart(109) is Restart.GPU  # and ignore this one
    assert restart(154) is Restart.DRIVER
    assert restart(4242) is Restart.UNKNOWN
