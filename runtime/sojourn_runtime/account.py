"""What a session says of itself: its status page, its gauges, and its last word.

A look at one moment, which changes nothing; when it is taken belongs to `session`. The operator
reads the page and the word.
"""

from dataclasses import dataclass
from typing import Any, Final

from sojourn_runtime.context.snapshot import Facts, Loaded
from sojourn_runtime.engine.scheduler import Scheduler
from sojourn_runtime.hooks import Inside
from sojourn_runtime.keeper import Keeper
from sojourn_runtime.protocol import Json
from sojourn_runtime.pulse import STORE
from sojourn_runtime.stats import Stats
from sojourn_runtime.worker import Model, Worker

MOVES: Final = ("copy", "stash", "fetch", "spill", "save", "load", "ahead")
"""Kinds of moves of KV blocks, as the metrics tell them: within the device, to and from the host,
from host and device to the store, from the store to the device, and to the host ahead of need."""


@dataclass(frozen=True, slots=True)
class Opened:
    """What exists from the moment that requests are taken."""

    worker: Worker
    keeper: Keeper
    model: Model


@dataclass(frozen=True, slots=True)
class Account:
    """A session at one moment: what it was started as, and what it has of it."""

    name: str
    store: str
    loaded: Loaded | None
    """What its store held; None before it was read."""
    opened: Opened | None

    # -- facts --

    @property
    def inexact(self) -> str:
        """Why the text is not the uninterrupted one; empty: it is."""
        if self.opened is not None:
            return self.opened.keeper.inexact
        return self.loaded.inexact if self.loaded else ""

    @property
    def damage(self) -> str:
        """What of the saved context was spoilt, and what became of it; empty: nothing."""
        worker, loaded = self.opened.worker if self.opened else None, self.loaded
        found = [f"{note}; fell back to {loaded.base}" for note in loaded.notes] if loaded else []
        if worker and worker.damaged:
            found.append(f"blocks computed again: {worker.damaged}, the last: {worker.damage}")
        return "; ".join(found)

    @property
    def facts(self) -> Facts | None:
        """The last commit that is known to be durable."""
        facts = self.opened.keeper.facts if self.opened else None
        if facts is None and self.loaded is not None:
            return _facts(self.loaded, self.store)
        return facts

    @property
    def tokens(self) -> int:
        """Tokens whose context would be lost without saving, or was saved."""
        if self.opened is None:
            return 0
        running = sum(o.progress.total for o in tuple(self.opened.worker.outputs.values()))
        facts = self.opened.keeper.facts
        return max(running, facts.tokens if facts else 0)

    # -- the last word --

    def paused(self, *, requests: int, times: dict[str, float]) -> dict[str, Any]:
        """The termination message of a pause, once everything is saved."""
        facts = self.facts
        return {
            "v": 1,
            "reason": "Paused",
            "message": f"session {self.name} is paused, its context is saved",
            **({"snapshot": facts.to_json()} if facts else {}),
            "requests": requests,
            **times,
            "exact": not self.inexact,
            "exactReason": self.inexact,
            "damage": self.damage,
        }

    def failed(self, reason: str, message: str, *, retry: bool) -> dict[str, Any]:
        """The termination message of anything else."""
        words: dict[str, Any] = {"v": 1, "reason": reason, "message": message, "retry": retry}
        facts = self.facts
        return words | ({"snapshot": facts.to_json()} if facts else {})

    def cut_off(self, *, at: str, seconds: float) -> dict[str, Any]:
        """The termination message of a pause that has waited for so long, and may be killed."""
        tokens = self.opened.keeper.unsaved_tokens if self.opened else 0
        hint = f"check the volume of {self.store}" if at == STORE else "see the log"
        message = (
            f"session {self.name}: the pause has waited for {at} for {seconds:.0f} s; "
            f"tokens not saved: {tokens}; the last commit counts, and the journal behind it; {hint}"
        )
        return self.failed("PauseCutOff", message, retry=True)

    # -- the pages --

    def status(self, stats: Stats) -> dict[str, Json]:
        """The part of the status that follows from what is open."""
        opened, facts = self.opened, self.opened.keeper.facts if self.opened else None
        scheduler = opened.worker.scheduler if opened else None
        return {
            "kernelClass": opened.model.runner.kernel_class if opened else "",
            "weightsDigest": opened.model.runner.weights_digest if opened else "",
            "weights": _weights(opened),
            "exact": not self.inexact,
            "exactReason": self.inexact,
            "damage": self.damage,
            "requestsRunning": len(scheduler.running) if scheduler else 0,
            "requestsWaiting": len(scheduler.waiting) if scheduler else 0,
            "conversations": opened.keeper.context.conversations if opened else 0,
            "contextTokens": self.tokens,
            "unsavedBytes": opened.keeper.unsaved_bytes() if opened else 0,
            "lastSnapshot": facts.to_json() if facts else None,
            "latency": stats.latency(),
            "allocator": _allocator(opened) if opened else None,
            "yieldedMs": round(opened.worker.arbiter.yielded * 1000) if opened else 0,
            "startup": dict(stats.startup),
        }

    def gauges(self, stats: Stats) -> dict[str, float]:
        """For /metrics."""
        values: dict[str, float] = {
            "steps_total": stats.steps,
            "step_seconds_total": stats.step_seconds,
            "tokens_computed_total": stats.tokens,
            "tokens_generated_total": stats.generated,
        }
        if self.opened is not None:
            worker, keeper = self.opened.worker, self.opened.keeper
            blocks = worker.scheduler.pool
            values |= {
                "starts_total": keeper.epoch,
                "requests_running": len(worker.scheduler.running),
                "requests_waiting": len(worker.scheduler.waiting),
                "requests_parked_total": worker.scheduler.parked,
                "kv_blocks": blocks.count,
                "kv_blocks_free": blocks.free,
                "kv_used_share": 1 - blocks.free / blocks.count,
                "effective_token_ratio": stats.effective(recomputed=worker.recomputed),
                "unsaved_bytes": keeper.unsaved_bytes(),
                "yielded_seconds_total": worker.arbiter.yielded,
                "time_slice_left_seconds": worker.arbiter.slice_left,
                "recomputed_tokens_total": worker.recomputed,
                "host_blocks": worker.scheduler.residency.host.count,
                "host_blocks_free": worker.scheduler.residency.host.free,
                **{f"kv_blocks_{how}_total": worker.mover.moved[how] for how in MOVES},
                "snapshot_bytes": keeper.facts.bytes if keeper.facts else 0,
            }
        return values


