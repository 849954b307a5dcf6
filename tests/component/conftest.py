"""What several components' tests share."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from localcluster.paths import cache_folder


@pytest.fixture(scope="session")
def transformers() -> Iterator[Any]:
    """The peer, where `make peer` puts it, behind our own environment."""
    pytest.importorskip("torch", reason="needs torch (installed by `make torch`)")
    places = [str(place) for place in sorted(cache_folder().glob("transformers-*"))]
    sys.path += places
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield pytest.importorskip("transformers", reason="needs the peer (`make peer`)")
    for place in places:
        sys.path.remove(place)
