from __future__ import annotations

import pytest

from stentor.errors import CorruptData, OffsetOutOfRange
from stentor.storage import LogSettings
from stentor.storage.model import SEGMENT_HEADER_BYTES

SECOND_US = 1_000_000


def bases(logs):
    return [int(path.stem) for path in logs.files()]


def test_nothing_goes_without_a_retention(logs, batches):
    log = logs.open(segment_bytes=1000)
    batches.fill(log, 40)
    log.sync()
    assert log.retain(10**18, committed=40) == 0


def test_segments_go_when_their_newest_batch_was_appended_too_long_ago(logs, batches):
    log = logs.open(segment_bytes=1000, retention_age_s=10)
    for offset in range(40):
        batches.append(log, appended_at_us=offset * SECOND_US, timestamp_us=10**18)
    log.sync()
    first = bases(logs)
    newest_of_first = first[1] - 1
    assert log.retain((newest_of_first + 10) * SECOND_US, committed=40) == 0
    assert log.retain((newest_of_first + 11) * SECOND_US, committed=40) == first[1]
    assert log.retain(1000 * SECOND_US, committed=40) == first[-1]
    assert bases(logs) == [first[-1]]
    log.close()
    assert log.bytes == logs.files()[0].stat().st_size


def test_message_timestamps_have_no_say_in_retention(logs, batches):
    log = logs.open(segment_bytes=1000, retention_age_s=10)
    for _ in range(40):
        batches.append(log, appended_at_us=1000 * SECOND_US, timestamp_us=0)
    log.sync()
    assert log.retain(1005 * SECOND_US, committed=40) == 0


def test_at_least_the_retained_bytes_stay_and_not_a_segment_more(logs, batches):
    log = logs.open(segment_bytes=1000, retention_bytes=3000)
    written = batches.fill(log, 100)
    log.sync()
    start = log.retain(0, committed=100)
    assert 3000 <= log.bytes < 4000
    assert batches.read_all(log) == written[start:]
    assert [path.stem for path in logs.files(".index")] == [path.stem for path in logs.files()[:-1]]


def test_nothing_above_the_commit_point_goes(logs, batches):
    log = logs.open(segment_bytes=1000, retention_bytes=0)
    batches.fill(log, 40)
    log.sync()
    border = bases(logs)[2]
    assert log.retain(0, committed=border - 1) == bases(logs)[0]
    assert log.start <= border - 1
    assert log.retain(0, committed=border) == border


def test_what_is_not_sealed_does_not_go(logs, batches):
    log = logs.open(segment_bytes=1000, retention_bytes=0)
    batches.fill(log, 40)
    assert log.retain(0, committed=40) == 0
    log.sync()
    assert log.retain(0, committed=40) == bases(logs)[-1]


def test_the_active_segment_goes_only_after_a_roll(logs, batches):
    log = logs.open(retention_age_s=10)
    batches.append(log, appended_at_us=0)
    assert not log.roll_due(5 * SECOND_US)
    assert log.roll_due(11 * SECOND_US)
    assert log.retain(11 * SECOND_US, committed=1) == 0
    log.roll()
    log.sync()
    assert not log.roll_due(11 * SECOND_US)
    assert log.retain(11 * SECOND_US, committed=1) == 1
    assert log.end == 1
    batches.append(log)
    log.close()
    log = logs.open(synced_end=2)
    assert (log.start, log.end) == (1, 2)


def test_below_the_new_start_offsets_are_out_of_range_also_after_a_restart(logs, batches):
    log = logs.open(segment_bytes=1000)
    written = batches.fill(log, 40)
    log.sync()
    log.settings = LogSettings(segment_bytes=1000, retention_bytes=2000, disk_reserve_bytes=0)
    start = log.retain(0, committed=40)
    log.close()
    log = logs.open(segment_bytes=1000, synced_end=40)
    assert (log.start, log.damaged) == (start, [])
    with pytest.raises(OffsetOutOfRange) as refused:
        log.read(start - 1, 40, 1)
    assert refused.value.start == start
    assert batches.read_all(log) == written[start:]


def test_the_snapshot_of_the_first_segment_that_stays_is_kept(logs, batches):
    log = logs.open(segment_bytes=1000, retention_bytes=2000)
    log.snapshot = lambda: b"%d" % log.end
    batches.fill(log, 40)
    log.sync()
    start = log.retain(0, committed=40)
    assert int(logs.files(".snapshot")[0].stem) == start


def test_a_reader_that_has_begun_goes_on_in_a_retired_segment(logs, batches):
    log = logs.open(segment_bytes=1000, retention_bytes=0)
    batches.fill(log, 40)
    log.sync()
    segment = log._state.segments[0]
    file = segment.handle()
    size = file.bytes()
    log.retain(0, committed=40)
    assert not segment.path().exists()
    assert file.bytes() == size


def test_damaged_segments_are_put_aside_and_not_deleted(logs, batches):
    log = logs.open(segment_bytes=1000, retention_bytes=0)
    written = batches.fill(log, 40)
    log.sync()
    path = logs.files()[1]
    with path.open("r+b") as file:
        file.seek(SEGMENT_HEADER_BYTES + len(written[0]) + 99)
        file.write(b"????")
    content = path.read_bytes()
    with pytest.raises(CorruptData):
        log.read(int(path.stem) + 1, 40, 1)
    log.retain(0, committed=40)
    assert log.damaged == []
    aside = logs.directory / "quarantine" / path.name
    assert aside.read_bytes() == content
    assert aside.with_suffix(".damaged").exists()
    log.close()
    log = logs.open(segment_bytes=1000, synced_end=40)
    assert (log.end, log.damaged, log.recovery.foreign_files) == (40, [], ())
    log.delete()
    assert not logs.directory.exists()
