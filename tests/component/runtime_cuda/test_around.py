"""What stands around the kernels: copies between the tiers, the check at the start, the door."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from sojourn_runtime.engine.moves import Ahead, Copy, Fetch, Load, Spill, Stash
from sojourn_runtime.engine.prefix import Name
from sojourn_runtime.model.errors import InvalidConfiguration, UnsupportedModel
from sojourn_runtime.model.packing import gate_up_rows, panels
from sojourn_runtime.model.protocol import DeviceKv, Interrupted, Runner, Segment
from sojourn_runtime.model.runner import make_runner
from sojourn_runtime.model.weights import Weights
from sojourn_runtime.mover import Mover

pytest.importorskip("torch")
from sojourn_runtime.model.cuda.inputs import gather
from sojourn_runtime.model.cuda.steady import steady

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]  # an interpreter takes its time
NewRunner = Callable[..., Any]


def test_blocks_move_between_the_tiers_whole(new_runner: NewRunner) -> None:
    runner = new_runner()
    spilt: dict[bytes, bytes] = {}

    def read(name: Name, buffer: memoryview) -> None:
        buffer[:] = bytes([name[0]]) * len(buffer)

    def spill(name: Name, data: memoryview) -> bool:
        spilt[name] = bytes(data)
        return True

    assert isinstance(runner.pool, DeviceKv)
    mover = Mover(runner.kv, slots=2, read=read, spill=spill)
    lost = mover.carry_out(
        [
            Load(b"a", 1),
            Load(b"b", 2),
            Stash(1, 0),
            Copy(2, 1),
            Fetch(0, 5),
            Stash(5, 1),
            Spill(b"x", 1),
            Fetch(1, 6),
        ]
    )
    mover.settle()
    assert not lost.blocks
    assert not lost.slots
    assert [set(runner.kv[block]) for block in (1, 2, 5, 6)] == [{98}, {98}, {97}, {97}]
    assert [set(slot) for slot in mover.host] == [{97}, {97}]
    assert set(spilt[b"x"]) == {97}
    mover.begin([Ahead(b"c", 0)])
    mover.close()
    assert set(mover.host[0]) in ({97}, {99})  # a reader that had not begun is cancelled


def test_a_block_that_left_and_came_back_serves_as_before(
    new_runner: NewRunner, tokens: list[int]
) -> None:
    runner = new_runner()
    mover = Mover(runner.kv, slots=1, read=lambda *_: None, spill=lambda *_: True)
    runner.forward([Segment(tokens[:64], 0, (0,), "none")])
    expected = runner.forward([Segment([5], 64, (0, 1))])
    mover.carry_out([Stash(0, 0), Fetch(0, 7)])
    assert runner.forward([Segment([5], 64, (7, 2))]).tobytes() == expected.tobytes()
    mover.close()


class Wavering:
    """A runner whose rows depend on how many there are."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.config, self.kv = inner.config, inner.kv

    def forward(self, segments: Sequence[Segment], **_: Any) -> npt.NDArray[np.float32]:
        logits = self._inner.forward(segments)
        assert not isinstance(logits, Interrupted)
        shifted: npt.NDArray[np.float32] = logits + np.float32(len(segments) > 1)
        return shifted


def test_the_check_at_the_start_tells_exact_rows_from_others(new_runner: NewRunner) -> None:
    runner = new_runner()
    assert steady(runner, (0, 1, 2, 3))
    wavering: Any = Wavering(runner)
    assert not steady(wavering, (0, 1, 2, 3))


def test_the_door_opens_it_over_converted_weights_close_to_the_exact_class_of_the_cpu(
    new_runner: NewRunner, tokens: list[int]
) -> None:
    weights = packed(new_runner(layers=2, vocab_size=96))
    found, exact = (
        make_runner(weights, device=device, num_blocks=4, threads=1) for device in ("cuda", "cpu")
    )
    segment = Segment(tokens[:20], 0, (3,), "all")
    mine, theirs = (logits_of(runner, segment) for runner in (found, exact))
    assert np.abs(mine - theirs).max() < 0.05 * np.abs(theirs).max()
    assert found.kernel_class != exact.kernel_class
    eager = make_runner(weights, device="eager", num_blocks=4, threads=1)
    weak = logits_of(eager, segment)
    assert np.abs(mine - weak).max() < 0.05 * np.abs(weak).max()
    with pytest.raises(InvalidConfiguration, match="cuda-eager"):
        make_runner(weights, device="tpu", num_blocks=4)
    windowed = replace(weights, config=replace(weights.config, windows=(8, 8)))
    with pytest.raises(UnsupportedModel, match="sliding window"):
        make_runner(windowed, device="cuda", num_blocks=4)


def packed(runner: Any) -> Weights:
    """The runner's weights as a converted file holds them."""
    inner, found = runner.config.inner, {}
    for name, tensor in runner.tensors.items():
        values = tensor.float().cpu().numpy()
        if name.endswith("gate_up"):
            values = gate_up_rows(values[:inner], values[inner:])
        found[name] = panels(values) if values.ndim == 2 else values
    tokenizer: Any = None
    return Weights(runner.config, "sha256:tiny", tokenizer, found)


def logits_of(runner: Runner, segment: Segment) -> npt.NDArray[np.float32]:
    logits = runner.forward([segment])
    assert not isinstance(logits, Interrupted)
    return logits


def test_inputs_lie_aligned_and_in_groups_that_fit(new_runner: NewRunner) -> None:
    config = new_runner().config
    segments = [Segment([1] * 40, 500, range(9)), Segment([2], 0, [3]), Segment([3], 64, [4, 5, 6])]
    inputs = gather(segments, config, 9, tile_rows=16, split_tokens=512, group_rows=64)
    assert all(place.start % 4 == 0 for place in inputs.shape.places)
    assert inputs.splits == 2
    assert [(g.first_tile, g.tiles, g.first_row, g.rows) for g in inputs.groups] == [
        (0, 2, 0, 32),
        (2, 3, 32, 10),
    ]
    assert inputs.shape.blocks == 9 + 1 + 2  # what is behind the last token is left out


def test_every_kernel_compiles_for_hopper_and_products_use_its_tensor_cores(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("compiling.py"))],
        env={**environment, "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [line.split()[1:] for line in done.stdout.splitlines()]
    assert len(lines) == 12
    grouped = {name for name, groups in lines if groups == "True"}
    assert grouped == {"linear", "attend"}
