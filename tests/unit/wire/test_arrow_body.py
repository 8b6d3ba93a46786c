import random
import struct
import tracemalloc

import pyarrow as pa
import pytest

from stentor import limits
from stentor.errors import CorruptData
from stentor.wire import arrow_body, arrow_message, batch
from stentor.wire.header import HEADER_BYTES

NODES, BUFFERS = 7, 17


class Metadata:
    """The flatbuffer of a body, with the places of what a forger would change."""

    def __init__(self, body: bytes) -> None:
        self.body = bytearray(body)
        (self.size,) = struct.unpack_from("<i", body, 4)
        self.message = self._i32(0)
        self.batch = self.follow(self.field(self.message, 2))
        self.nodes = self.follow(self.field(self.batch, 1)) + 4
        self.buffers = self.follow(self.field(self.batch, 2)) + 4
        self.data = 8 + self.size

    def _i32(self, at: int) -> int:
        return struct.unpack_from("<i", self.body, 8 + at)[0]

    def follow(self, at: int) -> int:
        return at + self._i32(at)

    def field(self, table: int, index: int) -> int:
        vtable = table - self._i32(table)
        (relative,) = struct.unpack_from("<H", self.body, 8 + vtable + 4 + 2 * index)
        return table + relative

    def put(self, layout: str, at: int, value: int) -> bytes:
        forged = bytearray(self.body)
        struct.pack_into(layout, forged, 8 + at, value)
        return bytes(forged)

    def put_data(self, buffer: int, value: int) -> bytes:
        """Change the claimed size at the front of a compressed buffer."""
        (offset,) = struct.unpack_from("<q", self.body, 8 + self.buffers + 16 * buffer)
        forged = bytearray(self.body)
        struct.pack_into("<q", forged, self.data + offset, value)
        return bytes(forged)

    def lengths(self) -> list[int]:
        return [struct.unpack_from("<q", self.body, 8 + self.buffers + 16 * i + 8)[0] for i in range(BUFFERS)]


def body_of(makes, count=20, *, compression="", headers=True) -> bytes:
    return makes.plain(count, compression=compression, headers=headers)[HEADER_BYTES:]


def refused(body: bytes, count: int = 20) -> str:
    with pytest.raises(CorruptData) as caught:
        arrow_body.decode(memoryview(body), count)
    return str(caught.value)


@pytest.mark.parametrize("compression", ["", "lz4", "zstd"])
def test_a_body_of_the_schema_is_read(makes, compression):
    found = arrow_body.decode(memoryview(body_of(makes, compression=compression)), 20)
    assert found.schema == arrow_body.SCHEMA
    assert found.num_rows == 20


def test_the_guard_knows_the_shape_that_arrow_gives_the_schema(makes):
    metadata = Metadata(body_of(makes))
    assert struct.unpack_from("<i", metadata.body, 8 + metadata.nodes - 4) == (NODES,)
    assert struct.unpack_from("<i", metadata.body, 8 + metadata.buffers - 4) == (BUFFERS,)


@pytest.mark.parametrize("wrong", [0, 19, 21, 2**31, 2**63 - 1, -1])
def test_another_number_of_messages_is_refused(makes, wrong):
    metadata = Metadata(body_of(makes))
    place = metadata.field(metadata.batch, 0)
    assert "20 messages" in refused(metadata.put("<q", place, wrong))


@pytest.mark.parametrize("node", range(NODES))
@pytest.mark.parametrize("wrong", [-1, 0, 19, 2**40, 2**63 - 1])
def test_a_column_of_another_length_is_refused(makes, node, wrong):
    metadata = Metadata(body_of(makes))
    refused(metadata.put("<q", metadata.nodes + 16 * node, wrong))


@pytest.mark.parametrize("node", range(NODES))
@pytest.mark.parametrize("wrong", [-1, 21, 2**63 - 1])
def test_an_impossible_number_of_nulls_is_refused(makes, node, wrong):
    metadata = Metadata(body_of(makes))
    assert "nulls" in refused(metadata.put("<q", metadata.nodes + 16 * node + 8, wrong))


