"""Ordinals and condemned GPUs over restarts and losses."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sojourn_deviceplugin import registry
from sojourn_deviceplugin.config import Config
from sojourn_deviceplugin.facts import GpuFacts
from sojourn_deviceplugin.health import Fault, State
from sojourn_deviceplugin.offers import refusal
from sojourn_deviceplugin.xids import Restart

GIB = 1024**3


def gpu(number: int, **more: object) -> GpuFacts:
    facts = GpuFacts(uuid=f"GPU-{number:08d}", model="A100", total_bytes=80 * GIB)
    return replace(facts, **more)  # type: ignore[arg-type]


@given(st.lists(st.frozensets(st.integers(0, 9), max_size=5), max_size=8))
def test_an_ordinal_is_never_shared_changed_or_used_again(
    seen: list[frozenset[int]],
) -> None:
    known: dict[str, registry.Known] = {}
    ever: dict[int, str] = {}
    for numbers in seen:
        known = registry.enroll(known, [gpu(n) for n in sorted(numbers)], Config())
        for entry in known.values():
            assert ever.setdefault(entry.ordinal, entry.uuid) == entry.uuid
    assert sorted(ever) == list(range(len(known)))


def test_a_gpu_that_does_not_answer_is_not_enrolled() -> None:
    assert not registry.enroll({}, [gpu(1, error="lost")], Config())


def test_mig_mode_has_no_slices() -> None:
    (entry,) = registry.enroll({}, [gpu(1)], Config()).values()
    assert entry.slices == 79
    assert registry.replan(entry, gpu(1, mig=True), Config()).slices == 0


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    known = registry.enroll({}, [gpu(1), gpu(2)], Config())
    state = State(fault=Fault(95, Restart.GPU, "boot", 1), away=True)
    known["GPU-00000002"] = replace(known["GPU-00000002"], health=state)
    file = registry.Registry(tmp_path / "deep" / "folder")
    file.save(known)
    assert file.load() == known


def test_no_file_is_a_first_start(tmp_path: Path) -> None:
    assert registry.Registry(tmp_path).load() == {}


@pytest.mark.parametrize("content", ["", "{}", '{"version": 9, "gpus": []}', '{"version": 1}'])
def test_an_unreadable_file_is_not_guessed_at(tmp_path: Path, content: str) -> None:
    (tmp_path / registry.FILE).write_text(content)
    with pytest.raises(registry.RegistryError, match=r"gpus\.json"):
        registry.Registry(tmp_path).load()


def test_a_list_over_the_kubelets_limit_is_refused_with_the_remedy() -> None:
    (entry,) = registry.enroll({}, [gpu(1, total_bytes=2000 * GIB)], Config()).values()
    assert refusal(entry) is None
    verdict = refusal(entry, limit=10_000)
    assert verdict is not None
    assert "raise sliceBytes" in verdict.message
