"""A session whose requests come and go, and whose starts end, as dice have it.

What is drawn follows from the dice alone; how far the disk's threads have come meanwhile does not.
What must hold at the end is for the test to say.
"""

import random
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import product
from pathlib import Path
from typing import Final

from kernelrig import BLOCKS, CONTEXT, KernelRig, Kernels, Pass
from sessionrig import ask, events
from sojourn_runtime.account import MOVES
from sojourn_runtime.engine.prefix import BLOCK
from sojourn_runtime.engine.request import Finish, Request
from sojourn_runtime.model.protocol import INTERRUPTED, Interrupted, Logits, Segment, StopFlag
from sojourn_runtime.stream import Stream, TokenEvent

ROOMY: Final = 40
"""Slots of a start that takes a crowd."""
KILLS: Final = 1 / 3
"""Part of the pauses after which there are kills, too, and a crowd of 32 or 33."""
CROWD: Final = 3
"""Its arrivals, its ends and the starts that end in it; then there are 1 or 2 again."""
PATIENCE: Final = 40
"""Passes after which a start ends in whatever phase it is."""


class Cut(Enum):
    """How a start ends: by a pause in front of a pass, in its middle or behind it, or by a kill in
    front of one.
    """

    BEFORE = auto()
    WITHIN = auto()
    AFTER = auto()
    KILL = auto()


@dataclass
class Client:
    """Who asked for one answer and reads it, in however many attachments."""

    request: Request
    found: list[TokenEvent] = field(default_factory=list)

    @property
    def over(self) -> bool:
        return bool(self.found) and self.found[-1].finish is not Finish.NONE

    async def read(self, stream: Stream | None) -> None:
        """Attach behind the last event seen, and read until the stream ends."""
        assert stream is not None
        assert stream.events[: len(self.found)] == self.found
        self.found += await events(stream, after=len(self.found) - 1)
        assert [event.position for event in self.found] == list(range(len(self.found)))