@pytest.mark.parametrize("node", range(NODES))
def test_nulls_that_are_claimed_but_not_there_are_refused(makes, node):
    metadata = Metadata(body_of(makes))
    refused(metadata.put("<q", metadata.nodes + 16 * node + 8, 1))


@pytest.mark.parametrize("buffer", range(BUFFERS))
@pytest.mark.parametrize("field", [0, 8])
@pytest.mark.parametrize("wrong", [-1, -(2**63), 2**31, 2**40, 2**63 - 1])
def test_a_buffer_that_reaches_outside_is_refused(makes, buffer, field, wrong):
    metadata = Metadata(body_of(makes))
    assert "past its end" in refused(metadata.put("<q", metadata.buffers + 16 * buffer + field, wrong))


@pytest.mark.parametrize("buffer", [1, 3, 6, 9, 12, 15])
@pytest.mark.parametrize("short", [0, 1, 8])
def test_a_buffer_too_small_for_its_column_is_refused(makes, buffer, short):
    metadata = Metadata(body_of(makes))
    refused(metadata.put("<q", metadata.buffers + 16 * buffer + 8, short))


def test_a_time_column_whose_buffer_has_odd_bytes_can_be_read(makes):
    metadata = Metadata(body_of(makes))
    length = metadata.lengths()[1]
    forged = metadata.put("<q", metadata.buffers + 16 + 8, length + 3)
    found = arrow_body.decode(memoryview(forged), 20)
    assert list(arrow_body.columns(found)[0]) == makes.columns(20)[0]
    assert arrow_body.time_range(found) == (makes.now_us, makes.now_us + 19)


@pytest.mark.parametrize("column", [3, 6, 9, 12, 15])
@pytest.mark.parametrize("wrong", [-1, 2**31 - 1, 2**30, 5])
def test_offsets_out_of_range_or_order_are_refused(makes, column, wrong):
    metadata = Metadata(body_of(makes))
    (offset,) = struct.unpack_from("<q", metadata.body, 8 + metadata.buffers + 16 * column)
    forged = bytearray(metadata.body)
    struct.pack_into("<i", forged, metadata.data + offset + 4 * 10, wrong if wrong != 5 else 0)
    struct.pack_into("<i", forged, metadata.data + offset + 4 * 9, 5)
    refused(bytes(forged))


def test_a_header_key_that_is_not_text_is_refused(makes):
    metadata = Metadata(body_of(makes))
    (offset,) = struct.unpack_from("<q", metadata.body, 8 + metadata.buffers + 16 * 13)
    forged = bytearray(metadata.body)
    forged[metadata.data + offset] = 0xFF
    assert "UTF" in refused(bytes(forged))


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
@pytest.mark.parametrize("claim", [2**62, 2**40, limits.BATCH_EXPANDED_BYTES_MAX + 1])
def test_a_bomb_is_refused_before_anything_is_allocated(makes, compression, claim):
    metadata = Metadata(body_of(makes, compression=compression))
    forged = metadata.put_data(7, claim)
    before = pa.default_memory_pool().bytes_allocated()
    peak = pa.default_memory_pool().max_memory()
    tracemalloc.start()
    try:
        assert "would expand" in refused(forged)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert pa.default_memory_pool().bytes_allocated() == before
    assert pa.default_memory_pool().max_memory() == peak


def test_a_bomb_in_many_small_parts_is_refused_as_well(makes):
    metadata = Metadata(body_of(makes, compression="zstd"))
    share = limits.BATCH_EXPANDED_BYTES_MAX // 4 + 1
    for buffer in (4, 7, 13, 16):
        metadata.body = bytearray(metadata.put_data(buffer, share))
    assert "would expand" in refused(bytes(metadata.body))


