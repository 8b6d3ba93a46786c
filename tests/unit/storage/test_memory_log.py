"""A log in memory: the same batches, offsets and reads as on disk, in bounded room, with nothing behind it."""

import pytest
from tests.unit.storage.conftest import LOG_ID, PARTITION, TOPIC_ID

from stentor.errors import Closed, CorruptData, InvalidArgument, NotReady, OffsetOutOfRange
from stentor.limits import KIB
from stentor.storage import Identity, LogSettings, MemoryLog
from stentor.wire.header import extents

RING = 512 * KIB  # eight segments of 64 KiB


def open_log(start=0, **settings):
    settings = LogSettings(**{"retention_bytes": RING, **settings})
    return MemoryLog(Identity(TOPIC_ID, PARTITION, LOG_ID), settings, start=start)


class States:
    """Notes what a log derives."""

    def __init__(self):
        self.restored, self.replayed = [], []

    def restore(self, snapshot, offset):
        self.restored.append((snapshot, offset))
        return True

    def replay(self, batch, body):
        self.replayed.append((batch.base_offset, bytes(body)))


@pytest.mark.parametrize("max_bytes", [1, 400, 1 << 20])
def test_what_is_appended_is_read_whole_and_in_order(batches, max_bytes):
    log = open_log(start=7)
    written = batches.fill(log, 50, count=3)
    assert (log.start, log.end, log.synced_end) == (7, 157, 157)
    assert batches.read_all(log, max_bytes=max_bytes) == written


def test_a_run_of_batches_is_read_from_inside_and_up_to_a_limit(batches):
    log = open_log()
    run = [batches.make(offset, count=2) for offset in (0, 2, 4, 6)]
    log.append(b"".join(run), batches.headers(b"".join(run)))
    part = log.read(3, 6, 1 << 20)
    assert (part.data, part.first_offset, part.next_offset) == (run[1] + run[2], 2, 6)
    assert log.read(0, 5, 1 << 20).next_offset == 4  # no batch that ends behind the limit
    assert log.read(8, 8, 1 << 20).data == b""
    for beyond in (9, -1):
        with pytest.raises(OffsetOutOfRange) as error:
            log.read(beyond, 20, 100)
        assert (error.value.start, error.value.end) == (0, 8)


def test_batches_that_do_not_continue_the_log_are_refused_and_change_nothing(batches):
    log = open_log()
    batches.fill(log, 2)
    stray = batches.make(5)
    with pytest.raises(CorruptData):
        log.append(stray, batches.headers(stray))
    assert (log.end, log.bytes) == (2, sum(len(batch) for batch in batches.read_all(log)))


def test_memory_stays_bounded_while_a_hundred_times_the_ring_passes(batches):
    log = open_log()
    body = bytes(16 * KIB)
    most = 0
    while log.end < 100 * RING // len(body):
        batches.append(log, body=body)
        if log.is_over_limit:
            log.retain(0, committed=log.end)
        most = max(most, log.bytes)
    assert log.bytes >= RING
    assert most <= RING + 2 * RING // 8
    assert batches.read_all(log)[-1].endswith(body)


def test_what_is_not_committed_stays_and_beyond_twice_the_ring_nothing_more_is_taken(batches):
    log = open_log()
    body = bytes(16 * KIB)
    while log.bytes <= 2 * RING:
        batches.append(log, body=body)
        log.retain(0, committed=0)
    with pytest.raises(NotReady, match="full"):
        batches.append(log, body=body)
    assert log.start == 0
    assert 2 * RING < log.bytes <= 2 * RING + 2 * len(body)
    log.retain(0, committed=log.end)
    batches.append(log, body=body)


def test_segments_go_by_age_and_where_the_head_says(batches):
    log = open_log(retention_age_s=10)
    for at_us in (1_000_000, 2_000_000, 30_000_000):
        batches.append(log, appended_at_us=at_us)
        log.roll()
    assert log.retain(13_000_000, committed=1) == 1
    assert log.retain(13_000_000, committed=3) == 2
    assert log.retention_end(50_000_000, committed=3) == 3
    assert log.retire_below(3, committed=2) == 2
    assert log.retire_below(3, committed=3) == 3
    batches.append(log, appended_at_us=60_000_000)
    assert not log.roll_due(65_000_000)
    assert log.roll_due(75_000_000)


def test_a_cut_takes_the_end_and_nothing_else(batches):
    log = open_log()
    run = b"".join(batches.make(offset, epoch=1) for offset in range(3))
    log.append(run, batches.headers(run))
    log.roll()
    batches.fill(log, 3, epoch=2)
    assert log.epochs() == [(1, 0), (2, 3)]
    log.truncate(2, committed=1)
    assert (log.end, log.epochs(), batches.read_all(log)) == (2, [(1, 0)], [batches.make(0), batches.make(1)])
    batches.append(log, epoch=3)
    assert log.epochs() == [(1, 0), (3, 2)]
    for offset, committed in ((1, 2), (9, 0)):
        with pytest.raises(InvalidArgument):
            log.truncate(offset, committed=committed)


def test_a_cut_inside_a_batch_is_refused(batches):
    log = open_log()
    batches.fill(log, 2, count=4)
    with pytest.raises(InvalidArgument, match="not the end of a batch"):
        log.truncate(6, committed=0)
    assert log.end == 8


def test_states_are_derived_from_the_newest_snapshot_on(batches):
    log = open_log()
    log.snapshot = lambda: b"as of %d" % log.end
    batches.fill(log, 2)
    log.roll()
    written = batches.append(log)
    states = States()
    log.derive(states)
    assert states.restored == [(b"as of 2", 2)]
    assert states.replayed == [(2, written[-60:])]
    log.retain(0, committed=log.end)
    log.retire_below(2, committed=3)
    assert log.start_snapshot() == b"as of 2"


def test_a_producers_batches_and_times_are_found(batches):
    log = open_log()
    batches.fill(log, 5, timestamp_us=None)
    search = log.search(1, 0, 4)
    assert search.go_on()
    assert sorted(search.found) == [0, 1, 2, 3]
    assert log.offset_for_time(3, limit=5) == 3
    assert log.offset_for_time(99, limit=5) == 5


def test_a_log_that_was_closed_holds_and_takes_nothing(batches):
    log = open_log()
    batch = batches.append(log)
    log.delete()
    assert log.bytes == 0
    for act in (lambda: log.read(0, 1, 1), lambda: log.append(batch, batches.headers(batch))):
        with pytest.raises(Closed):
            act()
    assert next(extents(batch))[3] == 1
