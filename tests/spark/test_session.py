"""Where a session keeps its own files, and what it chooses on a cluster."""

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


class Cluster:
    """As much of a session on a cluster as is asked for its cores."""

    _jsparkSession = object()  # noqa: N815 - PySpark's name

    def __init__(self, executors, **chosen):
        self._coming = list(executors)  # how many there are at each look
        self.settings = {"spark.sql.shuffle.partitions": "200"}
        self._chosen = chosen
        self.conf = self.sparkContext = self._jsc = self

    def sc(self):
        return self

    getConf = getExecutorMemoryStatus = sc  # noqa: N815 - the same

    def size(self):
        return 1 + (self._coming.pop(0) if len(self._coming) > 1 else self._coming[0])

    @property
    def defaultParallelism(self):  # noqa: N802 - the same
        return 4 * self._coming[0]

    def contains(self, name):
        return name in self._chosen

    def get(self, name, default=None):
        return self._chosen.get(name, self.settings.get(name, default))

    def set(self, name, value):
        self.settings[name] = value


@pytest.mark.parametrize(
    ("executors", "chosen", "partitions"),
    [
        ([0, 0, 1, 1, 3, 8], {}, "32"),
        ([0], {}, "200"),
        ([8], {"spark.sql.shuffle.partitions": "200"}, "200"),
        ([8], {"spark.dynamicAllocation.enabled": "true"}, "200"),
    ],
    ids=["as many as cores", "nobody comes", "chosen", "they come and go"],
)
def test_a_cluster_has_as_many_shuffle_partitions_as_cores(monkeypatch, executors, chosen, partitions):
    monkeypatch.setattr(session, "EXECUTORS_WAIT_S", 1.0)
    monkeypatch.setattr(session, "EXECUTORS_SETTLED_S", 0.2)
    cluster = Cluster(executors, **chosen)
    session._fit_to_cluster(cluster)
    assert cluster.settings["spark.sql.shuffle.partitions"] == partitions
