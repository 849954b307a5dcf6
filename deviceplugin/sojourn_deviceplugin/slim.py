"""Gives back memory that only the start needed: free heap, and library code that ran once.

gRPC, OpenSSL and Python map some 20 MiB of code to import and to open sockets, and use a part of it
later. The kernel would take the rest back under pressure only, and counts it as the plugin's until
then. What is needed again is mapped again from the page cache.
"""

import ctypes
import gc
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

MAPS: Final = Path("/proc/self/maps")
MADV_DONTNEED: Final = 4


def code(maps: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Start and length of the mappings of files' code. Nobody has written to those."""
    for line in maps:
        place, rights, _, _, inode, *_ = line.split()
        if rights == "r-xp" and inode != "0":
            start, end = (int(edge, 16) for edge in place.split("-"))
            yield start, end - start


def slim() -> None:
    """Do it; takes milliseconds. What the kernel or the C library refuses simply stays."""
    libc = ctypes.CDLL(None)
    gc.collect()
    if hasattr(libc, "malloc_trim"):  # glibc's
        libc.malloc_trim(0)
    for start, length in code(MAPS.read_text().splitlines()):
        libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), MADV_DONTNEED)
