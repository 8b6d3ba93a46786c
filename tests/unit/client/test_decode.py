"""Deliveries become messages whatever they are made of, and damage never passes."""

import os
import random

import pytest

from stentor.client.decode import decode_messages, offset_batches
from stentor.errors import CorruptData
from stentor.wire import batch, header


def _delivery(generator, kind, batches):
    """A delivery of one kind, and what should come out of it."""
    chunks, expected, offset = [], [], 0
    for index in range(batches):
        count = generator.choice([1, 1, 1, 3, 20]) if kind == "mixed" else 1
        keys = [_bytes(generator, kind, 8) for _ in range(count)]
        values = [_bytes(generator, kind, 20) for _ in range(count)]
        headers = [[("a", b"x"), ("b", None)]] * count if kind == "mixed" and generator.random() < 0.1 else None
        encoded = batch.encode([1000 + index] * count, keys, values, headers)
        packed = batch.address(encoded, topic_id=1, partition=0, producer_id=3, generation=0, sequence=index)
        header.stamp(memoryview(packed), 0, base_offset=offset, epoch=1, appended_at_us=5)
        chunks.append(bytes(packed) + bytes(encoded.body))
        expected += [
            (offset + row, keys[row], values[row], 1000 + index, headers[row] if headers else [])
            for row in range(count)
        ]
        offset += count
    return b"".join(chunks), expected


def _bytes(generator, kind, size):
    if kind == "alike":
        return generator.randbytes(size)
    return None if generator.random() < 0.1 else generator.randbytes(generator.randint(0, size))


def _decoded(chunk, floor=0, ceiling=None):
    return [
        (m.offset, m.key, m.value, m.timestamp_us, m.headers)
        for found in decode_messages(chunk, "t", 0, floor, ceiling)
        for m in found.messages
    ]


@pytest.mark.parametrize("kind", ["alike", "different", "mixed"])
def test_every_message_comes_out_as_it_went_in(kind):
    generator = random.Random(kind)
    for _ in range(30):
        chunk, expected = _delivery(generator, kind, generator.randint(1, 600))
        assert _decoded(chunk) == expected


@pytest.mark.parametrize("kind", ["alike", "different", "mixed"])
def test_only_the_wanted_offsets_come_out(kind):
    generator = random.Random(kind)
    chunk, expected = _delivery(generator, kind, 300)
    last = expected[-1][0]
    for floor, ceiling in ((5, None), (0, last - 3), (7, 9), (last, None), (4, 4)):
        wanted = [row for row in expected if row[0] >= floor and (ceiling is None or row[0] < ceiling)]
        assert _decoded(chunk, floor, ceiling) == wanted
        found = offset_batches(chunk, "t", 0, floor, ceiling)
        offsets = [offset for first, rows in found for offset in range(first, first + rows.num_rows)]
        assert offsets == [row[0] for row in wanted]


@pytest.mark.parametrize("kind", ["alike", "different", "mixed"])
def test_a_flipped_bit_anywhere_is_corrupt_data(kind):
    generator = random.Random(kind)
    chunk, _ = _delivery(generator, kind, 40)
    for _ in range(300):
        damaged = bytearray(chunk)
        damaged[generator.randrange(len(chunk))] ^= 1 << generator.randrange(8)
        with pytest.raises(CorruptData):
            _decoded(bytes(damaged))


def test_a_cut_off_delivery_is_corrupt_data():
    chunk, _ = _delivery(random.Random(1), "mixed", 10)
    for cut in range(1, 300, 7):
        with pytest.raises(CorruptData):
            _decoded(chunk[:-cut])


def test_arrow_batches_come_with_the_offset_of_their_first_message():
    encoded = batch.encode_at(1_000, [b"k"] * 100, [os.urandom(5) for _ in range(100)])
    packed = batch.address(encoded, topic_id=1, partition=4, producer_id=3, generation=0, sequence=0)
    header.stamp(memoryview(packed), 0, base_offset=50, epoch=1, appended_at_us=5)
    ((first, found),) = offset_batches(bytes(packed) + bytes(encoded.body), "orders", 4, 0, None)
    assert (first, found.num_rows) == (50, 100)
    assert found.column("key").to_pylist() == [b"k"] * 100
