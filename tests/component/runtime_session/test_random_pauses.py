"""200 pauses at random moments, over the real kernels: text and KV are those of each request alone.

The seed in a test's name repeats what was drawn (see `randomplay`).
"""

import random
import shutil
from pathlib import Path

import pytest
from kernelrig import CONTEXT, KernelRig, Kernels, opened
from randomplay import Play
from sessionrig import events
from sojourn_runtime.engine.prefix import BLOCK
from sojourn_runtime.engine.request import Request
from sojourn_runtime.stream import TokenEvent

PLAYS = [
    ("bf16", 1, 60, 1),
    ("w8a16", 1, 60, 2),
    ("w8a8", 1, 55, 3),
    pytest.param("bf16", 2, 25, 4, marks=pytest.mark.torch),
]


async def alone(
    request: Request, kernels: Kernels, folder: Path
) -> tuple[list[TokenEvent], dict[bytes, int]]:
    """What is said, and the KV saved at last, if nothing happens: one request in one process, its
    prompt in one pass.
    """
    rig = KernelRig(
        folder,
        weights=kernels.weights,
        computes=kernels.runners[0],
        blocks=CONTEXT // BLOCK,
        prefill=CONTEXT,
        checkpoint_tokens=1 << 16,
    )
    rig.start()
    found = await events(rig.session.submit(request))
    rig.pause()
    kv = rig.saved()
    shutil.rmtree(folder)
    return found, kv


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("kind", "shards", "pauses", "seed"), PLAYS)
async def test_random_pauses_and_kills_change_no_token_and_no_block(
    tmp_path: Path, kind: str, shards: int, pauses: int, seed: int
) -> None:
    if shards > 1:
        pytest.importorskip("torch", reason="needs torch (installed by `make torch`)")
    with opened(tmp_path, kind=kind, shards=shards) as kernels:
        rig = KernelRig(
            tmp_path / "store", weights=kernels.weights, computes=kernels.runners[0], tier=1
        )
        dice = random.Random(seed)  # noqa: S311 - moments, no secrets
        play = Play(rig, kernels, dice=dice, pauses=pauses)
        await play.run()
        expected: dict[bytes, int] = {}
        for client in play.clients:
            found, kv = await alone(client.request, kernels, tmp_path / "alone")
            assert client.found == found, client.request.id
            assert all(expected.setdefault(name, digest) == digest for name, digest in kv.items())
        saved = rig.saved()
    for kv in (play.kv, saved):
        assert [name.hex() for name, digest in kv.items() if expected.get(name) != digest] == []
    _check_play(play, pauses=pauses, shards=shards)
    assert len(saved) > pauses


def _check_play(play: Play, *, pauses: int, shards: int) -> None:
    """It really had what it is for."""
    seen, batches = play.seen, play.batches
    assert seen["pauses"] == pauses
    assert min(seen["kills"], seen["recomputed"], seen["in crowd"]) > 0
    assert min(seen["in prefill"], seen["in decode"]) > pauses // 10
    assert seen["decode beside prefill"] > pauses // 2
    assert min(batches[change] for change in ((1, 2), (2, 1), (32, 33), (33, 32))) > 0
    assert min(seen["stash"], seen["fetch"], seen["load"], seen["ahead"]) > pauses // 20
    assert seen["digests"] > 5 * pauses
    assert (seen["ShardedRunner"] > pauses) is (shards > 1)
