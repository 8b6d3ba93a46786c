"""Trusted reads: what this process appended is handed out as it stands; damage is found on request."""

import random

import pytest

from stentor.errors import CorruptData
from stentor.wire import header as wire


def everything(log, start=0, max_bytes=100_000, **options):
    """The whole log, read after read."""
    data, offset = b"", start
    while offset < log.end:
        found = log.read(offset, log.end, max_bytes, **options)
        assert found.next_offset > offset
        data += found.data
        offset = found.next_offset
    return data


def test_a_trusted_read_gives_the_same_bytes_as_a_verified_one(logs, batches):
    log = logs.open(segment_bytes=200_000)
    batches.fill(log, 5_000)
    assert everything(log, trusted=True) == everything(log)
    chance = random.Random(5)
    for _ in range(200):
        offset, size = chance.randrange(5_000), chance.randrange(1, 200_000)
        limit = chance.randrange(offset, 5_001)
        trusted = log.read(offset, limit, size, trusted=True)
        assert trusted.next_offset <= max(limit, offset)
        ends = [end for *_, end in wire.extents(trusted.data)]
        if ends:
            assert (trusted.first_offset, ends[-1]) == (offset, trusted.next_offset)
        else:
            assert trusted.data == b""


def test_damage_under_a_trusted_read_is_found_by_the_verified_one_that_a_report_causes(logs, batches):
    log = logs.open()
    written = batches.fill(log, 2_000)
    path = logs.files()[0]
    with path.open("r+b") as file:
        place = 64 + 1_000 * len(written[0]) + 100
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))
    assert len(everything(log, trusted=True)) == sum(map(len, written))
    with pytest.raises(CorruptData):
        log.read(1_000, 2_000, 1)
    with pytest.raises(CorruptData) as refused:
        everything(log, start=1_000, trusted=True)
    assert refused.value.detail["resume_at"] == 1_001


def test_what_was_found_on_disk_is_verified_even_by_a_trusted_read(logs, batches):
    log = logs.open(segment_bytes=50_000)
    written = batches.fill(log, 1_000)
    log.sync()
    log.close()
    with logs.files()[0].open("r+b") as file:
        file.seek(64 + 10 * len(written[0]) + 100)
        file.write(b"\xff\xff\xff\xff")
    log = logs.open(segment_bytes=50_000)
    with pytest.raises(CorruptData):
        everything(log, trusted=True)
