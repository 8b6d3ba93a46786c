"""Where a session keeps its own files."""

from __future__ import annotations

import os
import stat
import tempfile
from importlib import import_module

import pytest

session = import_module("stentor.spark.session")  # the package has a function of that name


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A temporary directory that others can write to; what the session takes as its own in it."""
    tmp_path.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    session._private_folder.cache_clear()
    yield session._private_folder
    session._private_folder.cache_clear()


def is_private(path):
    found = path.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and stat.S_IMODE(found.st_mode) == 0o700


def test_it_is_for_this_user_alone_and_the_same_every_time(folder):
    first = folder()
    session._private_folder.cache_clear()
    assert folder() == first
    assert is_private(first)


def test_a_link_in_its_place_is_not_followed(folder, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(0o700)
    (tmp_path / f"stentor-spark-{os.getuid()}").symlink_to(elsewhere)
    found = folder()
    assert is_private(found)
    assert found.resolve() != elsewhere.resolve()
    session._quiet_logs()
    assert not list(elsewhere.iterdir())


def test_a_folder_that_others_can_write_to_is_not_used(folder, tmp_path):
    usual = tmp_path / f"stentor-spark-{os.getuid()}"
    usual.mkdir()
    usual.chmod(0o777)
    assert folder() != usual
    assert is_private(folder())


def test_a_file_in_its_place_is_no_folder(folder, tmp_path):
    (tmp_path / f"stentor-spark-{os.getuid()}").write_text("")
    assert is_private(folder())
