"""One step after another: plan, move blocks, compute, sample, journal, tell.

Everything here runs in one thread and knows no other. The order of the last three is the promise of
the runtime: a token is in the journal before anybody sees it, and is never sampled twice.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
from sojourn_api.weights import Numbers

from sojourn_runtime.context.errors import ContextError
from sojourn_runtime.context.journal import TokenRecord, pack_event, pack_tokens
from sojourn_runtime.context.state import Kept
from sojourn_runtime.detokenize import Decoder, TextStream
from sojourn_runtime.engine.moves import Load, Save, Spill
from sojourn_runtime.engine.prefix import root_name
from sojourn_runtime.engine.priority import effective
from sojourn_runtime.engine.request import Finish, Origin, Progress
from sojourn_runtime.engine.scheduler import Plan, Scheduler, Work
from sojourn_runtime.hooks import Arbiter
from sojourn_runtime.keeper import Keeper
from sojourn_runtime.model.errors import ModelError
from sojourn_runtime.model.protocol import Interrupted, Logits, Segment, StopFlag
from sojourn_runtime.mover import Mover
from sojourn_runtime.pulse import STEP, STORE, Pulse
from sojourn_runtime.stats import Stats
from sojourn_runtime.stream import Stream, TokenEvent

log = logging.getLogger(__name__)

LONG: Final = 16
"""Tokens of prompt in a step from which the arbiter's flags are looked at inside it, too."""


class Computes(Protocol):
    """The part of `model.protocol.Runner` that steps need."""

    @property
    def kernel_class(self) -> str: ...
    @property
    def row_exact(self) -> bool: ...
    @property
    def weights_digest(self) -> str: ...
    @property
    def block_bytes(self) -> int: ...
    @property
    def kv(self) -> npt.NDArray[np.uint8]: ...

    def forward(
        self, segments: Sequence[Segment], *, stop: StopFlag | None = None
    ) -> Logits | Interrupted: ...


class Chosen(Protocol):
    """`model.sampling.Choice`."""

    @property
    def token(self) -> int: ...
    @property
    def logprob(self) -> float | None: ...
    @property
    def top(self) -> tuple[tuple[int, float], ...]: ...


class Grammar(Protocol):
    """What may come next in a structured output; rebuilt from the tokens after a pause."""

    def allowed(self) -> npt.NDArray[np.bool_] | None:
        """A mask over the vocabulary, or None where everything is allowed."""

    def push(self, token: int, /) -> None: ...


class Grammars(Protocol):
    """`grammar.Grammars`."""

    def check(self, text: str) -> None:
        """ValueError if the grammar cannot be followed; the first call may take a second."""

    def __call__(self, text: str) -> Grammar: ...


@dataclass(frozen=True, slots=True)
class Model:
    """An opened model, whatever computes it."""

    runner: Computes
    tokenizer: Any
    """The server's `ChatTokenizer`; not used here."""
    decoder: Callable[[], Decoder]
    sample: Callable[..., Chosen]
    """`model.sampling.sample`, or one of its signature."""
    eos: frozenset[int]
    context_length: int
    grammars: Grammars | None = None
    watch: Callable[[Callable[[ModelError], None]], None] = lambda _: None
    """Given what to call, in any thread, when a process that helps to compute is gone."""
    numbers: Numbers | None = None
    """What the weights say of themselves; None where nobody read them."""


@dataclass(slots=True)
class Output:
    """A request on its way to text."""

    kept: Kept
    stream: Stream
    progress: Progress
    text: TextStream
    grammar: Grammar | None
    asked_at: float
    last_at: float = 0.0


