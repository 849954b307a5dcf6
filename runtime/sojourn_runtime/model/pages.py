"""Memory on a page border, zeroed, which the kernel provides only when it is written."""

import mmap

import numpy as np
import numpy.typing as npt


def pages(count: int, size: int, *, file: int = -1) -> npt.NDArray[np.uint8]:
    """[count, size] bytes, of a file that several processes map if there is one."""
    if not count:
        return np.empty((0, size), np.uint8)
    return np.frombuffer(mmap.mmap(file, count * size), np.uint8).reshape(count, size)
