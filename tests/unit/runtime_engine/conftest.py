"""A disk that is full, by the kernel's own limit on the size of files."""

import resource
from collections.abc import Callable, Iterator

import pytest


@pytest.fixture
def small_files() -> Iterator[Callable[[int], None]]:
    """Call it with the bytes that a file of this process may have from now on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
