"""Faults that one object brings out while a pass reads it: told, and no other object's affair."""

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, TypeVar

from sojourn_operator import metrics

T = TypeVar("T")

SESSION: Final = "LLMSession"
IN_A_ROW: Final = 3
"""Failed passes: one may pass by itself, this many mean that nobody is served."""

log = logging.getLogger(__name__)


class Faults:
    """Of the present pass; each is logged when it is new."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, str], str] = {}
        self._found: dict[tuple[str, str], str] = {}

    def begin(self) -> None:
        """A pass begins."""
        self._before, self._found = self._found, {}

    @contextmanager
    def apart(self, kind: str, key: str) -> Iterator[None]:
        """What fails in here condemns this object only; the caller goes on without it."""
        try:
            yield
        except Exception as error:
            if self._is_news(kind, key, error):
                log.exception("%s %s cannot be used", kind, key)

    def tried(self, kind: str, key: str, read: Callable[[], T]) -> T | None:
        """What `read` finds; None where it fails, as `apart` has it."""
        try:
            return read()
        except Exception as error:
            if self._is_news(kind, key, error):
                log.exception("%s %s cannot be used", kind, key)
            return None

    def _is_news(self, kind: str, key: str, error: Exception) -> bool:
        text = f"{type(error).__name__}: {error}"
        metrics.ERRORS.labels("read").inc()
        known = text in (self._before.get((kind, key)), self._found.get((kind, key)))
        self._found[kind, key] = text
        return not known

    def sessions(self) -> Mapping[str, str]:
        """By key, in words for the one who wrote the spec."""
        hint = "change the spec, or delete it, and report this"
        return {
            key: f"the operator cannot work with this session ({text}); {hint}"
            for (kind, key), text in self._found.items()
            if kind == SESSION
        }


class Row:
    """Whole passes that failed one after another."""

    def __init__(self) -> None:
        self._failed = 0
        self._last = ""

    def worked(self) -> None:
        self._failed = 0
        metrics.FAILED_PASSES.set(0)

    def failed(self, error: Exception) -> None:
        self._failed += 1
        self._last = f"{type(error).__name__}: {error}"
        metrics.FAILED_PASSES.set(self._failed)

    def trouble(self) -> str:
        """Why no session is served; empty while passes work."""
        if self._failed < IN_A_ROW:
            return ""
        return f"{self._failed} passes in a row failed, see the log; the last with {self._last}"