def test_a_real_bomb_that_keeps_its_word_is_refused(makes):
    """32 MiB of zeros compress to a few kilobytes; so would 320."""
    value = bytes(limits.MESSAGE_VALUE_BYTES_MAX)
    table = arrow_body.record_batch([makes.now_us] * 5, [None] * 5, [value] * 5, None)
    body = arrow_body.encode(table, "zstd")
    assert len(body) < limits.BATCH_BYTES_MAX // 100
    assert "would expand" in refused(bytes(body), 5)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
@pytest.mark.parametrize("claim", [-2, -(2**63), 0, 1, 2**20])
def test_a_compressed_buffer_that_lies_about_its_size_is_refused(makes, compression, claim):
    metadata = Metadata(body_of(makes, compression=compression))
    refused(metadata.put_data(7, claim))


def test_more_headers_than_the_limit_are_refused(makes):
    count = limits.BATCH_HEADERS_MAX + 1
    empty = pa.py_buffer(bytes(4 * (count + 1)))
    keys = pa.Array.from_buffers(pa.string(), count, [None, empty, pa.py_buffer(b"")])
    values = pa.Array.from_buffers(pa.binary(), count, [None, empty, pa.py_buffer(b"")])
    pairs = pa.StructArray.from_arrays([keys, values], fields=list(arrow_body.HEADER_TYPE.value_type))
    offsets = pa.array([0] * 20 + [count], pa.int32())
    headers = pa.ListArray.from_arrays(offsets, pairs).cast(arrow_body.HEADER_TYPE)
    plain = arrow_body.record_batch(*makes.columns(20))
    table = pa.RecordBatch.from_arrays([*plain.columns[:3], headers], schema=arrow_body.SCHEMA)
    assert "headers" in refused(bytes(arrow_body.encode(table, "zstd")))


def test_a_header_without_a_key_is_refused(makes):
    fields = [pa.field("key", pa.string()), pa.field("value", pa.binary())]
    pairs = pa.StructArray.from_arrays([pa.nulls(20, pa.string()), pa.nulls(20, pa.binary())], fields=fields)
    headers = pa.ListArray.from_arrays(pa.array(range(21), pa.int32()), pairs)
    plain = arrow_body.record_batch(*makes.columns(20))
    loose = pa.RecordBatch.from_arrays([*plain.columns[:3], headers], names=arrow_body.SCHEMA.names)
    forged = makes.with_body(makes.plain(20, headers=True), bytes(loose.serialize()))
    with pytest.raises(CorruptData, match="no key"):
        makes.judge(forged)


def test_a_message_without_a_timestamp_is_refused(makes):
    plain = arrow_body.record_batch(*makes.columns(20))
    times = pa.nulls(20, arrow_body.SCHEMA.field(0).type)
    loose = pa.RecordBatch.from_arrays([times, *plain.columns[1:]], names=arrow_body.SCHEMA.names)
    assert "timestamp" in refused(bytes(loose.serialize()))


def foreign_tables():
    numbers = pa.array(range(20), pa.int64())
    words = pa.array([f"w{i}" for i in range(20)])
    yield "one column", {"timestamp": numbers}
    yield "other types", {"timestamp": numbers, "key": words, "value": words, "headers": words}
    yield "many columns", {f"c{i}": numbers for i in range(60)}
    yield "views", {"a": words.cast(pa.string_view()), "b": words.cast(pa.binary_view())}
    yield "dictionary", {"a": words.dictionary_encode()}
    yield "large offsets", {"timestamp": numbers, "key": words.cast(pa.large_binary())}
    yield "nulls", {"a": pa.nulls(20)}


@pytest.mark.parametrize(("name", "columns"), list(foreign_tables()), ids=lambda value: str(value)[:20])
def test_a_record_batch_of_another_schema_is_refused(name, columns):
    refused(bytes(pa.RecordBatch.from_pydict(columns).serialize()))


def test_other_arrow_messages_are_refused(makes):
    assert "not a record batch" in refused(bytes(arrow_body.SCHEMA.serialize()))
    sink = pa.BufferOutputStream()
    pa.ipc.write_tensor(pa.Tensor.from_numpy(pa.array(range(20)).to_numpy()), sink)
    refused(bytes(sink.getvalue()))


