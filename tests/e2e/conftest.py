"""The local cluster with Sojourn's story told on it: once for all tests of this level."""

from collections.abc import Iterator

import pytest
from places import Place, local_cluster
from story import Facts, tell


@pytest.fixture(scope="session")
def place() -> Iterator[Place]:
    with local_cluster(keep=False) as found:
        yield found


@pytest.fixture(scope="session")
def facts(place: Place) -> Facts:
    return tell(place)
