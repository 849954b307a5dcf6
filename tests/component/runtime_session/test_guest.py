"""Another engine in a session's pod: it yields, is paused, and goes on where it stood."""

import importlib.util
import json
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sojourn_api.arbiter import Tier, bump, create_grant, create_index
from sojourn_api.arbiter_page import Page
from sojourn_runtime.guest import Guest, Next

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "transformers_session.py"


@pytest.fixture
def signals() -> Iterator[None]:
    """The handlers as they were, whatever a guest installs."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def guest(tmp_path: Path, **settings: Any) -> Guest:
    chosen: dict[str, Any] = {"session": "one", "priority": 500, "arbiter": tmp_path / "none"}
    return Guest(termination=tmp_path / "last", **(chosen | settings))


@pytest.mark.usefixtures("signals")
def test_a_checkpoint_is_due_every_so_many_tokens(tmp_path: Path) -> None:
    made = guest(tmp_path, checkpoint_tokens=3)
    said = [made.boundary() for _ in range(7)]
    assert [number for number, each in enumerate(said) if each is Next.CHECKPOINT] == [2, 5]


@pytest.mark.usefixtures("signals")
def test_sigterm_is_a_pause_with_a_last_word(tmp_path: Path) -> None:
    made = guest(tmp_path)
    assert made.boundary() is Next.GO
    os.kill(os.getpid(), signal.SIGTERM)
    assert made.boundary() is Next.PAUSE
    made.paused({"uri": "file:///x", "tokens": 5}, exact=False, why="computed again")
    words = json.loads((tmp_path / "last").read_text())
    assert (words["reason"], words["snapshot"]["tokens"]) == ("Paused", 5)
    assert (words["exact"], words["exactReason"]) == (False, "computed again")


@pytest.mark.usefixtures("signals")
def test_it_stands_still_while_a_higher_tier_computes(tmp_path: Path) -> None:
    grants = tmp_path / "grants"
    index = create_index(grants)
    own = {
        name: create_grant(grants, str(slot), Tier(priority=priority))
        for slot, (name, priority) in enumerate((("gold", 1000), ("silver", 500)))
    }
    mounts = tmp_path / "mounts" / "gpu-0"
    mounts.mkdir(parents=True)
    (mounts / "own").symlink_to(own["silver"])
    (mounts / "all").symlink_to(grants)
    bump(index)
    gold = Page(own["gold"])
    made = guest(tmp_path, arbiter=tmp_path / "mounts", granted=(0,))
    passed = threading.Event()

    def play() -> None:
        with made.request():
            made.boundary()
            passed.set()

    gold.raise_flag()
    player = threading.Thread(target=play)
    player.start()
    assert not passed.wait(0.1)
    gold.lower_flag()
    assert passed.wait(10)
    player.join()
    assert made.yielded > 0
    gold.close()


@pytest.fixture
def example() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("transformers_session", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.mark.usefixtures("signals")
@pytest.mark.filterwarnings("ignore::FutureWarning")  # the cache has a newer name
@pytest.mark.timeout(400)  # the imports alone take a busy machine two minutes
def test_transformers_go_on_exactly_after_a_pause(
    tmp_path: Path, transformers: Any, example: ModuleType
) -> None:
    torch = pytest.importorskip("torch", reason="needs torch (installed by `make torch`)")
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    whole = example.Generation(model, [1, 2, 3], seed=7)
    assert example.run(guest(tmp_path), whole, tmp_path / "whole", tokens=90)
    text = example.Generation(model, [1, 2, 3], seed=7)
    for stop in (20, 47):
        stopped = guest(tmp_path)
        assert example.run(stopped, text, tmp_path / "store", tokens=stop)
        os.kill(os.getpid(), signal.SIGTERM)
        assert not example.run(stopped, text, tmp_path / "store", tokens=90)
        text = example.Generation.load(model, tmp_path / "store")
        assert len(text.ids) == stop
        assert text.cache.get_seq_length() == stop - 1  # nothing is computed again
    assert example.run(guest(tmp_path), text, tmp_path / "store", tokens=90)
    assert text.ids == whole.ids
