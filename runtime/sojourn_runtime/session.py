"""One session: its thread, its life from loading to pause, and the server's door to it.

The engine's thread opens the model, takes up what the store holds, and then steps until SIGTERM.
The server's calls (see `protocol`) change the context under the journal's lock and leave the rest
to the thread's queue. What a step is belongs to `worker`, what is saved to `keeper`.
"""

import logging
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from sojourn_api import names

from sojourn_runtime.account import Account, Opened, pool
from sojourn_runtime.context.errors import ContextError
from sojourn_runtime.context.journal import pack_event
from sojourn_runtime.context.open_store import open_store
from sojourn_runtime.context.snapshot import Identity, Loaded, load
from sojourn_runtime.context.state import Context, Document, Kept, document
from sojourn_runtime.context.store import Store
from sojourn_runtime.detokenize import TextStream
from sojourn_runtime.engine.prefix import BLOCK
from sojourn_runtime.engine.request import Finish, Request
from sojourn_runtime.engine.scheduler import Limits, Scheduler
from sojourn_runtime.hooks import ArbiterUnavailable, open_arbiter
from sojourn_runtime.keeper import Keeper, Policy
from sojourn_runtime.model.errors import ModelError
from sojourn_runtime.model.protocol import StopFlag
from sojourn_runtime.mover import Mover
from sojourn_runtime.protocol import STALLED, Json, Refused
from sojourn_runtime.pulse import STALL_SECONDS, STORE, Pulse
from sojourn_runtime.stats import Stats
from sojourn_runtime.stream import Stream
from sojourn_runtime.worker import Model, Worker

log = logging.getLogger(__name__)

Phase = Literal["Loading", "Restoring", "Serving", "Pausing"]

QUEUE: Final = 1024
"""Requests that may wait; the next one is told to come back."""
GRACE_SECONDS: Final = 300.0
"""How long a restored request that is not in the background runs on without a reader."""
HELD_SECONDS: Final = 0.02
"""Between looks at readers when all requests wait for theirs."""
PATIENCE_SECONDS: Final = 2.0
"""A pause that takes longer says what is not saved, again and again: it may be killed any time."""
IDLE_SECONDS: Final = 1.0
"""Without work for so long, the session saves what is unsaved: then a pause has little to do."""


@dataclass(frozen=True, slots=True)
class Config:
    """What a session is started with."""

    name: str
    model_name: str
    store: str
    epoch: int | None = None
    """None: the start after the last one that the store knows."""
    owner: str = ""
    """Which of all sessions of its name it is: what an earlier one left is cleared away."""
    expect_manifest: str = ""
    """The last commit that others know of: a store without it, or a later one, is not this one's.
    """
    tier: int = 0
    """The tier's priority: no request rises above it."""
    checkpoint_tokens: int = 256
    slots: int = 32
    prefill: int = 256
    host_bytes: int = 0
    """Memory of the host tier, between the device's blocks and the store."""
    store_bytes: int = 1 << 30
    grace_seconds: float = GRACE_SECONDS
    stall_seconds: float = STALL_SECONDS
    patience_seconds: float = PATIENCE_SECONDS
    arbiter: Path = Path(names.ARBITER_DIR)
    """Where the device plugin has mounted the pages of the GPUs granted."""
    granted: tuple[int, ...] = ()
    """Ordinals of these GPUs."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a session ended; `words` is the termination message."""

    paused: bool
    words: Mapping[str, Any]


