"""The MIG profiles that this node has ever offered, in a file that survives restarts.

The kubelet goes on counting a resource for five minutes after its plugin has gone. So a profile
whose last instance went away while the plugin did not run is offered again, empty.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from sojourn_deviceplugin.registry import RegistryError

FILE: Final = "mig-profiles"


class Profiles:
    """The file: one name a line. Nothing depends on it but how soon the kubelet counts zero."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._written: frozenset[str] = frozenset()

    def load(self) -> frozenset[str]:
        """All profiles; none before the first."""
        try:
            self._written = frozenset(self._path.read_text().split())
        except FileNotFoundError:
            self._written = frozenset()
        except (OSError, UnicodeDecodeError) as error:
            raise RegistryError(
                f"{self._path}: unreadable ({error}); remove it, nothing else depends on it"
            ) from error
        return self._written

    def save(self, profiles: Iterable[str]) -> None:
        """Write them if there are others than before."""
        found = frozenset(profiles)
        if found == self._written:
            return
        draft = self._path.with_suffix(".new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with draft.open("w") as file:
                file.writelines(f"{profile}\n" for profile in sorted(found))
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self._path)
        except OSError as error:
            raise RegistryError(f"{self._path}: cannot be written: {error}") from error
        self._written = found
