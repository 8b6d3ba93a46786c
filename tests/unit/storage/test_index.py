from __future__ import annotations

import random

import pytest
from crc32c import crc32c

from stentor.errors import CorruptData, FormatTooNew
from stentor.limits import INDEX_INTERVAL_BYTES
from stentor.storage.files import FileKind, seal, unseal
from stentor.storage.index import NEVER_US, SparseIndex, decode_index, decode_summary, encode_index, summary_length
from stentor.storage.model import Identity

IDENTITY = Identity(1, 2, 3)


@pytest.fixture
def filled(batches):
    """An index of 3,000 batches, and (offset, position, timestamp) of each."""
    chance = random.Random(3)
    index, position, truth = SparseIndex(), 64, []
    for offset in range(3000):
        batch = batches.make(offset, body=bytes(chance.randrange(500)), timestamp_us=chance.randrange(10_000))
        (header,) = batches.headers(batch)
        index.add([header], position)
        truth.append((offset, position, header.last_timestamp_us))
        position += len(batch)
    return index, truth


def encoded(index):
    return encode_index(index, IDENTITY, base=0, end=3000, data_bytes=10**6, file_bytes=10**6)[1]


def test_every_offset_is_found_within_one_interval(filled):
    index, truth = filled
    for offset, position, _ in truth:
        base, place = index.place_of(offset)
        assert base <= offset
        assert truth[base][1] == place
        assert position - place < INDEX_INTERVAL_BYTES
    assert index.bytes() < 32 * (truth[-1][1] // INDEX_INTERVAL_BYTES + 2)


def test_the_first_batch_of_a_time_is_never_before_the_place_found(filled):
    index, truth = filled
    for wanted in range(0, 10_000, 7):
        first = next((position for _, position, time_us in truth if time_us >= wanted), None)
        if first is not None:
            place = index.place_of_time(wanted)[1]
            assert place <= first < place + 2 * INDEX_INTERVAL_BYTES


def test_an_empty_index_knows_no_place():
    index = SparseIndex()
    assert index.place_of(0) is None
    assert index.place_of_time(0) is None
    assert index.timestamp_us_max == NEVER_US


def test_an_index_is_the_same_after_it_was_written_and_read(filled):
    index, _ = filled
    summary, again = decode_index(encoded(index), what="index")
    assert (again.offsets, again.positions) == (index.offsets, index.positions)
    assert (again.appended, again.timestamps) == (index.appended, index.timestamps)
    assert (again.epochs, again.epoch) == (index.epochs, index.epoch)
    assert summary.timestamp_us_max == index.timestamp_us_max
    assert (summary.base_offset, summary.end_offset, summary.entries) == (0, 3000, len(index.offsets))


def test_the_summary_can_be_read_without_the_entries(filled):
    data = encoded(filled[0])
    length = summary_length(data[:16])
    assert length < 200
    assert decode_summary(data[:length], what="index").end_offset == 3000


def test_any_flipped_bit_or_missing_byte_is_noticed(filled):
    data = encoded(filled[0])
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1 << (place % 8)
        with pytest.raises(CorruptData):
            decode_index(bytes(damaged), what="index")
    for size in (*range(200), len(data) - 1):
        with pytest.raises(CorruptData):
            decode_index(data[:size], what="index")


def test_one_kind_of_sealed_file_is_not_taken_for_another():
    with pytest.raises(CorruptData, match="something else"):
        unseal(FileKind.SNAPSHOT, seal(FileKind.DAMAGE, b"payload"), what="file")


def test_a_sealed_file_of_a_newer_version_is_refused_and_not_called_damaged():
    data = bytearray(seal(FileKind.SNAPSHOT, b"payload"))
    data[4] = 2
    with pytest.raises(CorruptData):
        unseal(FileKind.SNAPSHOT, data, what="file")
    data[12:16] = crc32c(bytes(data[16:]), crc32c(bytes(data[4:12]))).to_bytes(4, "little")
    with pytest.raises(FormatTooNew):
        unseal(FileKind.SNAPSHOT, data, what="file")
