"""Which slot of a GPU has which devices, on disk before the kubelet hears of it.

One line for each change, written in one piece; rewritten now and then, since it grows. Lives in
memory-backed /run: it need not survive a reboot, as grants do not either.
"""

import json
import os
import threading
from pathlib import Path
from typing import Final

LINES: Final = 256
"""Rewritten when it is longer: a line of 141 devices has 2 KiB, and /run is memory."""


class Journal:
    """Any thread may `record`. `held` is what the file says."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.held: dict[str, frozenset[str]] = {}
        self.mps: set[str] = set()
        """Slots whose containers were told to be MPS clients: nothing else remembers."""
        self._read()
        self._fd = -1
        self._lines = 0

    def record(self, slot: str, devices: frozenset[str], *, mps: bool = False) -> None:
        """The slot has these devices from now on; none: it is over."""
        with self._lock:
            self._know(slot, devices, mps=mps)
            if self._fd < 0 or self._lines >= LINES:
                self._rewrite()
            else:
                os.write(self._fd, self._line(slot, devices))
                self._lines += 1

    def forget(self, slots: set[str]) -> None:
        """Leave out slots whose pages are gone."""
        with self._lock:
            for slot in slots:
                self._know(slot, frozenset())
            self._rewrite()

    def _know(self, slot: str, devices: frozenset[str], *, mps: bool = False) -> None:
        self.held.pop(slot, None)
        self.mps.discard(slot)
        if devices:
            self.held[slot] = devices
            self.mps |= {slot} if mps else set()

    def _read(self) -> None:
        """What the last line of each slot says; a torn last line was never answered by."""
        try:
            lines = self._path.read_text().splitlines()
        except FileNotFoundError:
            return
        for line in lines:
            try:
                slot, devices, *mps = json.loads(line)
            except ValueError:
                continue
            self._know(str(slot), frozenset(devices), mps=bool(mps))

    def _line(self, slot: str, devices: frozenset[str]) -> bytes:
        mark = ["mps"] if slot in self.mps else []
        return (json.dumps([slot, sorted(devices), *mark]) + "\n").encode()

    def _rewrite(self) -> None:
        draft = self._path.with_suffix(".new")
        fd = os.open(
            draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600
        )
        os.write(fd, b"".join(self._line(slot, devices) for slot, devices in self.held.items()))
        draft.replace(self._path)
        self._release()
        self._fd, self._lines = fd, len(self.held)

    def _release(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def close(self) -> None:
        """Let go of the file; a later record opens it again."""
        with self._lock:
            self._release()
