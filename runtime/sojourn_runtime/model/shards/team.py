"""The other shards' processes, as the first one sees them: started, told, awaited, mourned."""

import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from typing import Final, TypeAlias

from sojourn_runtime.model.errors import ModelError, ShardLost
from sojourn_runtime.model.shards.orders import Opening, Settle

Lost: TypeAlias = Callable[[ModelError], None]

SETTLE_SECONDS: Final = 20.0
"""For a shard to copy what it was told to. A guess, as `group.SECONDS` is."""
SILENCE_SECONDS: Final = 20.0
"""A shard that reads nothing for so long is lost: what it is told fills its socket. A guess."""


class Follower:
    """Another shard's process, as the first one sees it."""

    def __init__(self, opening: Opening, *, memory: int, silence: float = SILENCE_SECONDS) -> None:
        self._name = f"shard {opening.number} of {opening.shards}"
        ours, theirs = socket.socketpair()
        with theirs:
            files = (theirs.fileno(), memory)
            words = [
                sys.executable,
                "-m",
                "sojourn_runtime.model.shards.follower",
                *map(str, files),
            ]
            # a session of its own: a terminal's Ctrl-C is the first shard's to answer
            self.process = subprocess.Popen(words, pass_fds=files, start_new_session=True)
        limit = struct.pack("ll", *divmod(round(silence * 1e6), 1_000_000))
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self._connection = Connection(ours.detach())
        self._reading = threading.RLock()
        """The engine and whoever watches may both want its last words."""
        self._error: ModelError | None = None

    def tell(self, message: object) -> None:
        """ShardLost if it does not take it."""
        try:
            self._connection.send(message)
        except OSError as error:
            raise self.lost() from error

    def answer(self, seconds: float) -> None:
        """Wait for the next answer, and raise the error that it may be; ShardLost if none comes."""
        try:
            answered = self._connection.poll(seconds)
            if answered:
                self._read()
        except (OSError, EOFError) as error:
            raise self.lost() from error
        if not answered:
            raise self.lost()
        if self._error is not None:
            raise self._error

    def _read(self) -> None:
        with self._reading:
            said = self._connection.recv()
            if isinstance(said, ModelError):
                self._error = said

    def last_words(self) -> ModelError | None:
        """Why it gave up, if it said so; to be asked where no answer of it is awaited any more."""
        with self._reading, suppress(OSError, EOFError):  # it may be gone, and so are its words
            while self._error is None and self._connection.poll():
                self._read()
        return self._error

    def lost(self) -> ModelError:
        """The error to raise when it does not do its part: its own, or waits a moment for its end
        and names that.
        """
        if error := self.last_words():
            return error
        try:
            code = self.process.wait(1)
        except subprocess.TimeoutExpired:
            said = "does not answer"
        else:
            said = f"ended with {_words(code)}"
        return self.last_words() or ShardLost(
            f"{self._name} {said}; the last commit counts, and the journal behind it; see the log"
        )

    def close(self) -> None:
        self._connection.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def _words(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def _likelihood(gone: Follower) -> tuple[bool, int]:
    """The least for the likeliest cause: who said why, then who was killed."""
    return gone.last_words() is None, gone.process.returncode or 0


class Team:
    """All other shards."""

    def __init__(self) -> None:
        self._followers: list[Follower] = []
        self._closing = False
        self.lock = threading.RLock()
        """Held while they are told something and do it: readers of the store have threads."""

    def start(self, opening: Opening, *, memory: int) -> None:
        """One more, which answers when it has its weights."""
        self._followers.append(Follower(opening, memory=memory))
        self._followers[-1].tell(opening)

    def tell(self, message: object) -> None:
        for follower in self._followers:
            follower.tell(message)

    def settle(self, seconds: float = SETTLE_SECONDS) -> None:
        """Wait until all have done what they were told."""
        self.tell(Settle())
        self.answer(seconds)

    def answer(self, seconds: float) -> None:
        for follower in self._followers:
            follower.answer(seconds)

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """What makes a call inside fail, if it is another shard, by its name or in its words."""
        try:
            yield
        except ShardLost as error:
            raise self.blame() or error from error

    def blame(self) -> ModelError | None:
        """Who is gone, now or in a moment: sockets are closed a little before their process ends.

        Others end because of it.
        """
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            gone = [o for o in self._followers if o.process.poll() is not None or o.last_words()]
            if gone:
                return min(gone, key=_likelihood).lost()
            time.sleep(0.01)
        return None

    def watch(self, lost: Lost) -> None:
        """Call `lost` once for each that ends before `close`, in a thread of its own."""
        for follower in self._followers:
            watching = lambda one=follower: self._watch(one, lost)  # noqa: E731
            threading.Thread(target=watching, name="shard", daemon=True).start()

    def _watch(self, follower: Follower, lost: Lost) -> None:
        follower.process.wait()
        if not self._closing:
            lost(self.blame() or follower.lost())

    def close(self) -> None:
        self._closing = True
        for follower in self._followers:
            follower.close()