class Play:
    """`run` it; then `clients` have all that was said, and `kv` all that was computed."""

    def __init__(
        self, rig: KernelRig, kernels: Kernels, *, dice: random.Random, pauses: int
    ) -> None:
        self.clients: list[Client] = []
        self.kv: dict[bytes, int] = {}
        """The checksum of each full block that lay on device or host when a start ended, by name.
        """
        self.seen: Counter[str] = Counter()
        self.batches: Counter[tuple[int, int]] = Counter()
        """How often a pass of so many requests came behind one of so many."""
        self._rig = rig
        self._kernels = kernels
        self._dice = dice
        self._pauses = pauses
        self._deck: list[tuple[Cut, bool]] = []
        self._cut: Cut | None = None
        self._in_prefill = False
        self._left = 0
        """Passes in the wanted phase until the start ends."""
        self._patience = 0
        self._batch = 0
        self._read: list[Client] = []
        """Whose answers are over, and not yet released."""
        self._killed: Path | None = None
        """What a kill has left."""
        rig.around = self._around

    @property
    def _killing(self) -> bool:
        return self.seen["pauses"] >= self._pauses * KILLS

    @property
    def _crowd(self) -> bool:
        had = self.batches[32, 33], self.batches[33, 32], self.seen["in crowd"]
        return self._killing and min(had) < CROWD

    @property
    def _over(self) -> bool:
        return self.seen["pauses"] >= self._pauses

    # -- the test's thread, between the starts --

    async def run(self) -> None:
        while not self._over or any(not client.over for client in self.clients):
            self._draw()
            self._rig.start()
            if all(client.over for client in self.clients):
                self._ask()
            self._rig.until(lambda: self._rig.ending or self._idle())
            await self._end()

    def _draw(self) -> None:
        """What the next start is like, and how it ends."""
        dice, rig = self._dice, self._rig
        roomy = self._over or (self._crowd and dice.random() < 0.8)
        rig.computes = dice.choice(self._kernels.runners)
        rig.blocks = BLOCKS if roomy else dice.choice((CONTEXT // BLOCK, 13))
        rig.slots = ROOMY if roomy else dice.choice((2, 3, ROOMY))
        rig.host = dice.choice((0, 0, 24) if roomy else (0, 4, 8, 24))
        rig.prefill = dice.choice((100, 256) if roomy else (5, 33, 64, 100, 256))
        rig.checkpoint_tokens = dice.choice((512, 1 << 16) if roomy else (32, 100, 256, 1 << 16))
        if not self._deck:
            self._deck = list(product(Cut, (True, False)))
            dice.shuffle(self._deck)
        cut, self._in_prefill = self._deck.pop()
        if cut is Cut.KILL and not self._killing:
            cut = Cut.WITHIN
        self._cut = None if self._over else cut
        self._left = dice.randrange(1, 5 if self._in_prefill else dice.choice((10, 40)))
        self._patience = PATIENCE

    def _streams(self) -> list[Stream | None]:
        """Of all who wait for more; None where the session does not know them yet."""
        return [self._rig.session.stream(c.request.id) for c in self.clients if not c.over]

    def _idle(self) -> bool:
        return all(stream is not None and stream.done for stream in self._streams())

    async def _end(self) -> None:
        rig, seen = self._rig, self.seen
        words = rig.end() if rig.ending else rig.pause()
        assert (words["reason"], words["exact"], words["damage"]) == ("Paused", True, ""), words
        gauges = rig.session.gauges()
        seen.update({how: int(gauges[f"kv_blocks_{how}_total"]) for how in MOVES})
        seen["recomputed"] += int(gauges["recomputed_tokens_total"])
        assert self._killing or not seen["recomputed"], "a pause has lost something"
        for client in [client for client in self.clients if not client.over]:
            await client.read(rig.session.stream(client.request.id))
            if client.over:
                self._read.append(client)
        for name, checksum in rig.digests():
            seen["digests"] += 1
            assert self.kv.setdefault(name, checksum) == checksum, name.hex()
        if self._killed is not None:
            shutil.rmtree(rig.folder)
            rig.folder, self._killed = self._killed, None

    # -- the engine's thread, in front of each pass --

    def _around(
        self, segments: Sequence[Segment], stop: StopFlag, compute: Pass
    ) -> Logits | Interrupted:
        if not self._rig.session.ready:
            self._come_and_go()
        self._count(segments)
        if not self._due(segments):
            return compute()
        cut, self._cut = self._cut, None
        self.seen["kills" if cut is Cut.KILL else "pauses"] += 1
        self.seen["in prefill" if _prefills(segments) else "in decode"] += 1
        self.seen["in crowd"] += len(segments) in {32, 33}
        match cut:
            case Cut.BEFORE:
                self._pause()
            case Cut.WITHIN:
                looks = iter((False, True))  # in front of layers 0 and 4
                stop.poll = lambda: next(looks) and self._pause()
            case Cut.KILL:
                self._killed = Path(self._rig.folder.parent, f"killed-{self.seen['kills']}")
                self._rig.killed(self._killed)
                self._pause()
        found = compute()
        assert (found is INTERRUPTED) is (cut is not Cut.AFTER)
        self._pause()
        return found

    def _pause(self) -> bool:
        self._rig.session.pause()
        return True

    def _due(self, segments: Sequence[Segment]) -> bool:
        self._left -= _prefills(segments) is self._in_prefill
        self._patience -= 1
        return self._cut is not None and (self._left <= 0 or self._patience <= 0)

    def _count(self, segments: Sequence[Segment]) -> None:
        self.batches[self._batch, len(segments)] += 1
        self._batch = len(segments)
        self.seen[type(self._rig.computes).__name__] += 1
        decodes = any(len(segment.tokens) == 1 for segment in segments)
        self.seen["decode beside prefill"] += decodes and _prefills(segments)

    def _come_and_go(self) -> None:
        while self._read:
            self._rig.session.release(self._read.pop().request.id)
        if self._cut is None:
            return
        running = [stream.request for stream in self._streams() if stream and not stream.done]
        # a crowd lets nobody run whose priority is lower
        alive = sum(not (self._crowd and request.priority) for request in running)
        most = 34 if self._crowd else 2
        for _ in range(max(most - 1 - alive, alive < most and self._dice.random() < 0.5)):
            self._ask()

    # -- requests --

    def _ask(self) -> None:
        dice = self._dice
        prompt, answer = self._question()
        request = ask(
            str(len(self.clients)),
            prompt=prompt,
            answer=answer,
            seed=dice.choice((None, dice.randrange(1 << 31))),
            logprobs=dice.choice((None, None, 1)),
            priority=0 if self._crowd else dice.choice((0, 0, 1)),
        )
        self.clients.append(Client(request))
        self._rig.session.submit(request)

    def _question(self) -> tuple[list[int], int]:
        """A prompt and the length of its answer: in a crowd short ones, and now and then a
        stranger's document; else long ones, and next turns of what was said some time ago.
        """
        dice = self._dice
        if self._crowd:
            long = dice.random() < 0.1
            return (self._words(300), 2) if long else (self._words(90), dice.randrange(20, 60))
        known = [c for c in self.clients if c.over and len(c.request.prompt) + len(c.found) < 400]
        if known and dice.random() < 0.4:
            former = dice.choice(known)
            said = [event.token for event in former.found]
            return [*former.request.prompt, *said, *self._words(30)], dice.randrange(3, 60)
        return self._words(450), dice.randrange(3, 90)

    def _words(self, most: int) -> list[int]:
        """Off the grid of blocks."""
        count = self._dice.randrange(1, most)
        return self._dice.choices(range(301), k=count + (count % BLOCK == 0))


def _prefills(segments: Sequence[Segment]) -> bool:
    """Some prompt goes on behind this pass."""
    return any(segment.logits == "none" for segment in segments)
