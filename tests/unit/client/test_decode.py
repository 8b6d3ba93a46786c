"""Deliveries become messages whatever they are made of, and damage never passes."""

import os
import random

import msgspec
import pytest
from crc32c import crc32c

from stentor.client.decode import PlainRows, decode_messages, decode_rows, offset_batches
from stentor.errors import CorruptData
from stentor.wire import batch, header, sparse


def _delivery(generator, kind, batches):
    """A delivery of one kind, and what should come out of it."""
    chunks, expected, offset = [], [], 0
    for index in range(batches):
        count = generator.choice([1, 1, 1, 3, 20]) if kind == "mixed" else 1
        keys = [_bytes(generator, kind, 8) for _ in range(count)]
        values = [_bytes(generator, kind, 20) for _ in range(count)]
        headers = _headers(generator, kind, count)
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


def _headers(generator, kind, count):
    if kind not in ("mixed", "with headers") or generator.random() < {"mixed": 0.9, "with headers": 0.1}[kind]:
        return None
    return [[(f"h{i}", generator.choice([b"x", b"", None])) for i in range(generator.randrange(4))]] * count


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


@pytest.mark.parametrize("kind", ["alike", "different", "mixed", "with headers"])
def test_every_message_comes_out_as_it_went_in(kind):
    generator = random.Random(kind)
    for _ in range(30):
        chunk, expected = _delivery(generator, kind, generator.randint(1, 600))
        assert _decoded(chunk) == expected


@pytest.mark.parametrize("kind", ["alike", "different", "mixed", "with headers"])
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


@pytest.mark.parametrize("kind", ["alike", "different", "mixed", "with headers"])
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


def test_one_message_batches_with_headers_are_decoded_together():
    chunk, expected = _delivery(random.Random(2), "with headers", 200)
    assert len(list(decode_messages(chunk, "t", 0, 0, None))) <= 4
    assert _decoded(chunk) == expected


def test_headers_that_are_not_what_they_claim_to_be_are_corrupt_data_though_checksums_are_right():
    """What comes before them is delivered."""
    good = batch.encode([1000], [b"k"], [b"v"], [[("name", b"value")]])
    at = len(good.body) - 4 - 8 - len(b"namevalue")  # the number of headers
    for wrong, place in ((b"\xff\xff\xff\xff", at), (b"\x02", at), (b"\xff", at + 4), (b"\xff", len(good.body) - 9)):
        body = bytes(good.body)[:place] + wrong + bytes(good.body)[place + len(wrong) :]
        bad = msgspec.structs.replace(good, body=body, body_checksum=crc32c(body))
        chunk = b""
        for offset, encoded in enumerate([good] * 3 + [bad]):
            packed = batch.address(encoded, topic_id=1, partition=0, producer_id=3, generation=0, sequence=offset)
            header.stamp(memoryview(packed), 0, base_offset=offset, epoch=1, appended_at_us=5)
            chunk += bytes(packed) + bytes(encoded.body)
        found = decode_messages(chunk, "t", 0, 0, None)
        assert [message.offset for message in next(found).messages] == [0, 1, 2]
        with pytest.raises(CorruptData):
            next(found)


def _as_rows(chunk, floor=0):
    found = []
    for rows in decode_rows(chunk, "t", 0, floor):
        if isinstance(rows, PlainRows):
            found += zip(rows.offsets, rows.keys, rows.values, strict=True)
        else:
            found += [(message.offset, message.key, message.value) for message in rows]
    return found


@pytest.mark.parametrize("kind", ["alike", "different", "mixed", "with headers"])
def test_a_table_gets_the_rows_that_a_reader_gets(kind):
    generator = random.Random(kind)
    for _ in range(10):
        chunk, expected = _delivery(generator, kind, generator.randint(1, 200))
        assert _as_rows(chunk) == [row[:3] for row in expected]
        floor = generator.randrange(len(expected) + 1)
        assert _as_rows(chunk, floor) == [row[:3] for row in expected[floor:]]


def _one_batch(keys, values, headers=None, compression=""):
    encoded = batch.encode([1000] * len(keys), keys, values, headers, compression=compression)
    packed = batch.address(encoded, topic_id=1, partition=0, producer_id=3, generation=0, sequence=0)
    header.stamp(memoryview(packed), 0, base_offset=70, epoch=1, appended_at_us=5)
    return bytes(packed) + bytes(encoded.body)


def _sizes(kind, count):
    generator = random.Random(kind)
    return [20 if kind == "even" else generator.randint(1, 40) for _ in range(count)]


@pytest.mark.parametrize("kind", ["even", "uneven"])
@pytest.mark.parametrize("count", [40, 1000])
def test_large_batches_that_only_set_keys_come_by_columns(kind, count):
    keys, values = ([os.urandom(size) for size in _sizes(kind, count)] for _ in range(2))
    assert list(decode_rows(_one_batch(keys, values), "t", 0, 0)) == [PlainRows(keys, values, range(70, 70 + count))]
    assert _as_rows(_one_batch(keys, values), 75) == list(zip(range(70, 70 + count), keys, values, strict=True))[5:]


@pytest.mark.parametrize("what", ["a deletion", "headers", "compression", "empty values"])
def test_other_batches_come_by_columns_only_if_nothing_is_lost(what):
    keys, values = [b"k%d" % number for number in range(50)], [b"value"] * 50
    headers = [[("h", b"x")]] + [None] * 49 if what == "headers" else None
    if what == "a deletion":
        values[7] = None
    elif what == "empty values":
        values = [b""] * 50
    chunk = _one_batch(keys, values, headers, "zstd" if what == "compression" else "")
    (rows,) = decode_rows(chunk, "t", 0, 0)
    assert isinstance(rows, PlainRows) == (what == "empty values")
    assert _as_rows(chunk) == list(zip(range(70, 120), keys, values, strict=True))


def test_a_table_gets_no_row_of_a_damaged_batch():
    sound = _one_batch([b"key"] * 50, [b"value"] * 50)
    for position in range(header.HEADER_BYTES, len(sound), 97):
        damaged = sound[:position] + bytes([sound[position] ^ 1]) + sound[position + 1 :]
        with pytest.raises(CorruptData):
            _as_rows(damaged)


def test_a_table_passes_over_a_refused_batch():
    refused = bytearray(_one_batch([b"key"] * 50, [b"value"] * 50))
    header.mark_refused(memoryview(refused), 0)
    header.seal(memoryview(refused), 0)
    assert _as_rows(bytes(refused)) == []


@pytest.mark.parametrize("count", [5, 500])
def test_rows_that_are_left_of_a_batch_keep_their_offsets(count):
    keys = [b"k%04d" % number for number in range(count)]
    whole = _one_batch(keys, keys)
    kept = range(0, count, 3)
    left = sparse.keep(header.check_header(whole, 0), whole[header.HEADER_BYTES :], kept)
    expected = [(70 + number, keys[number], keys[number]) for number in kept]
    assert _as_rows(left) == expected
    assert _as_rows(left, 74) == [row for row in expected if row[0] >= 74]
    assert _as_rows(sparse.keep(header.check_header(whole, 0), whole[header.HEADER_BYTES :], ())) == []
