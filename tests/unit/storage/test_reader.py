from __future__ import annotations

import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from stentor.errors import CorruptData, OffsetOutOfRange
from stentor.storage import reader as reader_module
from stentor.storage.model import SEGMENT_HEADER_BYTES
from stentor.wire import header as wire


def flip(path, position):
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 4]))


@pytest.mark.parametrize("position", [0, 5, 8, 13, 20, 33, 85, 96, 140])
def test_damage_in_a_sealed_segment_is_refused_and_everything_else_stays_readable(logs, batches, position):
    log = logs.open(segment_bytes=2000)
    written = batches.fill(log, 40)
    log.sync()
    length = len(written[0])
    base = int(logs.files()[1].stem)
    flip(logs.files()[1], SEGMENT_HEADER_BYTES + 3 * length + position)
    bad = base + 3
    with pytest.raises(CorruptData) as refused:
        log.read(bad, 40, 1)
    assert refused.value.detail["resume_at"] == bad + 1
    assert f"Offsets {bad} to {bad}" in str(refused.value)
    assert f"offset {bad + 1}" in refused.value.hint
    for offset in range(40):
        if offset != bad:
            assert log.read(offset, 40, 1).data == written[offset]
    assert log.damaged == [(bad, bad + 1)]
    assert log.statistics().damaged == ((bad, bad + 1),)
    batches.fill(log, 5)
    assert log.end == 45
    log.close()
    reopened = logs.open(segment_bytes=2000, synced_end=45)
    assert reopened.damaged == [(bad, bad + 1)]
    assert reopened.end == 45


@pytest.mark.parametrize("position", [0, 5, 8, 13, 20, 33, 85, 96, 140])
def test_damage_in_the_active_segment_is_refused_while_writes_go_on(logs, batches, position):
    log = logs.open()
    written = batches.fill(log, 10)
    flip(logs.files()[0], SEGMENT_HEADER_BYTES + 4 * len(written[0]) + position)
    with pytest.raises(CorruptData) as refused:
        log.read(4, 10, 1)
    assert refused.value.detail["resume_at"] == 5
    written += batches.fill(log, 10)
    for offset in (0, 3, 5, 9, 10, 19):
        assert log.read(offset, 20, 1).data == written[offset]
    log.sync()
    log.close()
    reopened = logs.open(synced_end=20)
    assert (reopened.damaged, reopened.end) == ([(4, 5)], 20)
    assert reopened.read(19, 20, 1).data == written[19]


def test_a_long_read_stops_before_damage_and_the_next_one_says_where_to_go_on(logs, batches):
    log = logs.open()
    written = batches.fill(log, 10)
    flip(logs.files()[0], SEGMENT_HEADER_BYTES + 4 * len(written[0]) + 99)
    assert log.read(0, 10, 1 << 20).next_offset == 4
    with pytest.raises(CorruptData):
        log.read(4, 10, 1 << 20)
    assert log.read(5, 10, 1 << 20).next_offset == 10
    assert log.read(0, 10, 1 << 20).next_offset == 4


def test_an_offset_behind_unknown_damage_is_found(logs, batches):
    log = logs.open()
    written = batches.fill(log, 100)
    flip(logs.files()[0], SEGMENT_HEADER_BYTES + 50 * len(written[0]) + 8)
    assert log.read(80, 100, 1).data == written[80]
    assert log.damaged == [(50, 51)]


@pytest.mark.parametrize("left", [0, 64, 64 + 156 * 3, 64 + 156 * 3 + 50, 64 + 156 * 3 + 120])
def test_a_file_cut_short_under_a_running_log_is_damage(logs, batches, left):
    log = logs.open()
    written = batches.fill(log, 10)
    with logs.files()[0].open("r+b") as file:
        file.truncate(left)
    first = 0 if left <= 64 else 3
    for offset in range(first, 10):
        with pytest.raises(CorruptData) as refused:
            log.read(offset, 10, 1)
        assert refused.value.detail["resume_at"] == 10
    assert log.damaged == [(first, 10)]
    written += batches.fill(log, 5)
    assert [log.read(offset, 15, 1).data for offset in range(10, 15)] == written[10:]


