"""Small batches become Arrow columns in bulk, and nothing else than batch by batch."""

import random
import struct

import pyarrow as pa
import pytest
from crc32c import crc32c

from stentor import limits
from stentor.client.decode import offset_batches
from stentor.errors import CorruptData
from stentor.wire import batch, header, runs
from stentor.wire.arrow_body import SCHEMA

ROW = struct.Struct("<qiii")
MANY = 700  # enough for the bulk decoder, and for its look at batches of one length


def sealed(body, base_offset, *, count=1, attributes=0, span=None):
    """A stored batch with right checksums around any body."""
    encoded = batch.Encoded(body, crc32c(body), count, attributes, 0, 0)
    packed = batch.address(encoded, topic_id=1, partition=0, producer_id=3, generation=0, sequence=base_offset)
    if span is not None:
        packed[84:88] = struct.pack("<I", span)
    header.stamp(memoryview(packed), 0, base_offset=base_offset, epoch=1, appended_at_us=5)
    return bytes(packed) + bytes(body)


def stored(keys, values, base_offset, headers=None, compression=""):
    encoded = batch.encode(
        [1000 + base_offset + i for i in range(len(keys))], keys, values, headers, compression=compression
    )
    return sealed(encoded.body, base_offset, count=encoded.count, attributes=encoded.attributes)


def batch_by_batch(chunk, position=0):
    """A delivery by the decoder of single batches: rows with their offsets, and what is wrong behind them."""
    rows = []
    try:
        while position < len(chunk):
            head = header.check_header(chunk, position)
            found = batch.record_batch(chunk, position, head)
            rows += enumerate(found.cast(RAW).to_pylist(), head.base_offset)
            position += head.length
    except CorruptData as error:
        return rows, str(error)
    return rows, None


def in_bulk(chunk):
    rows = []
    try:
        for first, found in offset_batches(chunk, "t", 0, 0, None):
            found.validate(full=True)
            assert found.schema.equals(SCHEMA)
            rows += enumerate(found.cast(RAW).to_pylist(), first)
    except CorruptData as error:
        return rows, str(error)
    return rows, None


RAW = SCHEMA.set(0, pa.field("timestamp", pa.int64(), nullable=False))  # hostile times are no dates


def some(generator, size, nulls=0.3):
    return None if generator.random() < nulls else generator.randbytes(generator.randint(0, size))


def pairs(generator, most=3):
    return [(generator.choice(["a", "é", "", "trace"]), some(generator, 9)) for _ in range(generator.randint(0, most))]


KINDS = {  # key, value and headers of a message
    "one length": lambda chance: (chance.randbytes(8), chance.randbytes(20), None),
    "different lengths": lambda chance: (some(chance, 8, 0), some(chance, 20, 0), None),
    "some nulls": lambda chance: (some(chance, 8), some(chance, 20), None),
    "no keys": lambda chance: (None, chance.randbytes(20), None),
    "no values": lambda chance: (chance.randbytes(8), None, None),
    "nothing at all": lambda _: (None, None, None),
    "one header": lambda chance: (b"key", b"value", [("trace", chance.randbytes(16))]),
    "three headers": lambda chance: (b"key", None, [("é" * chance.randint(0, 3), some(chance, 9)) for _ in range(3)]),
    "headers here and there": lambda chance: (b"key", b"value", chance.choice([None, [("a", b"b"), ("c", None)]])),
    "any headers": lambda chance: (some(chance, 8), some(chance, 20), chance.choice([None, pairs(chance)])),
    "no headers in the list": lambda _: (b"key", b"value", []),
    "many headers": lambda _: (b"key", b"value", [("n", b"x")] * 18),
}


def delivery(kind, counts, generator):
    chunks, offset = [], 40
    for count in counts:
        keys, values, headers = zip(*(KINDS[kind](generator) for _ in range(count)), strict=True)
        packed = None if all(row is None for row in headers) else list(headers)
        chunks.append(stored(list(keys), list(values), offset, packed))
        offset += count
    return b"".join(chunks)


