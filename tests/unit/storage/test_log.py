from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest

from stentor.errors import Closed, CorruptData, InternalError, InvalidArgument, LogFailed, OffsetOutOfRange
from stentor.storage import LogSettings
from stentor.storage.model import SEGMENT_HEADER_BYTES


def open_descriptors(directory):
    """How many files of this directory are open; what else the process opens and closes is none of it."""
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            found += link.readlink().is_relative_to(directory)
    return found


def test_what_was_appended_is_read_back_byte_for_byte(logs, batches):
    log = logs.open()
    written = batches.fill(log, 20)
    assert batches.read_all(log) == written
    assert (log.start, log.end) == (0, 20)


def test_several_batches_in_one_chunk_are_one_append(logs, batches):
    log = logs.open()
    chunk = batches.make(0, count=3) + batches.make(3) + batches.make(4, count=2)
    log.append(chunk, batches.headers(chunk))
    assert log.end == 6
    assert log.statistics().appends == 1
    assert log.read(0, 6, 1 << 20).data == chunk


def test_a_read_begins_with_the_batch_that_holds_the_offset(logs, batches):
    log = logs.open()
    batches.fill(log, 10, count=10)
    for offset in range(100):
        piece = log.read(offset, 100, 1)
        assert (piece.first_offset, piece.next_offset) == (offset // 10 * 10, offset // 10 * 10 + 10)


def test_a_read_gives_at_least_one_batch_however_few_bytes_were_asked_for(logs, batches):
    log = logs.open()
    large = batches.append(log, body=bytes(300_000))
    batches.append(log)
    assert log.read(0, 2, 1).data == large
    assert log.read(0, 2, 299_000).data == large
    assert log.read(0, 2, 301_000).next_offset == 2


def test_a_read_takes_no_more_bytes_than_asked_for_after_the_first_batch(logs, batches):
    log = logs.open()
    written = batches.fill(log, 10)
    length = len(written[0])
    assert log.read(0, 10, 3 * length).next_offset == 3
    assert log.read(0, 10, 4 * length - 1).next_offset == 3


def test_no_batch_that_ends_beyond_the_limit_is_read(logs, batches):
    log = logs.open()
    batches.fill(log, 5, count=10)
    assert log.read(0, 30, 1 << 20).next_offset == 30
    assert log.read(0, 29, 1 << 20).next_offset == 20
    nothing = log.read(5, 9, 1 << 20)
    assert (nothing.data, nothing.first_offset, nothing.next_offset) == (b"", 5, 5)
    assert log.read(30, 30, 1 << 20).data == b""


def test_reading_at_the_end_gives_nothing_and_beyond_it_is_refused(logs, batches):
    log = logs.open()
    batches.fill(log, 5)
    assert log.read(5, 5, 100).next_offset == 5
    assert log.read(5, 9, 100).data == b""
    with pytest.raises(OffsetOutOfRange) as refused:
        log.read(6, 9, 100)
    assert (refused.value.start, refused.value.end) == (0, 5)


def test_a_log_can_begin_at_any_offset(logs, batches):
    log = logs.open(start=1000)
    batches.fill(log, 3)
    assert (log.start, log.end) == (1000, 1003)
    with pytest.raises(OffsetOutOfRange, match="before the start") as refused:
        log.read(999, 1003, 100)
    assert refused.value.hint
    log.close()
    assert logs.open(start=5).start == 1000


def test_segments_follow_each_other_without_holes(logs, batches):
    log = logs.open(segment_bytes=1000)
    written = batches.fill(log, 40)
    assert log.statistics().segments > 4
    assert batches.read_all(log) == written
    for offset in range(40):
        assert log.read(offset, 40, 1).data == written[offset]
    assert all(path.stat().st_size <= 1000 for path in logs.files())
    log.close()
    assert log.bytes == sum(path.stat().st_size for path in logs.files())


def test_a_chunk_larger_than_a_segment_gets_a_segment_of_its_own(logs, batches):
    log = logs.open(segment_bytes=1000)
    written = [batches.append(log), batches.append(log, body=bytes(5000)), batches.append(log)]
    assert batches.read_all(log) == written
    assert log.statistics().segments == 3


def test_offsets_must_be_contiguous_and_headers_must_describe_the_chunk(logs, batches):
    log = logs.open()
    gap = batches.make(5)
    with pytest.raises(CorruptData):
        log.append(gap, batches.headers(gap))
    batch = batches.make(0)
    with pytest.raises(CorruptData):
        log.append(batch + b"x", batches.headers(batch))
    assert log.end == 0
    batches.append(log)
    assert log.read(0, 1, 100).next_offset == 1


def test_settings_can_be_replaced_while_the_log_runs(logs, batches):
    log = logs.open()
    batches.fill(log, 10)
    assert log.statistics().segments == 1
    log.settings = LogSettings(segment_bytes=500, disk_reserve_bytes=0)
    batches.fill(log, 10)
    assert log.statistics().segments > 3


def test_sync_returns_the_end_captured_before_it_began(logs, batches, monkeypatch):
    log = logs.open()
    batches.fill(log, 3)
    fdatasync = os.fdatasync

    def append_during_the_sync(fd):
        fdatasync(fd)
        if log.end == 3:
            batches.fill(log, 2)

    monkeypatch.setattr(os, "fdatasync", append_during_the_sync)
    assert log.sync() == 3
    assert (log.synced_end, log.end) == (3, 5)
    assert log.sync() == 5
    assert log.synced_end == 5


def test_a_roll_during_a_sync_is_left_to_the_next_sync(logs, batches, monkeypatch):
    log = logs.open(segment_bytes=1000)
    batches.fill(log, 3)
    fdatasync = os.fdatasync

    def roll_during_the_sync(fd):
        fdatasync(fd)
        if log.end == 3:
            batches.fill(log, 20)

    monkeypatch.setattr(os, "fdatasync", roll_during_the_sync)
    assert log.sync() == 3
    assert log.synced_end == 3
    assert logs.files(".index") == []
    assert log.sync() == 23
    assert len(logs.files(".index")) == len(logs.files()) - 1


def test_the_synced_end_stops_at_the_first_segment_that_cannot_be_synced(logs, batches, monkeypatch):
    log = logs.open(segment_bytes=1000)
    batches.fill(log, 20)
    bases = [int(path.stem) for path in logs.files()]
    fdatasync, calls = os.fdatasync, []

    def fail_at_the_third(fd):
        calls.append(fd)
        if len(calls) == 3:
            raise OSError(5, "Input/output error")
        fdatasync(fd)

    monkeypatch.setattr(os, "fdatasync", fail_at_the_third)
    with pytest.raises(LogFailed):
        log.sync()
    assert log.synced_end == bases[2]


def test_a_sync_with_nothing_to_do_does_not_touch_the_disk(logs, batches, monkeypatch):
    log = logs.open()
    batches.fill(log, 3)
    log.sync()
    monkeypatch.setattr(os, "fdatasync", lambda _: pytest.fail("synced for nothing"))
    assert log.sync() == 3


def test_two_syncs_at_once_are_a_bug_that_is_reported(logs, batches):
    log = logs.open()
    batches.append(log)
    with log._state.sync_lock, pytest.raises(InternalError):
        log.sync()


def test_the_directory_is_synced_before_an_end_in_a_new_file_is_reported(logs, batches, monkeypatch):
    log = logs.open(segment_bytes=500)
    batches.append(log)
    log.sync()
    synced = []
    fsync = os.fsync

    def note(fd):
        synced.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    batches.fill(log, 5)
    log.sync()
    assert synced[0] == str(logs.directory)


def test_a_snapshot_is_taken_at_each_roll_and_written_by_the_next_sync(logs, batches):
    log = logs.open(segment_bytes=1000)
    log.snapshot = lambda: b"state as of %d" % log.end
    batches.fill(log, 20)
    assert logs.files(".snapshot") == []
    log.sync()
    assert [int(path.stem) for path in logs.files(".snapshot")] == [int(path.stem) for path in logs.files()][1:]
    log.close()
    reopened = logs.open(synced_end=20)
    base = int(logs.files()[-1].stem)
    assert logs.restored == [b"state as of %d" % base]
    assert logs.replayed == list(range(base, 20))
    assert reopened.recovery.snapshot_offset == base


def test_epochs_come_from_the_batch_headers_and_survive_a_reopening(logs, batches):
    log = logs.open(segment_bytes=1000)
    log.snapshot = lambda: b"state"
    for epoch in (1, 1, 4, 4, 4, 9):
        batches.fill(log, 5, epoch=epoch)
    expected = [(1, 0), (4, 10), (9, 25)]
    assert log.epochs() == expected
    log.close()
    reopened = logs.open(synced_end=30)
    assert reopened.epochs() == expected
    assert reopened.recovery.scanned_bytes < 2000


def test_truncate_cuts_back_to_a_batch_boundary_in_any_segment(logs, batches):
    log = logs.open(segment_bytes=1000)
    log.snapshot = lambda: b"state"
    written = batches.fill(log, 40)
    log.sync()
    for offset in (39, 25, 24, 13, int(logs.files()[1].stem), 3):
        log.truncate(offset, committed=2)
        assert (log.end, log.synced_end) == (offset, offset)
        assert batches.read_all(log) == written[:offset]
        log.close()
        log = logs.open(segment_bytes=1000, synced_end=offset)
        assert log.end == offset
        assert log.damaged == []
    assert batches.fill(log, 2) == written[3:5]


def test_truncate_to_the_base_of_the_first_segment_empties_the_log(logs, batches):
    log = logs.open(segment_bytes=1000)
    batches.fill(log, 20)
    log.truncate(0, committed=0)
    assert (log.start, log.end, log.bytes) == (0, 0, SEGMENT_HEADER_BYTES)
    assert batches.fill(log, 3) == batches.read_all(log)


def test_truncate_refuses_what_is_committed_and_what_is_no_boundary(logs, batches):
    log = logs.open()
    batches.fill(log, 5, count=10)
    for offset, committed in ((10, 20), (60, 0), (15, 0)):
        with pytest.raises(InvalidArgument):
            log.truncate(offset, committed=committed)
    assert log.end == 50
    assert len(batches.read_all(log)) == 5


def test_derived_state_is_replayed_after_a_truncation(logs, batches):
    log = logs.open(segment_bytes=1000)
    log.snapshot = lambda: str(log.end).encode()
    batches.fill(log, 40)
    log.sync()
    log.truncate(30, committed=30)
    logs.restored, logs.replayed = [], []
    log.derive(logs)
    assert len(logs.restored) == 1
    assert logs.replayed == list(range(int(logs.restored[0]), 30))


def test_a_closed_log_takes_nothing_more(logs, batches):
    log = logs.open()
    batches.fill(log, 3)
    log.close()
    log.close()
    assert log.synced_end == 3
    with pytest.raises(Closed):
        batches.append(log)
    with pytest.raises(Closed):
        log.sync()


def test_room_is_taken_ahead_and_given_back(logs, batches):
    log = logs.open()
    batches.fill(log, 3)
    active = logs.files()[0]
    assert active.stat().st_size > log.bytes
    log.roll()
    assert active.stat().st_size == log.bytes - SEGMENT_HEADER_BYTES
    batches.fill(log, 3)
    log.close()
    assert sum(path.stat().st_size for path in logs.files()) == log.bytes


def test_a_closed_log_holds_no_descriptors(logs, batches):
    log = logs.open(segment_bytes=1000)
    batches.fill(log, 40)
    log.sync()
    assert open_descriptors(logs.directory) == 1
    log.close()
    assert open_descriptors(logs.directory) == 0


def test_delete_removes_the_log_and_leaves_what_is_not_ours(logs, batches):
    log = logs.open(segment_bytes=1000)
    log.snapshot = lambda: b"state"
    batches.fill(log, 20)
    log.sync()
    log.delete()
    assert not logs.directory.exists()
    log.delete()

    log = logs.open()
    stranger = logs.directory / "notes.txt"
    stranger.write_text("mine")
    log.delete()
    assert list(logs.directory.iterdir()) == [stranger]
    with pytest.raises(Closed):
        batches.append(log)


def test_statistics_tell_the_log_in_numbers(logs, batches):
    log = logs.open(segment_bytes=1000)
    batches.fill(log, 20)
    log.sync()
    numbers = log.statistics()
    assert (numbers.start, numbers.end, numbers.synced_end) == (0, 20, 20)
    assert (numbers.appends, numbers.syncs, numbers.failed, numbers.damaged) == (20, 1, False, ())
    assert 0 < numbers.sync_us_max <= numbers.sync_us_total