def test_a_large_batch_cut_short_under_a_running_log_is_damage(logs, batches):
    log = logs.open()
    batches.append(log, body=bytes(100_000))
    with logs.files()[0].open("r+b") as file:
        file.truncate(50_000)
    with pytest.raises(CorruptData):
        log.read(0, 1, 1000)


def test_adjacent_damage_in_two_segments_resumes_behind_both(logs, batches):
    log = logs.open(segment_bytes=1000)
    written = batches.fill(log, 20)
    log.sync()
    length, border = len(written[0]), int(logs.files()[1].stem)
    flip(logs.files()[0], SEGMENT_HEADER_BYTES + (border - 1) * length + 99)
    flip(logs.files()[1], SEGMENT_HEADER_BYTES + 99)
    with pytest.raises(CorruptData):
        log.read(border, 20, 1)
    with pytest.raises(CorruptData) as refused:
        log.read(border - 1, 20, 1)
    assert refused.value.detail["resume_at"] == border + 1


def test_bytes_that_the_disk_cannot_read_are_damage_and_the_rest_stays_readable(logs, batches, monkeypatch):
    log = logs.open()
    written = batches.fill(log, 200)
    pread = os.pread
    bad_from, bad_to = 8192, 12288

    def bad_sector(fd, count, position):
        if position < bad_to and position + count > bad_from:
            raise OSError(5, "Input/output error")
        return pread(fd, count, position)

    monkeypatch.setattr(os, "pread", bad_sector)
    length = len(written[0])
    first, last = (bad_from - SEGMENT_HEADER_BYTES) // length, (bad_to - SEGMENT_HEADER_BYTES) // length
    for offset in range(200):
        if first <= offset <= last:
            with pytest.raises(CorruptData):
                log.read(offset, 200, 1)
        else:
            assert log.read(offset, 200, 1).data == written[offset]
    assert log.damaged == [(first, last + 1)]


def test_indexes_of_sealed_segments_are_loaded_when_needed_and_bounded_in_bytes(logs, batches, monkeypatch):
    cache = reader_module.IndexCache(bytes_max=3000)
    monkeypatch.setattr(reader_module, "INDEX_CACHE", cache)
    log = logs.open(segment_bytes=200_000)
    body = bytes(10_000)
    for _ in range(400):
        batches.append(log, body=body)
    log.sync()
    assert all(segment.index is None for segment in log._state.segments[:-1])
    for offset in random.Random(1).sample(range(400), 400):
        assert log.read(offset, 400, 1).first_offset == offset
        assert cache.bytes() <= 3000
    assert cache.bytes() > 0


def test_a_missing_index_of_a_running_log_is_rebuilt_on_the_way(logs, batches):
    log = logs.open(segment_bytes=100_000)
    written = batches.fill(log, 2000)
    log.sync()
    logs.files(".index")[1].unlink()
    offset = int(logs.files()[1].stem) + 500
    assert log.read(offset, 2000, 1).data == written[offset]
    assert len(logs.files(".index")) == len(logs.files()) - 1


def test_the_offset_for_a_time_is_that_of_the_first_batch_with_a_message_at_or_after_it(logs, batches):
    log = logs.open(segment_bytes=1000)
    for _ in range(20):
        batches.append(log, count=5, timestamp_us=log.end * 10)
    assert log.offset_for_time(-5, limit=100) == 0
    assert log.offset_for_time(0, limit=100) == 0
    assert log.offset_for_time(1, limit=100) == 5
    assert log.offset_for_time(300, limit=100) == 30
    assert log.offset_for_time(950, limit=100) == 95
    assert log.offset_for_time(951, limit=100) == 100
    assert log.offset_for_time(600, limit=40) == 40
    assert log.offset_for_time(951, limit=80) == 80