@pytest.mark.parametrize("counts", [(1,), (10,), (1, 16, 1, 1, 2)], ids=["ones", "tens", "mixed"])
@pytest.mark.parametrize("kind", KINDS)
def test_many_small_batches_are_one_arrow_batch_of_the_same_rows(kind, counts):
    generator = random.Random(f"{kind} {counts}")
    for many in (3, 60, MANY):
        chunk = delivery(kind, counts * (many // len(counts) or 1), generator)
        assert in_bulk(chunk) == batch_by_batch(chunk)
        assert len(list(offset_batches(chunk, "t", 0, 0, None))) == 1


@pytest.mark.parametrize("kind", ["one length", "different lengths", "any headers"])
@pytest.mark.parametrize("many", [10, MANY])
def test_arrow_batches_in_between_stay_as_they_were_stored(kind, many):
    generator = random.Random(kind)
    chunks, offset = [], 0
    for turn in range(6):
        if turn % 2:
            compression = ["", "lz4", "zstd"][turn // 2]
            chunks.append(stored([b"k"] * 100, [b"v" * 9] * 100, offset, None, compression))
            offset += 100
        else:
            for _ in range(many):
                key, value, packed = KINDS[kind](generator)
                chunks.append(stored([key], [value], offset, None if packed is None else [packed]))
                offset += 1
    chunk = b"".join(chunks)
    assert in_bulk(chunk) == batch_by_batch(chunk)
    found = [(first, rows.num_rows) for first, rows in offset_batches(chunk, "t", 0, 0, None)]
    step = many + 100
    assert found == [part for turn in range(3) for part in ((turn * step, many), (turn * step + many, 100))]


@pytest.mark.parametrize("kind", ["one length", "different lengths", "one header"])
@pytest.mark.parametrize("before", [1, 5, 300, MANY])
def test_a_gap_in_the_offsets_starts_another_batch(kind, before):
    generator = random.Random(kind)
    offsets = [*range(before), *range(before + 7, before + 7 + MANY)]
    rows = [KINDS[kind](generator) for _ in offsets]
    chunk = b"".join(
        stored([key], [value], offset, None if packed is None else [packed])
        for offset, (key, value, packed) in zip(offsets, rows, strict=True)
    )
    assert in_bulk(chunk) == batch_by_batch(chunk)
    found = [(first, rows.num_rows) for first, rows in offset_batches(chunk, "t", 0, 0, None)]
    assert found == [(0, before), (before + 7, MANY)]


def test_a_batch_that_covers_more_offsets_than_it_has_messages_ends_a_run():
    body = ROW.pack(5, -1, 1, -1) + b"x"
    offsets = [0, 1, 2, 9, 10]
    chunk = b"".join(sealed(body, offset, span=7 if offset == 2 else 1) for offset in offsets)
    found = [(first, rows.num_rows) for first, rows in offset_batches(chunk, "t", 0, 0, None)]
    assert found == [(0, 3), (9, 2)]


@pytest.mark.parametrize("kind", ["one length", "different lengths", "any headers"])
@pytest.mark.parametrize("many", [40, MANY])
def test_damage_is_told_as_for_a_single_batch_and_what_comes_before_it_is_handed_out(kind, many):
    generator = random.Random(kind)
    chunk = delivery(kind, (1,) * many, generator)
    for _ in range(25):
        damaged = bytearray(chunk)
        damaged[generator.randrange(len(chunk))] ^= 1 << generator.randrange(8)
        expected = batch_by_batch(bytes(damaged))
        assert expected[1] is not None
        assert in_bulk(bytes(damaged)) == expected


@pytest.mark.parametrize("cut", [1, 50, 110, 123, 200, 300])
def test_a_cut_off_delivery_is_told_as_for_a_single_batch(cut):
    chunk = delivery("one length", (1,) * MANY, random.Random(cut))
    assert in_bulk(chunk[:-cut]) == batch_by_batch(chunk[:-cut])
    assert in_bulk(chunk[:-cut])[1] is not None


def pair(name, value, text=b""):
    return struct.pack("<II", name & 0xFFFFFFFF, value & 0xFFFFFFFF) + text


HOSTILE = {
    "a key longer than all": ROW.pack(0, 2**31 - 1, -1, -1),
    "a key that ends behind the row": ROW.pack(0, 9, -1, -1) + b"k",
    "a negative key": ROW.pack(0, -2, -1, -1),
    "lengths that overflow": ROW.pack(0, 2**31 - 1, 2**31 - 1, 2),
    "a value longer than all": ROW.pack(0, 1, 2**30, -1) + b"k",
    "bytes too many": ROW.pack(0, 1, 1, -1) + b"kvx",
    "headers without a number": ROW.pack(0, -1, -1, 2) + b"xx",
    "headers that are cut off": ROW.pack(0, -1, -1, 4) + struct.pack("<I", 1),
    "headers that are cut off in a pair": ROW.pack(0, -1, -1, 9) + struct.pack("<I", 1) + b"12345",
    "too many headers": ROW.pack(0, -1, -1, 4) + struct.pack("<I", 2**32 - 1),
    "a header's key of length -1": ROW.pack(0, -1, -1, 12) + struct.pack("<I", 1) + pair(-1, -1),
    "a header's key longer than all": ROW.pack(0, -1, -1, 12) + struct.pack("<I", 1) + pair(2**31 - 1, -1),
    "a header's value longer than all": ROW.pack(0, -1, -1, 13) + struct.pack("<I", 1) + pair(1, 2**31 - 1, b"k"),
    "a header's value of length -2": ROW.pack(0, -1, -1, 13) + struct.pack("<I", 1) + pair(1, -2, b"k"),
    "headers with bytes too many": ROW.pack(0, -1, -1, 14) + struct.pack("<I", 1) + pair(1, -1, b"kx"),
    "a header's key that is no text": ROW.pack(0, -1, -1, 13) + struct.pack("<I", 1) + pair(1, -1, b"\xff"),
    "nothing": b"",
    "less than a row": b"12345678",
}


@pytest.mark.parametrize("many", [20, MANY])
@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE)
def test_a_row_that_lies_is_told_as_for_a_single_batch(body, many):
    """Whoever made it sealed it, too: the checksums are right."""
    for at in (0, many // 2, many - 1):
        good = ROW.pack(0, -1, -1, 14) + struct.pack("<I", 1) + pair(1, 1, b"kv")
        chunk = b"".join(sealed(body if index == at else good, index, attributes=0x100) for index in range(many))
        expected = batch_by_batch(chunk)
        assert expected[1] is not None
        assert len(expected[0]) == at
        assert in_bulk(chunk) == expected


@pytest.mark.parametrize("many", [20, MANY])
@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE)
def test_rows_that_all_lie_are_told_as_for_a_single_batch(body, many):
    chunk = b"".join(sealed(body, index, attributes=0x100) for index in range(many))
    assert in_bulk(chunk) == batch_by_batch(chunk)
    assert in_bulk(chunk)[1] is not None


@pytest.mark.parametrize("count", [0, 2, 17, 2**32 - 1])
def test_a_wrong_number_of_messages_is_told_as_for_a_single_batch(count):
    body = ROW.pack(0, -1, 1, -1) + b"v"
    chunk = b"".join(sealed(body, index, count=count if index == 300 else 1) for index in range(MANY))
    assert in_bulk(chunk) == batch_by_batch(chunk)
    assert in_bulk(chunk)[1] is not None


def test_offsets_near_the_largest_are_judged_as_for_a_single_batch():
    body = ROW.pack(0, -1, 1, -1) + b"v"
    first = header.OFFSET_MAX - 300
    chunk = b"".join(sealed(body, first + index) for index in range(MANY))
    expected = batch_by_batch(chunk)
    assert "impossible offset" in expected[1]
    assert in_bulk(chunk) == expected


def test_a_run_is_bounded_in_messages_and_in_bytes():
    tiny = b"".join(sealed(ROW.pack(0, -1, -1, -1), index) for index in range(40_000))
    large = b"".join(sealed(ROW.pack(0, -1, 30_000, -1) + bytes(30_000), index) for index in range(300))
    for chunk, rows in ((tiny, 40_000), (large, 300)):
        position, found = 0, 0
        while position < len(chunk):
            run = runs.find(chunk, position)
            assert run.position - position <= limits.RUN_BYTES_MAX
            assert len(run.starts) <= limits.RUN_MESSAGES_MAX
            position, found = run.position, found + len(run.starts)
        assert found == rows


def test_a_message_larger_than_a_run_is_read_alone():
    value = bytes(limits.RUN_BYTES_MAX)
    chunk = b"".join(stored([b"k"], [value if index == 1 else b"v"], index) for index in range(3))
    found = [(first, rows.num_rows) for first, rows in offset_batches(chunk, "t", 0, 0, None)]
    assert found == [(0, 1), (1, 1), (2, 1)]
    assert in_bulk(chunk) == batch_by_batch(chunk)
