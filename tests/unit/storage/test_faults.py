from __future__ import annotations

import errno
import os

import pytest

from stentor.errors import DiskFull, LogFailed, OutOfDescriptors
from stentor.storage import LogSettings, files
from stentor.storage.state import mark_path


def full_disk(fd, data, position):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_failed_sync_stops_the_log_for_good(logs, batches, monkeypatch):
    log = logs.open()
    written = batches.fill(log, 3)
    log.sync()
    batches.fill(log, 2)
    calls = []

    def fail(fd):
        calls.append(fd)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(LogFailed, match="sync failed") as failed:
        log.sync()
    assert failed.value.detail["synced_end"] == 3
    monkeypatch.undo()
    with pytest.raises(LogFailed):
        log.sync()
    with pytest.raises(LogFailed):
        batches.append(log)
    assert len(calls) == 1
    assert log.synced_end == 3
    assert log.failed
    assert log.statistics().failed
    assert log.read(0, 3, 1000).data == b"".join(written)
    log.close()


def failed_log(logs, batches, monkeypatch, **options):
    """A log that synced 10 batches, failed to sync 10 more, and whose process then ended."""
    log = logs.open(**options)
    batches.fill(log, 10)
    log.sync()
    batches.fill(log, 10)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", full_disk_sync)
        with pytest.raises(LogFailed):
            log.sync()
    log.close()


def full_disk_sync(fd):
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.parametrize("segment_bytes", [600, 1 << 20])
def test_a_failed_log_reopens_for_reading_up_to_its_last_successful_sync(logs, batches, monkeypatch, segment_bytes):
    failed_log(logs, batches, monkeypatch, segment_bytes=segment_bytes)
    files = {path: path.read_bytes() for path in logs.files()}
    for _ in range(2):
        log = logs.open(segment_bytes=segment_bytes, synced_end=8)
        assert "sync failed" in log.failed
        assert (log.end, log.synced_end) == (10, 10)
        assert batches.read_all(log) == [batches.make(offset) for offset in range(10)]
        assert logs.replayed == list(range(10))
        with pytest.raises(LogFailed):
            batches.append(log)
        log.close()
    assert {path: path.read_bytes() for path in logs.files()} == files


@pytest.mark.parametrize("segment_bytes", [600, 1 << 20])
def test_an_unclean_start_cuts_a_failed_log_back_and_goes_on(logs, batches, monkeypatch, segment_bytes):
    failed_log(logs, batches, monkeypatch, segment_bytes=segment_bytes)
    log = logs.open(segment_bytes=segment_bytes, synced_end=10, unclean=True)
    assert log.failed is None
    assert log.end == 10
    assert log.recovery.truncated
    written = batches.read_all(log) + batches.fill(log, 3)
    log.sync()
    log.close()
    log = logs.open(segment_bytes=segment_bytes, synced_end=13)
    assert (log.failed, log.damaged) == (None, [])
    assert batches.read_all(log) == written
    assert not mark_path(logs.directory).exists()


def test_an_unreadable_mark_of_failure_still_stops_the_log(logs, batches, monkeypatch):
    failed_log(logs, batches, monkeypatch)
    mark_path(logs.directory).write_bytes(b"")
    log = logs.open(synced_end=10)
    assert log.failed
    assert log.end == 10


def test_a_sync_that_fails_during_recovery_fails_the_log(logs, batches, monkeypatch):
    log = logs.open()
    batches.fill(log, 3)
    log.close()
    monkeypatch.setattr(os, "fdatasync", full_disk_sync)
    with pytest.raises(LogFailed):
        logs.open(synced_end=3)
    monkeypatch.undo()
    assert logs.open(synced_end=3).failed


def test_a_write_error_is_taken_back_and_stops_the_log(logs, batches, monkeypatch):
    log = logs.open()
    batches.fill(log, 3)
    size = log.bytes

    def half(fd, data, position):
        os.pwritev(fd, [bytes(data[:20])], position)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "pwrite", half)
    with pytest.raises(LogFailed):
        batches.append(log)
    assert logs.files()[0].stat().st_size == size
    assert log.end == 3
    assert log.failed


def test_a_short_write_is_completed(logs, batches, monkeypatch):
    log = logs.open()
    pwrite, pwritev = os.pwrite, os.pwritev
    monkeypatch.setattr(os, "pwrite", lambda fd, data, position: pwrite(fd, data[:7], position))
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, position: pwritev(fd, [bytes(buffers[0][:11])], position))
    written = batches.fill(log, 3)
    assert batches.read_all(log) == written


def test_a_disk_that_fills_up_during_a_write_leaves_the_log_as_it_was(logs, batches, monkeypatch):
    log = logs.open()
    written = batches.fill(log, 3)
    size = log.bytes
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, position: pwrite(fd, data[:50], position))
    monkeypatch.setattr(os, "pwritev", full_disk)
    with pytest.raises(DiskFull) as full:
        batches.append(log)
    assert full.value.retriable
    assert logs.files()[0].stat().st_size == size
    monkeypatch.undo()
    written += batches.fill(log, 2)
    assert batches.read_all(log) == written


def test_a_write_that_cannot_be_taken_back_stops_the_log(logs, batches, monkeypatch):
    log = logs.open()
    batches.fill(log, 3)
    monkeypatch.setattr(os, "pwrite", full_disk)
    monkeypatch.setattr(os, "ftruncate", lambda fd, size: full_disk(fd, b"", size))
    with pytest.raises(LogFailed, match="could not be taken back"):
        batches.append(log)