def test_the_offset_for_a_time_is_right_for_timestamps_in_any_order(logs, batches):
    chance = random.Random(7)
    log = logs.open(segment_bytes=120_000)
    times = [chance.randrange(1000) * (1 + place // 100) for place in range(3000)]
    for time_us in times:
        batches.append(log, timestamp_us=time_us)
    log.sync()
    for wanted in [*range(0, 32_000, 400), *times[::50], max(times), max(times) + 1]:
        expected = next((offset for offset, time_us in enumerate(times) if time_us >= wanted), 3000)
        assert log.offset_for_time(wanted, limit=3000) == expected
    log.close()
    log = logs.open(segment_bytes=120_000, synced_end=3000)
    assert log.offset_for_time(max(times), limit=3000) == times.index(max(times))


def test_the_offset_for_a_time_passes_over_damage(logs, batches):
    log = logs.open()
    written = [batches.append(log, timestamp_us=offset * 10) for offset in range(20)]
    flip(logs.files()[0], SEGMENT_HEADER_BYTES + 7 * len(written[0]) + 50)
    assert log.offset_for_time(70, limit=20) == 8
    assert log.damaged == [(7, 8)]
    assert log.offset_for_time(60, limit=20) == 6


def test_an_empty_log_has_no_offset_for_any_time(logs):
    log = logs.open()
    assert log.offset_for_time(0, limit=0) == 0


def read_checked(log, batches, offset, max_bytes):
    """Read on from `offset`, compare with what was written, and return where to go on."""
    try:
        piece = log.read(offset, log.end, max_bytes)
    except OffsetOutOfRange as retired:
        return max(retired.start, offset)
    for at, length, base, _ in wire.extents(piece.data):
        assert base == offset
        assert piece.data[at : at + length] == batches.make(base)
        offset += 1
    return offset


def test_reads_go_on_while_batches_are_appended_synced_rolled_and_retired(logs, batches):
    log = logs.open(segment_bytes=20_000, retention_bytes=100_000)
    log.snapshot = lambda: b"state"
    total = 6000
    done = threading.Event()

    def repeat(act):
        while not done.is_set():
            act()

    def consume(seed):
        chance, offset = random.Random(seed), 0
        while offset < total:
            offset = read_checked(log, batches, offset, chance.choice([1, 1000, 50_000]))
            if chance.random() < 0.01:
                offset = chance.randint(log.start, log.end)

    with ThreadPoolExecutor(5) as pool:
        beside = [
            pool.submit(repeat, log.sync),
            pool.submit(repeat, lambda: log.retain(0, committed=log.synced_end)),
        ]
        consumers = [pool.submit(consume, seed) for seed in range(3)]
        try:
            while log.end < total:
                chunk = b"".join(batches.make(log.end + ahead) for ahead in range(10))
                log.append(chunk, batches.headers(chunk))
            for job in consumers:
                job.result(timeout=50)
        finally:
            done.set()
        for job in beside:
            job.result(timeout=10)
    assert log.damaged == []
    assert log.start > 0


def test_reads_during_a_truncation_never_take_vanished_bytes_for_damage(logs, batches):
    log = logs.open(segment_bytes=20_000)
    batches.fill(log, 500)
    log.sync()
    done = threading.Event()

    def consume(seed):
        chance = random.Random(seed)
        while not done.is_set():
            try:
                piece = log.read(chance.randrange(500), log.end, 10_000)
            except OffsetOutOfRange:
                continue
            for at, length, base, _ in wire.extents(piece.data):
                assert piece.data[at : at + length] == batches.make(base)

    with ThreadPoolExecutor(3) as pool:
        work = [pool.submit(consume, seed) for seed in range(3)]
        chance = random.Random(0)
        for _ in range(25):
            log.truncate(chance.randrange(300, log.end), committed=300)
            batches.fill(log, 500 - log.end)
            log.sync()
        done.set()
        for job in work:
            job.result(timeout=10)
    assert log.damaged == []