def test_a_message_of_another_arrow_version_is_refused(makes):
    metadata = Metadata(body_of(makes))
    for version in (0, 1, 2, 3, 5, 0xFFFF):
        assert "version" in refused(metadata.put("<H", metadata.field(metadata.message, 0), version))


@pytest.mark.parametrize("wrong", [0, -1, 7, 2**62])
def test_a_message_that_is_not_as_long_as_it_claims_is_refused(makes, wrong):
    metadata = Metadata(body_of(makes))
    assert "long" in refused(metadata.put("<q", metadata.field(metadata.message, 3), wrong))
    assert "long" in refused(bytes(metadata.body) + bytes(64))


@pytest.mark.parametrize("size", [-1, 0, 7, 4097, 2**31 - 1])
def test_metadata_of_an_impossible_size_is_refused(makes, size):
    body = bytearray(body_of(makes))
    struct.pack_into("<i", body, 4, size)
    assert "not an Arrow message" in refused(bytes(body))


def test_no_cut_off_body_does_more_than_be_refused(makes):
    body = body_of(makes, compression="zstd")
    for length in range(len(body)):
        refused(body[:length])


def test_no_body_of_chance_does_more_than_be_refused(makes):
    chance = random.Random(1)
    body = body_of(makes)
    for _ in range(2_000):
        forged = bytearray(body)
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(8, 8 + Metadata(body).size)
            forged[at] = chance.randrange(256)
        try:
            found = arrow_body.decode(memoryview(forged), 20)
        except CorruptData:
            continue
        arrow_body.columns(found)


def test_the_range_of_times_is_found_for_equal_and_for_different_ones(makes):
    for times in ([5] * 20, list(range(20)), [9] * 19 + [3]):
        _, keys, values, _ = makes.columns(20)
        table = arrow_body.record_batch(times, keys, values, None)
        assert arrow_body.time_range(table) == (min(times), max(times))
        assert arrow_body.time_range(table.slice(19)) == (times[19], times[19])


def test_an_encoder_never_makes_what_the_guard_refuses(makes):
    for compression in arrow_message.COMPRESSIONS:
        for count in (1, 17, 3000):
            for headers in (False, True):
                encoded = batch.encode(*makes.columns(count, headers=headers), compression=compression or "lz4")
                arrow_body.guard(memoryview(encoded.body), count)


@pytest.mark.parametrize("headers", [False, True])
@pytest.mark.parametrize("count", [1, 17, 3000])
def test_what_this_arrow_makes_is_recognised_at_once(makes, monkeypatch, count, headers):
    def slow(*_):
        raise AssertionError("walked through the metadata")

    monkeypatch.setattr(arrow_message, "_read", slow)
    table = arrow_body.record_batch(*makes.columns(count, headers=headers))
    arrow_body.guard(arrow_body.encode(table), count)


def test_metadata_laid_out_in_another_way_is_walked_through(makes, monkeypatch):
    monkeypatch.setattr(arrow_message, "_read_usual", lambda *_: None)
    body = memoryview(body_of(makes))
    arrow_body.guard(body, 20)
    with pytest.raises(CorruptData):
        arrow_body.guard(body, 21)


def test_both_guards_refuse_the_same(makes, monkeypatch):
    """Every byte of the metadata in turn: the quick guard takes nothing that the thorough one would not."""
    body = bytearray(body_of(makes))
    usual = arrow_message._read_usual
    monkeypatch.setattr(arrow_message, "_read_usual", lambda *_: None)
    differ = 0
    for position in range(8 + Metadata(bytes(body)).size):
        for flip in (1, 0x80):
            body[position] ^= flip
            try:
                taken = usual(memoryview(body), 20)
            except CorruptData:
                taken = None
            if taken is not None:
                differ += 1
                arrow_body.guard(memoryview(body), 20)
            body[position] ^= flip
    assert differ, "some numbers may be changed and still be possible"