@dataclass(slots=True)
class Worker:
    """The engine's thread, as a value that can be stepped."""

    model: Model
    scheduler: Scheduler
    keeper: Keeper
    mover: Mover
    arbiter: Arbiter
    stop: StopFlag
    tier: int
    stats: Stats
    pulse: Pulse
    outputs: dict[str, Output] = field(default_factory=dict)
    resumed: dict[str, int] = field(default_factory=dict)
    """Restored requests that have not run yet, with the tokens they had computed before."""
    recomputed: int = 0
    damaged: int = 0
    """Blocks of the saved context that could not be had whole."""
    damage: str = ""
    """What was wrong with the last of them."""

    # -- requests --

    def begin(self, kept: Kept, stream: Stream, *, asked_at: float) -> None:
        """Take a request in, new or restored; the events of what it has are made again."""
        request = kept.request
        grammars = self.model.grammars
        grammar = grammars(request.params.grammar) if grammars and request.params.grammar else None
        text = TextStream(self.model.decoder(), stops=request.params.stop)
        for position, token in enumerate(kept.output):
            last = position == len(kept.output) - 1
            finish = kept.finish if last else Finish.NONE
            stream.put(self._event(kept, text, token, position=position, finish=finish))
            if grammar is not None:
                grammar.push(token)
        if kept.finish is not Finish.NONE:
            if kept.finish is Finish.CANCELLED:
                stream.close("Cancelled")
            return
        progress = self.scheduler.add(
            request,
            root=self._root(request.salt),
            priority=effective(tier=self.tier, asked=request.priority),
            output=kept.output,
        )
        self.outputs[request.id] = Output(kept, stream, progress, text, grammar, asked_at)
        self.arbiter.raise_flag()

    def _root(self, salt: str) -> bytes:
        runner = self.model.runner
        return root_name(runner.weights_digest, runner.kernel_class, salt)

    def end(self, request_id: str) -> None:
        """Cancelled: its place is free from now on."""
        output = self.outputs.pop(request_id, None)
        if output is not None:
            self.scheduler.finish(output.progress, Finish.CANCELLED)

    # -- a step --

    def step(self) -> bool:
        """Carry out one step; False if there was nothing to do."""
        begin, passes = time.perf_counter(), self.stats.step_seconds
        self.pulse.works(STORE)
        self.keeper.keep_up(self.scheduler, self.model.runner.kv)
        if self.keeper.must_wait(self.scheduler.limits.prefill):
            self.keeper.saver.wait()
            self.keeper.keep_up(self.scheduler, self.model.runner.kv)
        self.pulse.works(STEP)
        for output in self.outputs.values():
            output.progress.held = output.stream.lagging()
        self._receive()
        plan = self.scheduler.schedule()
        if not self._move(plan):
            return True
        if not plan.work:
            self.mover.settle()  # else the pass waits for the copies
            return False
        logits = self._compute(plan.work)
        if isinstance(logits, Interrupted):
            self.mover.settle()  # copies to the host, which only a whole pass is behind
            return True
        self._take(plan.work, logits)
        inside = self.stats.step_seconds - passes
        self.stats.hand_over(time.perf_counter() - begin - inside)
        return True

    def _move(self, plan: Plan) -> bool:
        """Fill blocks from elsewhere; False if one failed, and the plan with it."""
        if any(isinstance(move, Load | Spill | Save) for move in plan.moves):
            self.pulse.works(STORE)
        lost = self.mover.carry_out(plan.moves)
        for name, error in lost.errors:
            self._spoilt(name, error)
        for name in lost.refused:
            self.scheduler.index.forget_saved(name)
        for slot in lost.slots:
            self.scheduler.residency.lost_slot(slot)
        for block in lost.blocks:
            self.scheduler.lost(block)
        self.mover.begin(plan.ahead)
        if lost.blocks:
            self.mover.settle()
        return not lost.blocks

    def _receive(self) -> None:
        """What the store has given since the last step."""
        for ahead, error in self.mover.arrived():
            if error is not None:
                self._spoilt(ahead.name, error)
            self.scheduler.residency.arrived(ahead, whole=error is None)

    def _spoilt(self, name: bytes, error: ContextError) -> None:
        """The store could not give a block: its tokens are computed again, and saved again."""
        log.warning("%s", error)
        self.damaged += 1
        self.damage = str(error)
        self.scheduler.index.forget_saved(name)
        self.keeper.saver.forget(name)

    def _compute(self, work: Sequence[Work]) -> Logits | Interrupted:
        segments = [
            Segment(
                tokens=w.progress.tokens[w.start : w.start + w.count],
                start=w.start,
                blocks=w.progress.blocks,
                logits="last" if w.samples else "none",
            )
            for w in work
        ]
        for w in work:
            self._account(w)
        long = any(w.count >= LONG for w in work)
        self.stop.poll = self.arbiter.must_stop if long and not self.arbiter.alone else None
        self.arbiter.step()
        tokens = sum(w.count for w in work)
        self.stats.given += tokens
        self.pulse.computes(tokens=tokens)
        begin = time.perf_counter()
        logits = self.model.runner.forward(segments, stop=self.stop)
        seconds = time.perf_counter() - begin
        self.pulse.works(STEP)
        self.arbiter.step_done(seconds)
        if not isinstance(logits, Interrupted):
            self.pulse.computed(tokens=tokens, seconds=seconds)
            self.stats.step(tokens=tokens, seconds=seconds)
        return logits

    def _account(self, work: Work) -> None:
        stream = self.outputs[work.progress.id].stream
        if not stream.started:
            stream.started = True
            stream.cached_tokens = min(work.start, len(stream.request.prompt))
            stream.origin = work.progress.origin or Origin()
        before = self.resumed.pop(work.progress.id, None) if self.resumed else None
        if before is not None:
            self.recomputed += max(0, before - work.start)

    def _take(self, work: Sequence[Work], logits: Logits) -> None:
        """Sample, journal, and only then let anybody see it."""
        rows = iter(logits)
        told: list[tuple[Output, TokenEvent]] = []
        entries = []
        now = time.perf_counter()
        for w in work:
            if not w.samples:
                entries += self.scheduler.commit(w)
                continue
            output = self.outputs[w.progress.id]
            event = self._choose(output, next(rows))
            entries += self.scheduler.commit(w, event.token)
            told.append((output, event))
        self.keeper.computed(sum(w.count for w in work), filled=entries)
        if told:
            self.pulse.works(STORE)
            self.keeper.journal.append(self._records(told))
        for output, event in told:
            self._tell(output, event, now)

    def _choose(self, output: Output, row: npt.NDArray[np.float32]) -> TokenEvent:
        kept, grammar = output.kept, output.grammar
        choice = self.model.sample(
            row,
            kept.request.params,
            position=output.progress.total,
            prompt=kept.request.prompt,
            output=kept.output,
            allowed=grammar.allowed() if grammar is not None else None,
        )
        kept.output.append(choice.token)
        if kept.request.params.logprobs is not None:
            kept.logprobs.append((choice.logprob or 0.0, choice.top))
        if grammar is not None:
            grammar.push(choice.token)
        position = len(kept.output) - 1
        event = self._event(kept, output.text, choice.token, position=position, finish=Finish.NONE)
        if event.finish is not Finish.NONE:
            kept.finish = event.finish
        return event

    def _event(
        self, kept: Kept, text: TextStream, token: int, *, position: int, finish: Finish
    ) -> TokenEvent:
        """What a token of the output says; a replay gives `finish`, else it is decided here."""
        params = kept.request.params
        eos = token in self.model.eos and not params.ignore_eos
        silent = eos or token in params.stop_tokens
        total = len(kept.request.prompt) + position + 1
        length = position + 1 >= params.max_tokens or total >= self.model.context_length
        last = silent or length or finish is not Finish.NONE
        piece = text.push(token, silent=silent, last=last)
        if finish is Finish.NONE and (silent or text.stopped):
            finish = Finish.STOP
        elif finish is Finish.NONE and length:
            finish = Finish.LENGTH
        event = TokenEvent(position, token, piece, finish=finish)
        if position < len(kept.logprobs):
            logprob, top = kept.logprobs[position]
            event = replace(event, logprob=logprob, top=top)
        return event

    def _records(self, told: Sequence[tuple[Output, TokenEvent]]) -> bytes:
        packed = pack_tokens(
            [
                TokenRecord(output.kept.number, event.position, event.token, event.finish)
                for output, event in told
            ]
        )
        for output, event in told:
            if event.logprob is not None:
                fields = {"number": output.kept.number, "position": event.position}
                found = {"logprob": event.logprob, "top": event.top}
                packed = pack_event({"kind": "logprobs", **fields, **found}) + packed
        return packed

    def _tell(self, output: Output, event: TokenEvent, now: float) -> None:
        if event.position == 0:
            self.stats.first_token(now - output.asked_at)
        elif output.last_at:
            self.stats.next_token(now - output.last_at)
        output.last_at = now
        if event.finish is not Finish.NONE:
            self.scheduler.finish(output.progress, event.finish)
            del self.outputs[output.kept.request.id]
        output.stream.put(event)

    def idle(self) -> None:
        """Nothing to compute: let the others go on."""
        self.arbiter.lower_flag()