def pool(scheduler: Scheduler, block_bytes: int) -> Inside:
    """The KV pool, whose blocks of one size never fragment: what holds context is in use, also of
    what no request runs on now.

    Split bytes belong to allocators with blocks of many sizes: unknown here, not 0.
    """
    free = scheduler.pool.blank * block_bytes
    reserved = scheduler.pool.count * block_bytes
    return Inside(reserved=reserved, used=reserved - free, inactive_split=None, largest_free=free)


def _allocator(opened: Opened) -> dict[str, Json]:
    found = pool(opened.worker.scheduler, opened.model.runner.block_bytes)
    return {
        "reserved": found.reserved,
        "allocated": found.used,
        "inactiveSplit": found.inactive_split,
        "largestFree": found.largest_free,
    }


def _weights(opened: Opened | None) -> dict[str, Json] | None:
    """What the operator holds the LLMModel against."""
    numbers = opened.model.numbers if opened else None
    return {**numbers.to_json()} if numbers else None


def _facts(loaded: Loaded, uri: str) -> Facts | None:
    """An earlier commit in the words of a new one, for a pause that had nothing to save."""
    if loaded.identity is None:
        return None
    return Facts(
        uri=uri,
        manifest=loaded.base,
        tokens=sum(len(block.tokens) for block in loaded.blocks),
        bytes=len(loaded.blocks) * loaded.identity.block_bytes + loaded.bytes,
        new_bytes=0,
        conversations=loaded.context.conversations,
        digest=loaded.digest,
        weights_digest=loaded.identity.weights_digest,
        kernel_class=loaded.identity.kernel_class,
        epoch=loaded.last.epoch,
        saved=loaded.saved,
    )