class Session:
    """Implements `protocol.SessionPort` and what `server.port` asks beside it."""

    def __init__(
        self,
        config: Config,
        *,
        open_model: Callable[[], Model],
        ended: Callable[[Ending], None],
        serving: Callable[[], None] = lambda: None,
        overdue: Callable[[Mapping[str, Any]], None] = lambda _: None,
    ) -> None:
        """`serving` is called in the engine's thread; `ended` once, in that one or, where that one
        cannot be waited for, in another.

        `overdue` gets the termination message of a pause that were cut off now, from a thread of
        its own, and never after `ended`.
        """
        self.config = config
        self.model_name = config.model_name
        self.created = int(time.time())
        self.context_length = 0
        """Known when the model is open."""
        self.stats = Stats()
        self._open_model = open_model
        self._ended = ended
        self._serving = serving
        self._overdue = overdue
        self._pulse = Pulse(limit=config.stall_seconds)
        self._phase: Phase = "Loading"
        self._opened: Opened | None = None
        self._loaded: Loaded | None = None
        self._commands: queue.SimpleQueue[Callable[[Worker], None] | None] = queue.SimpleQueue()
        self._streams: dict[str, Stream] = {}
        self._restored: tuple[Stream, ...] = ()
        self._orphans: list[Stream] = []
        """Those of them whose clients must come back."""
        self._stop = StopFlag()
        self._pause_at: float | None = None
        self._settled = threading.Lock()
        self._over = threading.Event()
        self._asked: queue.SimpleQueue[None] = queue.SimpleQueue()
        """Wakes who looks after a pause; safe in a signal handler."""
        self._touched = time.monotonic()
        self._ready_at = time.monotonic()
        self._resumed: dict[str, Any] | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    # -- life --

    def start(self) -> None:
        """Open the model and go on, in a thread."""
        self.stats.reached("listeningMs")
        self._thread.start()
        threading.Thread(target=self._look_after_pause, name="overdue", daemon=True).start()

    def pause(self) -> None:
        """Stop at the next boundary and save; safe in a signal handler, twice as good as once."""
        if self._pause_at is not None:
            return
        self._pause_at = time.perf_counter()
        self._stop.set()
        self._commands.put(None)
        self._asked.put(None)
        if self._phase == "Loading":
            threading.Thread(target=self._pause_unopened, name="pause", daemon=True).start()

    def join(self, timeout: float | None = None) -> None:
        """Wait for the engine's thread."""
        self._thread.join(timeout)

    def _run(self) -> None:
        try:
            model = self._open_model()
            self.context_length = model.context_length
            self._phase = "Restoring"
            self.stats.reached("loadedMs")
            begin = time.perf_counter()
            model.watch(self._lost)
            worker = self._restore(model)
            self._loop(worker, begin)
            self._end(self._save(worker))
            worker.mover.close()  # told first: what is left is tidying
            worker.keeper.close()
        except (ContextError, ModelError, ArbiterUnavailable) as error:
            self._end(self._failed(error.reason, str(error), retry=error.retry, cause=error))
        except Exception as error:
            log.exception("the engine failed")
            message = f"session {self.config.name}: {type(error).__name__}: {error}; see the log"
            self._end(self._failed("Crashed", message, retry=True, cause=error))

    def _lost(self, error: ModelError) -> None:
        """The engine's thread may hang on it, so it is not asked."""
        if not self._over.is_set():  # else its streams have ended with the words of the end
            self._end(self._failed(error.reason, str(error), retry=error.retry))

    def _restore(self, model: Model) -> Worker:
        """Claim the store, take up its context, queue the requests that ran."""
        self._pulse.works(STORE)
        runner = model.runner
        store = open_store(self.config.store)
        identity = Identity(
            runner.weights_digest,
            runner.kernel_class,
            runner.block_bytes,
            runner.row_exact,
        )
        policy = Policy(self.config.checkpoint_tokens, self.config.store_bytes)
        limits = Limits(
            blocks=len(runner.kv),
            slots=self.config.slots,
            prefill=min(self.config.prefill, policy.chunk),
            decode=self.config.slots,
            host=self.config.host_bytes // runner.block_bytes,
        )
        scheduler = Scheduler(limits)
        arbiter = open_arbiter(
            self.config.arbiter, granted=self.config.granted, priority=self.config.tier
        )
        keeper = self._keeper(store, identity, policy)
        arbiter.tells(lambda: pool(scheduler, runner.block_bytes))
        keeper.known(scheduler.index)
        mover = Mover(
            runner.kv,
            slots=limits.host,
            read=keeper.read,
            spill=lambda name, data: _spill(scheduler, keeper, name, data),
            wake=lambda: self._commands.put(None),
        )
        keeper.host = mover.host
        worker = Worker(
            model=model,
            scheduler=scheduler,
            keeper=keeper,
            mover=mover,
            arbiter=arbiter,
            stop=self._stop,
            tier=self.config.tier,
            stats=self.stats,
            pulse=self._pulse,
        )
        for kept in keeper.context.requests.values():
            self._take_up(worker, kept)
        self._restored = tuple(self._streams.values())
        self._orphans = [s for s in self._restored if not s.request.background and not s.done]
        self._opened = Opened(worker, keeper, model)
        return worker

    def _keeper(self, store: Store, identity: Identity, policy: Policy) -> Keeper:
        loaded = self._loaded = self._load(store)
        for note in loaded.notes:
            log.warning("%s; fell back to %s", note, loaded.base)
        return Keeper(
            store,
            loaded,
            session=self.config.name,
            identity=identity,
            owner=self.config.owner,
            epoch=self.config.epoch,
            policy=policy,
            moves=self._pulse.moves,
        )

    def _load(self, store: Store) -> Loaded:
        return load(store, expected=self.config.expect_manifest, owner=self.config.owner)

    def _take_up(self, worker: Worker, kept: Kept) -> None:
        stream = self._streams[kept.request.id] = Stream(kept.request)
        worker.begin(kept, stream, asked_at=time.perf_counter())
        stream.started = bool(kept.output)  # what was cached then is not known any more
        if kept.finish is Finish.NONE:
            total = len(kept.request.prompt) + len(kept.output)
            worker.resumed[kept.request.id] = total - 1 if kept.output else kept.computed

    def _loop(self, worker: Worker, begin: float) -> None:
        waiting_since = time.monotonic()
        tokens = sum(output.progress.total for output in worker.outputs.values())
        restoring = True
        while self._pause_at is None:
            self._take_commands(worker, timeout=0.0)
            self._abandon()
            self._pulse.rests()
            worker.arbiter.wait(unless=lambda: self._pause_at is not None)
            busy = worker.step()
            if restoring:
                restoring = False
                self._serve(tokens=tokens, seconds=time.perf_counter() - begin)
            if busy:
                waiting_since = time.monotonic()
                self._touched = waiting_since
                continue
            worker.idle()
            if time.monotonic() - waiting_since > IDLE_SECONDS:
                self._save_idle(worker)
            self._pulse.rests()
            self._take_commands(worker, timeout=self._patience(worker))

    def _save_idle(self, worker: Worker) -> None:
        keeper = worker.keeper
        if keeper.unsaved and not keeper.saver.busy:
            self._pulse.works(STORE)
            keeper.checkpoint(worker.scheduler, worker.model.runner.kv, tails=True)

    def _serve(self, *, tokens: int, seconds: float) -> None:
        if tokens:
            self._resumed = {"tokens": tokens, "restoreMs": _ms(seconds)}
        self._ready_at = time.monotonic()
        self.stats.reached("servingMs")
        if self._pause_at is None:
            self._phase = "Serving"
            self._serving()

    def _patience(self, worker: Worker) -> float | None:
        """How long to wait for a command; None: until one comes."""
        if worker.outputs:
            return HELD_SECONDS
        if worker.keeper.unsaved or self._orphans:
            return IDLE_SECONDS
        return None

    def _take_commands(self, worker: Worker, *, timeout: float | None) -> None:
        """All commands there are; waits for the first one up to `timeout`."""
        try:
            while True:
                command = self._commands.get(block=timeout != 0.0, timeout=timeout)
                timeout = 0.0
                if command is not None:
                    command(worker)
        except queue.Empty:
            return

    def _abandon(self) -> None:
        """Give up restored requests that nobody came back for."""
        if self._orphans and time.monotonic() - self._ready_at > self.config.grace_seconds:
            for stream in self._orphans:
                if not stream.followed:
                    self.release(stream.request.id)
            self._orphans = []

    # -- the end --

    def _save(self, worker: Worker) -> Ending:
        stopped = time.perf_counter()
        self._phase = "Pausing"
        for stream in tuple(self._streams.values()):
            if not stream.done:
                stream.close("Pausing")
        self._pulse.works(STORE)
        running = len(worker.outputs)
        synced = worker.keeper.sync_seconds
        worker.keeper.save(worker.scheduler, worker.model.runner.kv)
        saved = time.perf_counter()
        times = {
            "stopMs": _ms(stopped - (self._pause_at or stopped)),
            "saveMs": _ms(saved - stopped),
            "syncMs": _ms(worker.keeper.sync_seconds - synced),
        }
        worker.arbiter.close()
        return Ending(paused=True, words=self._account.paused(requests=running, times=times))

    def _failed(
        self, reason: str, message: str, *, retry: bool, cause: Exception | None = None
    ) -> Ending:
        for stream in tuple(self._streams.values()):
            if not stream.done:
                stream.close("Failed", cause)
        return Ending(paused=False, words=self._account.failed(reason, message, retry=retry))

    def _pause_unopened(self) -> None:
        """SIGTERM before there was anything to save: the store is left as it is."""
        try:
            loaded = self._load(open_store(self.config.store))
        except ContextError as error:
            self._end(self._failed(error.reason, str(error), retry=error.retry))
            return
        if self._opened is None:
            times = {"stopMs": 0.0, "saveMs": 0.0, "syncMs": 0.0}
            found = Account(self.config.name, self.config.store, loaded, opened=None)
            self._end(Ending(paused=True, words=found.paused(requests=0, times=times)))

    def _end(self, ending: Ending) -> None:
        with self._settled:
            if self._over.is_set():
                return
            self._over.set()
        self._asked.put(None)
        self._phase = "Pausing"
        self._ended(ending)

    def _look_after_pause(self) -> None:
        """Say what is not saved while a pause takes long: SIGKILL leaves no time for words."""
        self._asked.get()
        begin = time.monotonic()
        while not self._over.wait(self.config.patience_seconds):
            with self._settled:
                if not self._over.is_set():
                    seconds = time.monotonic() - begin
                    words = self._account.cut_off(at=self._pulse.at or STORE, seconds=seconds)
                    log.warning("%s", words["message"])
                    self._overdue(words)

    # -- the server's door --

    @property
    def ready(self) -> str:
        reason = self._reason()
        return "" if reason == "Serving" else reason

    def _reason(self) -> str:
        if self._pause_at is not None:
            return "Pausing"
        return STALLED if self.stalled else self._phase

    @property
    def stalled(self) -> str:
        return self._pulse.stalled

    @property
    def pausing(self) -> bool:
        return self._pause_at is not None

    @property
    def tokenizer(self) -> Any:
        return self._now().model.tokenizer

    def _now(self) -> Opened:
        if self._opened is None:
            raise Refused(self._reason(), "The session is not ready yet.", retry=True)
        return self._opened

    @property
    def _context(self) -> Context:
        return self._now().keeper.context

    def submit(self, request: Request) -> Stream:
        if reason := self.ready:
            raise Refused(reason, f"The session does not answer ({reason.lower()}).", retry=True)
        opened = self._now()
        request = self._checked(request, opened)
        stream = Stream(request)
        with opened.keeper.journal.lock:
            if request.id in self._streams:
                raise Refused("DuplicateRequest", f"{request.id} exists.", retry=False)
            kept = self._context.add(request)
            try:
                opened.keeper.journal.append(pack_event(self._context.event(kept)))
            except ContextError:
                self._context.release(request.id)
                raise
            self._streams[request.id] = stream
        self._touched = time.monotonic()
        asked_at = time.perf_counter()
        self._commands.put(lambda worker: worker.begin(kept, stream, asked_at=asked_at))
        return stream

    def _checked(self, request: Request, opened: Opened) -> Request:
        params = request.params
        if not request.prompt or params.max_tokens < 1:
            raise Refused("Empty", "A prompt and max_tokens need at least one token.", retry=False)
        if len(request.prompt) >= self.context_length:
            message = (
                f"The prompt has {len(request.prompt)} tokens, the context {self.context_length}: "
                "no room is left for an answer."
            )
            raise Refused("ContextTooLong", message, retry=False)
        if params.grammar and opened.model.grammars is None:
            raise Refused("UnsupportedParameter", "There are no grammars here.", retry=False)
        # also those that the engine has not begun yet, since it computes a long step
        if sum(not stream.done for stream in tuple(self._streams.values())) >= QUEUE:
            raise Refused("Busy", f"{QUEUE} requests wait already.", retry=True)
        if params.seed is None:
            params = replace(params, seed=secrets.randbits(63))
        return replace(request, params=params)

    def check_grammar(self, text: str) -> None:
        """ValueError if a structured output of this form cannot be had; Refused if none can."""
        grammars = self._now().model.grammars
        if grammars is None:
            raise Refused("UnsupportedParameter", "structured output", retry=False)
        grammars.check(text)

    def cancel(self, request_id: str) -> None:
        stream = self._streams.get(request_id)
        if stream is None or stream.done:
            return
        journal = self._now().keeper.journal
        with journal.lock:
            journal.append(pack_event({"kind": "cancel", "id": request_id}))
            self._context.cancel(request_id)
        self._commands.put(lambda worker: self._cancelled(worker, stream))

    def _cancelled(self, worker: Worker, stream: Stream) -> None:
        worker.end(stream.request.id)
        if not stream.done:
            stream.close("Cancelled")

    def release(self, request_id: str) -> None:
        if request_id not in self._streams:
            return
        self.cancel(request_id)
        opened = self._now()
        with opened.keeper.journal.lock:
            opened.keeper.journal.append(pack_event({"kind": "release", "id": request_id}))
            self._streams.pop(request_id, None)
            self._context.release(request_id)

    def stream(self, request_id: str) -> Stream | None:
        return self._streams.get(request_id)

    def restored(self) -> Sequence[Stream]:
        return self._restored

    def put_document(self, kind: str, document_id: str, value: Json) -> None:
        opened = self._now()
        encoded = document(value)
        event = {"kind": "put", "type": kind, "id": document_id, "value": value}
        with opened.keeper.journal.lock:
            opened.keeper.journal.append(pack_event(event))
            self._context.put(kind, document_id, encoded)
        self._commands.put(None)

    def delete_document(self, kind: str, document_id: str) -> None:
        opened = self._now()
        with opened.keeper.journal.lock:
            if document_id in self._context.documents.get(kind, {}):
                event = {"kind": "delete", "type": kind, "id": document_id}
                opened.keeper.journal.append(pack_event(event))
                self._context.delete(kind, document_id)

    def documents(self, kind: str) -> Mapping[str, Json]:
        return _Values(self._context.documents.setdefault(kind, {}) if self._opened else {})

    def texts(self, tokens: Sequence[int], /, *, finish: Finish) -> Sequence[str]:
        """The `text` of each position, as the events of these tokens had it (no stop strings)."""
        model = self._now().model
        text = TextStream(model.decoder())
        ends = len(tokens) - 1
        return [
            text.push(
                token,
                silent=position == ends and finish is Finish.STOP and token in model.eos,
                last=position == ends and finish is not Finish.NONE,
            )
            for position, token in enumerate(tokens)
        ]

    # -- what it is doing --

    @property
    def _account(self) -> Account:
        return Account(self.config.name, self.config.store, self._loaded, self._opened)

    def status(self) -> dict[str, Json]:
        opened, resumed = self._opened, self._resumed
        idle = 0.0 if opened and opened.worker.outputs else time.monotonic() - self._touched
        if resumed is not None and opened is not None:
            resumed = resumed | {"recomputedTokens": opened.worker.recomputed}
        return {
            "v": 1,
            "phase": "Pausing" if self.pausing else self._phase,
            "session": self.config.name,
            "epoch": opened.keeper.epoch if opened else self.config.epoch or 0,
            "model": self.model_name,
            "stalled": self.stalled,
            "idleSeconds": round(idle, 3),
            "resumed": resumed,
            **self._account.status(self.stats),
        }

    def gauges(self) -> Mapping[str, float]:
        found = self._account.gauges(self.stats)
        if self._resumed is not None:
            found["resumed_tokens"] = self._resumed["tokens"]
            found["resume_seconds"] = self._resumed["restoreMs"] / 1000
        return found

    def hand_over(self) -> tuple[Sequence[int], float]:
        return self.stats.handed_over, self.stats.hand_over_seconds


def _spill(scheduler: Scheduler, keeper: Keeper, name: bytes, data: memoryview) -> bool:
    """Whether the store has, or takes, a block that leaves device or host."""
    entry = scheduler.index.get(name)
    return entry is None or keeper.spill(entry, data)


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)


class _Values(Mapping[str, Json]):
    """The values of documents, without a copy."""

    def __init__(self, documents: Mapping[str, Document]) -> None:
        self._documents = documents

    def __getitem__(self, name: str) -> Json:
        return self._documents[name].value

    def __iter__(self) -> Iterator[str]:
        return iter(self._documents)

    def __len__(self) -> int:
        return len(self._documents)


def blocks_for(context_length: int, *, contexts: int = 4) -> int:
    """Blocks that hold so many full contexts: one to run, the others for those who return."""
    return -(-context_length // BLOCK) * contexts
