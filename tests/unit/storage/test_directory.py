from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stentor.errors import CorruptData, DirectoryInUse, DirectoryUnusable, FormatTooNew, StorageError
from stentor.storage import DataDirectory, atomic_write


def test_a_new_directory_is_created_with_its_format(tmp_path):
    path = tmp_path / "deep" / "data"
    with DataDirectory(path) as directory:
        assert directory.path == path
        assert (path / "FORMAT").read_text() == "stentor data directory, format 1\n"
        assert (path / "partitions").is_dir()
    with DataDirectory(str(path)):
        pass


def test_a_second_owner_is_refused_and_told_who_the_first_is(tmp_path):
    with DataDirectory(tmp_path / "data"):
        with pytest.raises(DirectoryInUse, match=f"process {os.getpid()}") as refused:
            DataDirectory(tmp_path / "data")
        assert refused.value.detail["pid"] == os.getpid()
        assert refused.value.hint
    DataDirectory(tmp_path / "data").close()


def test_a_second_process_is_refused_and_the_lock_ends_with_its_holder(tmp_path):
    program = (
        "import sys; from stentor.storage import DataDirectory\n"
        "d = DataDirectory(sys.argv[1]); print('ready', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "data")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout.readline() == b"ready\n"
    with pytest.raises(DirectoryInUse, match=f"process {holder.pid}"):
        DataDirectory(tmp_path / "data")
    holder.kill()
    holder.communicate()
    DataDirectory(tmp_path / "data").close()


def test_a_newer_format_is_refused(tmp_path):
    DataDirectory(tmp_path / "data").close()
    (tmp_path / "data" / "FORMAT").write_text("stentor data directory, format 2\n")
    with pytest.raises(FormatTooNew, match="format 2"):
        DataDirectory(tmp_path / "data")


@pytest.mark.parametrize("text", ["", "hello", "stentor data directory, format x", "\xff\xfe"])
def test_a_format_file_that_says_something_else_is_refused(tmp_path, text):
    DataDirectory(tmp_path / "data").close()
    (tmp_path / "data" / "FORMAT").write_text(text, encoding="latin-1")
    with pytest.raises(DirectoryUnusable, match="FORMAT"):
        DataDirectory(tmp_path / "data")


def test_a_directory_of_somebody_else_is_refused_and_left_alone(tmp_path):
    (tmp_path / "photo.jpg").write_bytes(b"holiday")
    with pytest.raises(DirectoryUnusable, match=r"not a Stentor data directory.*photo\.jpg"):
        DataDirectory(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["photo.jpg"]


def test_a_new_file_system_and_an_unfinished_creation_can_be_used(tmp_path):
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "LOCK").write_text("99\n")
    (tmp_path / "FORMAT.tmp").write_text("stento")
    DataDirectory(tmp_path).close()
    assert (tmp_path / "FORMAT").exists()


def test_a_file_in_the_place_of_the_directory_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(DirectoryUnusable, match="not a directory") as refused:
            DataDirectory(path)
        assert refused.value.hint


def test_a_read_only_file_system_is_refused_with_a_hint(small_disk):
    DataDirectory(small_disk / "data").close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    for path in (small_disk / "data", small_disk / "new"):
        with pytest.raises(DirectoryUnusable, match="read-only") as refused:
            DataDirectory(path)
        assert "read-write" in refused.value.hint


@pytest.mark.skipif(os.geteuid() == 0, reason="root ignores permission bits")
def test_a_directory_without_permission_is_refused_with_a_hint(tmp_path):
    (tmp_path / "data").mkdir(mode=0o500)
    with pytest.raises(DirectoryUnusable, match="permission"):
        DataDirectory(tmp_path / "data")


def test_partition_directories_are_listed(tmp_path):
    with DataDirectory(tmp_path / "data") as directory:
        for topic_id, partition in ((1, 0), (1, 10), (0xDEADBEEF, 2)):
            directory.partition_directory(topic_id, partition).mkdir()
        assert directory.partition_directory(0xDEADBEEF, 2).name == "00000000deadbeef-2"
        (directory.path / "partitions" / "00000000deadbeef-2.FAILED").touch()
        (directory.path / "partitions" / "something").mkdir()
        found = [(entry.topic_id, entry.partition) for entry in directory.partitions()]
        assert sorted(found) == [(1, 0), (1, 10), (0xDEADBEEF, 2)]


def test_an_orphan_can_be_removed_and_what_is_not_ours_stays(tmp_path, logs, batches):
    with DataDirectory(tmp_path / "data") as directory:
        for partition in (1, 2):
            log = logs.open(directory=directory.partition_directory(0xABCDEF, partition), segment_bytes=1000)
            batches.fill(log, 20)
            log.close()
        stranger = directory.partition_directory(0xABCDEF, 2) / "notes"
        stranger.touch()
        for orphan in directory.partitions():
            directory.remove(orphan)
        assert [entry.partition for entry in directory.partitions()] == [2]
        assert list(stranger.parent.iterdir()) == [stranger]


def test_a_journal_that_is_gone_although_there_are_logs_is_an_error(tmp_path):
    with DataDirectory(tmp_path / "data") as directory:
        directory.journal().begin_life(6)
        assert directory.journal().replicas() == {}
        directory.partition_directory(1, 0).mkdir()
        (directory.path / "replicas").unlink()
        with pytest.raises(CorruptData, match="missing"):
            directory.journal()


def test_an_atomic_write_leaves_the_old_content_if_it_fails(tmp_path, monkeypatch):
    path = tmp_path / "file"
    atomic_write(path, b"old")
    for act in ("pwritev", "fsync"):
        with monkeypatch.context() as patch:
            patch.setattr(os, act, lambda *_: (_ for _ in ()).throw(OSError(5, "Input/output error")))
            with pytest.raises(StorageError):
                atomic_write(path, b"new")
        assert path.read_bytes() == b"old"
        assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    atomic_write(path, [b"new", b"er"])
    assert path.read_bytes() == b"newer"


def test_an_atomic_write_syncs_file_then_renames_then_syncs_the_directory(tmp_path, monkeypatch):
    acts = []
    fsync, replace = os.fsync, Path.replace

    def note_sync(fd):
        acts.append(Path(f"/proc/self/fd/{fd}").readlink().name)
        fsync(fd)

    def note_rename(path, target):
        acts.append("rename")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "replace", note_rename)
    atomic_write(tmp_path / "file", b"data")
    assert acts == ["file.tmp", "rename", tmp_path.name]
