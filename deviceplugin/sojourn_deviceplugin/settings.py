"""The settings file over time: a right change is taken over, a wrong one only complained of.

Mounted from a ConfigMap, the file is replaced as a whole, which its inode shows.
"""

import logging
from pathlib import Path

from sojourn_deviceplugin.config import Config, ConfigError, load

log = logging.getLogger(__name__)


class Settings:
    """`config` is what holds now."""

    def __init__(self, path: Path | None) -> None:
        """None: the defaults, for ever."""
        self._path = path
        self._seen = self._look()
        self.config = load(path) if path else Config()

    def _look(self) -> tuple[int, int]:
        if self._path is None:
            return (0, 0)
        try:
            found = self._path.stat()
        except OSError:
            return (0, 0)
        return (found.st_ino, found.st_mtime_ns)

    def changed(self) -> bool:
        """Whether there are other settings than before; they are in `config` then."""
        seen = self._look()
        if self._path is None or seen == self._seen:
            return False
        self._seen = seen
        try:
            config = load(self._path)
        except ConfigError as error:
            extra = {"file": str(self._path), "error": str(error)}
            log.error("new settings refused, the old ones stay", extra=extra)  # noqa: TRY400
            return False
        if config == self.config:
            return False
        self.config = config
        return True
