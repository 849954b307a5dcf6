"""The launches of a prefill run only a little ahead of the GPU: a flag stops it within four layers.

The GPU is pretended, as slow as it may be: it computes nothing that nobody waits for.
"""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from sojourn_runtime.model.cuda.launches import LAYERS_BETWEEN_STOPS, Launches  # noqa: E402

pytestmark = pytest.mark.torch


class Gpu:
    """Layers launched, and how many of them are computed."""

    def __init__(self) -> None:
        self.launched = self.computed = 0

    def event(self, *, blocking: bool) -> "Event":
        assert blocking, "a spinning wait costs a core"
        return Event(self)


class Event:
    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._behind = 0

    def record(self) -> None:
        self._behind = self._gpu.launched

    def synchronize(self) -> None:
        self._gpu.computed = max(self._gpu.computed, self._behind)


def test_at_most_four_layers_are_computed_behind_a_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu: Any = Gpu()
    monkeypatch.setattr(torch.cuda, "Event", gpu.event)
    launches = Launches(torch.device("cuda"))
    for layer in range(32):
        if layer % LAYERS_BETWEEN_STOPS == 0:
            launches.boundary()
            assert gpu.launched - gpu.computed <= 2, "what is launched when the flag is looked at"
        gpu.launched += 1
        # a flag that is raised now is seen at the next boundary
        assert gpu.launched - gpu.computed <= 4
