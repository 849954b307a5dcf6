"""A session over a toy model, for tests: everything is real but the hardware.

The toy's logits depend on what its KV blocks hold, read through the block table, so that a block
lost, misplaced or torn changes the text. Tokens are bytes below 64, which keeps texts readable.
"""

import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from sojourn_runtime.engine.prefix import BLOCK
from sojourn_runtime.engine.request import Request, SamplingParams
from sojourn_runtime.model.protocol import INTERRUPTED, Interrupted, Logits, Segment, StopFlag
from sojourn_runtime.session import Config, Ending, Session
from sojourn_runtime.stream import Stream, StreamClosed, TokenEvent
from sojourn_runtime.worker import Model

VOCABULARY = 64
SLOT = 8
"""Bytes of KV per token."""
U64: TypeAlias = np.uint64


def mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Splitmix64's finaliser: every bit depends on every bit."""
    values = (values ^ (values >> U64(30))) * U64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> U64(27))) * U64(0x94D049BB133111EB)
    return values ^ (values >> U64(31))


class ToyRunner:
    """Implements what `worker.Computes` asks. `before` is called in front of each forward pass."""

    def __init__(
        self,
        blocks: int,
        *,
        kernel_class: str = "toy-v1",
        row_exact: bool = True,
        weights_digest: str = "sha256:toy",
        padding: int = 0,
    ) -> None:
        """`padding` makes blocks as large as a real model's, in bytes per token."""
        self.kernel_class = kernel_class
        self.row_exact = row_exact
        self.weights_digest = weights_digest
        self.block_bytes = BLOCK * (SLOT + padding)
        self.kv = np.full((blocks, self.block_bytes), 0xA5, np.uint8)
        self.before: Callable[[Sequence[Segment]], None] = lambda _: None
        self.computed = 0

    def forward(
        self, segments: Sequence[Segment], *, stop: StopFlag | None = None
    ) -> Logits | Interrupted:
        self.before(segments)
        rows = [self._segment(segment) for segment in segments]
        if stop is not None and stop.wanted():
            for segment in segments:  # what an interrupted pass leaves counts as unwritten
                for position in range(segment.start, segment.start + len(segment.tokens)):
                    self._slot(segment, position)[:] = 0xEE
            return INTERRUPTED
        self.computed += sum(len(segment.tokens) for segment in segments)
        wanted = [
            row for row, segment in zip(rows, segments, strict=True) if segment.logits == "last"
        ]
        return np.array(wanted, np.float32).reshape(len(wanted), VOCABULARY)

    def _segment(self, segment: Segment) -> npt.NDArray[np.float32]:
        with np.errstate(over="ignore"):
            for position, token in enumerate(segment.tokens, start=segment.start):
                key = np.array([int(token) * 1_000_003 + position + 1], U64)
                self._slot(segment, position)[:] = mixed(key).view(np.uint8)
            end = segment.start + len(segment.tokens)
            slots = np.array([self._slot(segment, p).view(U64)[0] for p in range(end)], U64)
            places: npt.NDArray[np.uint64] = np.arange(end, dtype=U64)
            mixture = mixed(slots + places)
            state = U64(np.bitwise_xor.reduce(mixture))
            tokens: npt.NDArray[np.uint64] = np.arange(VOCABULARY, dtype=U64)
            noise = mixed((tokens * U64(0x9E3779B97F4A7C15) + state).astype(U64))
        logits: npt.NDArray[np.float32] = (noise >> U64(40)).astype(np.float32) / np.float32(2**21)
        return logits

    def _slot(self, segment: Segment, position: int) -> npt.NDArray[np.uint8]:
        block = self.kv[segment.blocks[position // BLOCK]]
        start = (position % BLOCK) * SLOT
        slot: npt.NDArray[np.uint8] = block[start : start + SLOT]
        return slot


class LateKv(npt.NDArray[np.uint8]):
    """Implements `DeviceKv` as lazily as it may: what goes to the host arrives at `settle`."""

    def host(self, slots: int) -> npt.NDArray[np.uint8]:
        self.late: dict[int, npt.NDArray[np.uint8]] = {}
        self.slots = np.zeros((slots, self.shape[1]), np.uint8)
        return self.slots

    def stash(self, block: int, slot: int) -> None:
        self.late[slot] = np.array(self[block])

    def fetch(self, slot: int, block: int) -> None:
        self[block] = self.late.get(slot, self.slots[slot])

    def copy(self, source: int, target: int) -> None:  # type: ignore[override]
        self[target] = self[source]

    def settle(self) -> None:
        for slot, content in self.late.items():
            self.slots[slot] = content
        self.late.clear()


class LateToy(ToyRunner):
    """A toy on a device: a pass that is interrupted leaves copies to the host under way."""

    def __init__(self, blocks: int, **how: Any) -> None:
        super().__init__(blocks, **how)
        self.kv = self.late = self.kv.view(LateKv)

    def forward(
        self, segments: Sequence[Segment], *, stop: StopFlag | None = None
    ) -> Logits | Interrupted:
        found = super().forward(segments, stop=stop)
        if found is not INTERRUPTED:
            self.late.settle()
        return found


class Turnstile:
    """Lets the engine pass up to a position, where it stands in front of its forward pass."""

    def __init__(self, runner: ToyRunner) -> None:
        self._at: int | None = None
        self._stands = threading.Event()
        self._go = threading.Event()
        runner.before = self._before

    def hold(self, at: int) -> None:
        """Stand before the step that computes token `at` of some request."""
        self._at = at
        self._stands.clear()
        self._go.clear()

    def wait(self) -> None:
        assert self._stands.wait(30)

    def go(self) -> None:
        """On without a stop."""
        self._at = None
        self._go.set()

    def pass_on(self, at: int) -> None:
        """On to the next stop."""
        self._at = at
        self._stands.clear()
        go, self._go = self._go, threading.Event()
        go.set()

    def _before(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            if self._at is not None and segment.start + len(segment.tokens) > self._at:
                go = self._go  # before the word is out: `pass_on` puts another in its place
                self._stands.set()
                go.wait()
                return


@dataclass(frozen=True)
class Choice:
    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


def sample(logits: npt.NDArray[np.float32], params: SamplingParams, **how: Any) -> Choice:
    """Greedy, or Gumbel-max with noise from (seed, choice, position)."""
    if params.temperature > 0:
        seed = np.random.SeedSequence([params.seed or 0, params.choice, how["position"]])
        uniform = np.random.Generator(np.random.Philox(seed)).random(len(logits))
        logits = logits / np.float32(params.temperature) - np.log(-np.log(uniform))
    token = int(np.argmax(logits))
    if params.logprobs is None:
        return Choice(token)
    return Choice(token, float(logits[token]), ((token, float(logits[token])),))


class Letters:
    """One letter per token; the decoder and the tokenizer in one."""

    vocab_size = VOCABULARY

    def push(self, token: int, /) -> str:
        return chr(48 + token)

    def flush(self) -> str:
        return ""


@dataclass
class Rig:
    """Starts sessions on one folder, one after the other, as pods do."""

    folder: Path
    uri: str = ""
    """The store, unless it is the folder itself."""
    blocks: int = 32
    checkpoint_tokens: int = 256
    eos: frozenset[int] = frozenset()
    context_length: int = 1024
    kernel_class: str = "toy-v1"
    row_exact: bool = True
    weights_digest: str = "sha256:toy"
    padding: int = 0
    tier: int = 0
    grace_seconds: float = 300
    epoch: int | None = None
    slots: int = 8
    host: int = 0
    """Blocks of host memory."""
    prefill: int = 256
    arbiter: Path = Path("/nowhere")
    granted: tuple[int, ...] = ()
    expect_manifest: str = ""
    owner: str = ""
    stall_seconds: float = 10.0
    patience_seconds: float = 2.0
    toy: type[ToyRunner] = ToyRunner
    runner: ToyRunner = field(init=False)
    session: Session = field(init=False)
    ending: Ending | None = None
    cut_off: dict[str, Any] = field(default_factory=dict)
    """What a kill would leave as the last word of a pause that takes long."""
    _over: threading.Event = field(default_factory=threading.Event)
    _begun: threading.Event = field(default_factory=threading.Event)
    """It serves, or it has ended before."""

    def start(self, *, gate: threading.Event | None = None, wait: bool = True) -> Session:
        """A new session on the folder; `gate` keeps the model from opening."""
        model = self.model()
        self.ending = None
        self._over.clear()
        self._begun.clear()
        config = Config(
            name="toy",
            model_name="toy",
            store=self.uri or self.folder.as_uri(),
            epoch=self.epoch,
            tier=self.tier,
            checkpoint_tokens=self.checkpoint_tokens,
            slots=self.slots,
            prefill=self.prefill,
            host_bytes=self.host * model.runner.block_bytes,
            grace_seconds=self.grace_seconds,
            arbiter=self.arbiter,
            granted=self.granted,
            owner=self.owner,
            expect_manifest=self.expect_manifest,
            stall_seconds=self.stall_seconds,
            patience_seconds=self.patience_seconds,
        )

        def open_model() -> Model:
            if gate is not None:
                gate.wait()
            return model

        self.session = Session(
            config,
            open_model=open_model,
            ended=self._ended,
            serving=self._begun.set,
            overdue=self.cut_off.update,
        )
        self.session.start()
        if wait:
            self._begun.wait()
            assert not self._failed(), self.ending
        return self.session

    def model(self) -> Model:
        """What the next start opens."""
        self.runner = self.toy(
            self.blocks,
            kernel_class=self.kernel_class,
            row_exact=self.row_exact,
            weights_digest=self.weights_digest,
            padding=self.padding,
        )
        return Model(
            runner=self.runner,
            tokenizer=Letters(),
            decoder=Letters,
            sample=sample,
            eos=self.eos,
            context_length=self.context_length,
        )

    def until(self, condition: Callable[[], Any]) -> None:
        """Wait for what other threads bring about."""
        deadline = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def _failed(self) -> bool:
        return self.ending is not None and not self.ending.paused

    def _ended(self, ending: Ending) -> None:
        self.ending = ending
        self._over.set()
        self._begun.set()

    def killed(self, copy: Path) -> None:
        """Copy what a kill would leave, while the engine stands and the saver has come to rest."""
        assert self.session._opened is not None
        rest = threading.Event()
        jobs = self.session._opened.keeper.saver._jobs
        jobs.put(lambda: jobs.put(rest.set))  # behind what the jobs before it leave to do
        assert rest.wait(30)
        shutil.copytree(self.folder, copy)

    def pause(self) -> dict[str, Any]:
        """SIGTERM and its termination message."""
        self.session.pause()
        return self.end()

    def end(self, *, join: bool = True) -> dict[str, Any]:
        """The termination message of a session that ends by itself, and the end of its thread."""
        assert self._over.wait(30)
        if join:
            self.session.join(30)
        assert self.ending is not None
        return dict(self.ending.words)


def ask(
    name: str,
    *,
    prompt: Sequence[int] = (1, 2, 3),
    answer: int = 40,
    seed: int | None = None,
    **fields: Any,
) -> Request:
    """A request; greedy unless it has a seed."""
    params = SamplingParams(
        max_tokens=answer,
        temperature=0.0 if seed is None else 1.0,
        seed=seed,
        **{key: fields.pop(key) for key in ("stop", "logprobs") if key in fields},
    )
    return Request(id=name, prompt=tuple(prompt), params=params, **fields)


async def events(stream: Stream, *, after: int = -1) -> list[TokenEvent]:
    """All events behind a position, up to the finish or the pause."""
    reader = stream.reader(after=after, lead=None)
    found = []
    try:
        async for event in reader:
            found.append(event)  # noqa: PERF401 - what came before the end counts
    except StreamClosed:
        pass
    finally:
        reader.close()
    return found


async def until(stream: Stream, count: int) -> list[TokenEvent]:
    """The first `count` events."""
    reader = stream.reader(lead=None)
    found = [await anext(reader) for _ in range(count)]
    reader.close()
    return found


def text(found: Sequence[TokenEvent]) -> str:
    return "".join(event.text for event in found)
