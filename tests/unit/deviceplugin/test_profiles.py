"""The MIG profiles that were ever offered, over restarts."""

from pathlib import Path

import pytest
from sojourn_deviceplugin.profiles import FILE, Profiles
from sojourn_deviceplugin.registry import RegistryError


def test_before_the_first_there_are_none(tmp_path: Path) -> None:
    assert Profiles(tmp_path).load() == frozenset()


def test_what_was_saved_is_there_after_a_restart(tmp_path: Path) -> None:
    Profiles(tmp_path / "state").save(["3g.40gb", "1g.10gb"])
    assert Profiles(tmp_path / "state").load() == {"1g.10gb", "3g.40gb"}


def test_nothing_new_is_not_written_again(tmp_path: Path) -> None:
    profiles = Profiles(tmp_path)
    profiles.save(["1g.10gb"])
    (tmp_path / FILE).unlink()
    profiles.save(["1g.10gb"])
    assert not (tmp_path / FILE).exists()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RegistryError, match="file"):
        Profiles(tmp_path / "file").save(["1g.10gb"])