def test_appends_are_refused_before_the_reserve_is_touched(logs, batches):
    log = logs.open()
    batches.fill(log, 3)
    size = logs.files()[0].stat().st_size
    log.settings = LogSettings(disk_reserve_bytes=1 << 60)
    log._writer._room_bytes = 0
    with pytest.raises(DiskFull, match="in reserve") as full:
        batches.append(log)
    assert full.value.detail["reserve"] == 1 << 60
    assert logs.files()[0].stat().st_size == size
    assert len(batches.read_all(log)) == 3
    log.settings = LogSettings(disk_reserve_bytes=0)
    batches.append(log)
    assert log.end == 4


def test_a_file_system_that_gives_no_room_ahead_is_written_to_all_the_same(logs, batches, monkeypatch):
    monkeypatch.setattr(os, "posix_fallocate", full_disk)
    log = logs.open()
    written = batches.fill(log, 1000)
    assert batches.read_all(log) == written
    assert logs.files()[0].stat().st_size == log.bytes


def test_a_roll_on_a_full_disk_leaves_the_old_segment_active(logs, batches, monkeypatch):
    log = logs.open(segment_bytes=600)
    written = batches.fill(log, 3)
    monkeypatch.setattr(os, "pwritev", full_disk)
    with pytest.raises(DiskFull):
        batches.append(log)
    assert len(logs.files()) == 1
    monkeypatch.undo()
    written += batches.fill(log, 3)
    assert len(logs.files()) == 2
    assert batches.read_all(log) == written


def test_sealing_that_finds_no_room_is_made_up_for_by_a_later_sync(logs, batches, monkeypatch):
    log = logs.open(segment_bytes=600)
    log.snapshot = lambda: b"state"
    batches.fill(log, 10)
    monkeypatch.setattr(os, "pwritev", full_disk)
    assert log.sync() == 10
    assert logs.files(".index") == []
    monkeypatch.undo()
    assert log.sync() == 10
    assert len(logs.files(".index")) == len(logs.files(".snapshot")) == len(logs.files()) - 1


def test_a_full_disk_refuses_writes_serves_reads_and_recovers_by_itself(logs, batches, small_disk):
    reserve = 1 << 20
    log = logs.open(directory=small_disk / "log", segment_bytes=1 << 20, disk_reserve_bytes=reserve)
    body = bytes(100_000)
    with pytest.raises(DiskFull):
        batches.fill(log, 1000, body=body)
    free = os.statvfs(small_disk).f_bavail * os.statvfs(small_disk).f_frsize
    assert reserve - 100_000 < free < reserve + 400_000
    end = log.end
    assert log.sync() == end
    assert len(batches.read_all(log)) == end
    with pytest.raises(DiskFull):
        batches.append(log, body=body)
    log.settings = LogSettings(segment_bytes=1 << 20, retention_bytes=0, disk_reserve_bytes=reserve)
    log.retain(0, committed=end)
    batches.append(log, body=body)
    assert log.end == end + 1
    log.close()


def test_a_disk_filled_by_somebody_else_is_met_without_a_reserve_too(logs, batches, small_disk):
    log = logs.open(directory=small_disk / "log", segment_bytes=1 << 20, disk_reserve_bytes=0)
    batches.fill(log, 3, body=bytes(10_000))
    log.sync()
    hog = small_disk / "hog"
    with hog.open("wb", buffering=0) as file:
        while file.write(bytes(100_000)) == 100_000:
            pass
    with pytest.raises(DiskFull):
        batches.fill(log, 1000, body=bytes(10_000))
    written = [batches.make(offset, body=bytes(10_000)) for offset in range(log.end)]
    assert batches.read_all(log) == written
    hog.unlink()
    written += batches.fill(log, 3, body=bytes(10_000))
    log.close()
    reopened = logs.open(directory=small_disk / "log", synced_end=log.end)
    assert reopened.recovery.truncated == ()
    assert batches.read_all(reopened) == written
    reopened.close()


def no_descriptors(monkeypatch):
    """From now on nothing can be opened, and no reserve is left."""

    def refuse(path, *rest, **options):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(files.SPARE, "_held", [])


def test_a_log_that_gets_no_descriptor_for_its_next_segment_refuses_and_goes_on_later(logs, batches, monkeypatch):
    log = logs.open(segment_bytes=600)
    batches.fill(log, 3)
    with monkeypatch.context() as patch:
        no_descriptors(patch)
        with pytest.raises(OutOfDescriptors, match="limit of open files") as refused:
            batches.fill(log, 50)
        assert refused.value.retriable
    assert not log.failed
    end = log.end
    batches.fill(log, 3)
    log.sync()
    assert log.synced_end == log.end == end + 3
    log.close()


def test_a_sync_that_cannot_open_the_directory_is_tried_again(logs, batches, monkeypatch):
    log = logs.open(segment_bytes=600)
    batches.fill(log, 20)
    with monkeypatch.context() as patch:
        no_descriptors(patch)
        with pytest.raises(OutOfDescriptors):
            log.sync()
        assert log.synced_end == 0
    assert not log.failed
    assert not mark_path(log.directory).exists()
    assert log.sync() == log.end
    log.close()


def test_storage_has_descriptors_in_reserve(tmp_path, monkeypatch):
    spare = files.SpareDescriptors(2)
    spare.fill()
    real, refused = os.open, []

    def scarce(path, *rest, **options):
        if len(spare._held) == 2:
            refused.append(path)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(path, *rest, **options)

    monkeypatch.setattr(os, "open", scarce)
    os.close(spare.open(tmp_path, os.O_RDONLY))
    assert len(refused) == 1
    assert len(spare._held) == 1
