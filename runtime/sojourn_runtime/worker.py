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

from sojourn_runtime.context.errors import ContextError
from sojourn_runtime.context.journal import TokenRecord, pack_event, pack_tokens
from sojourn_runtime.context.state import Kept
from sojourn_runtime.detokenize import Decoder, TextStream
from sojourn_runtime.engine.prefix import root_name
from sojourn_runtime.engine.priority import effective
from sojourn_runtime.engine.request import Finish, Progress
from sojourn_runtime.engine.scheduler import Copy, Plan, Scheduler, Work
from sojourn_runtime.hooks import Arbiter
from sojourn_runtime.keeper import Keeper
from sojourn_runtime.model.protocol import Interrupted, Logits, Segment, StopFlag
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
    arbiter: Arbiter
    stop: StopFlag
    tier: int
    stats: Stats
    outputs: dict[str, Output] = field(default_factory=dict)
    resumed: dict[str, int] = field(default_factory=dict)
    """Restored requests that have not run yet, with the tokens they had computed before."""
    recomputed: int = 0

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
        self.keeper.keep_up(self.scheduler, self.model.runner.kv)
        if self.keeper.must_wait(self.scheduler.limits.prefill):
            self.keeper.saver.wait()
            self.keeper.keep_up(self.scheduler, self.model.runner.kv)
        for output in self.outputs.values():
            output.progress.held = output.stream.lagging()
        plan = self.scheduler.schedule()
        if not self._move(plan):
            return True
        if not plan.work:
            return False
        logits = self._compute(plan.work)
        if isinstance(logits, Interrupted):
            return True
        self._take(plan.work, logits)
        return True

    def _move(self, plan: Plan) -> bool:
        """Fill blocks from elsewhere; False if one failed, and the plan with it."""
        kv = self.model.runner.kv
        failed: set[int] = set()
        for move in plan.moves:
            if isinstance(move, Copy):
                kv[move.target] = kv[move.source]
                (failed.add if move.source in failed else failed.discard)(move.target)
                continue
            failed.discard(move.block)
            try:
                self.keeper.load(move, kv)
            except ContextError as error:
                log.warning("%s", error)
                self.scheduler.index.forget_saved(move.name)
                failed.add(move.block)
        for block in failed:
            self.scheduler.lost(block)
        return not failed

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
        begin = time.perf_counter()
        logits = self.model.runner.forward(segments, stop=self.stop)
        seconds = time.perf_counter() - begin
        self.arbiter.step_done(seconds)
        if not isinstance(logits, Interrupted):
            self.stats.step(tokens=sum(w.count for w in work), seconds=seconds)
        return logits

    def _account(self, work: Work) -> None:
        stream = self.outputs[work.progress.id].stream
        if not stream.started:
            stream.started = True
            stream.cached_tokens = min(work.start, len(stream.request.prompt))
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
