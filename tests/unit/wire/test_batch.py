import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor import limits
from stentor.errors import CorruptData, InvalidArgument, LimitExceeded
from stentor.wire import arrow_body, batch, rows, sparse
from stentor.wire.arrow_message import COMPRESSIONS
from stentor.wire.header import (
    COMPRESSION_SHIFT,
    ENCODING_ARROW,
    ENCODING_ROWS,
    HAS_HEADERS,
    HEADER_BYTES,
    check_header,
    pack,
)

NOW_US = 1_700_000_000_000_000
TIME_MAX_US = 253_402_300_799_999_999

some_bytes = st.none() | st.binary(max_size=40)
some_headers = st.none() | st.lists(st.tuples(st.text(max_size=8), some_bytes), max_size=4)
messages = st.lists(
    st.tuples(st.integers(0, TIME_MAX_US), some_bytes, some_bytes, some_headers), min_size=1, max_size=40
)


def columns_of(data, header):
    timestamps, keys, values, headers = batch.columns(data, 0, header)
    return list(timestamps), list(keys), list(values), headers


@settings(deadline=None, max_examples=200)
@given(messages, st.sampled_from(["", "lz4", "zstd"]))
def test_messages_come_back_as_they_were_sent(makes, sent, compression):
    timestamps, keys, values, headers = map(list, zip(*sent, strict=True))
    data = makes.batch(timestamps, keys, values, headers, compression=compression)
    header = makes.judge(data)
    assert (header.count, header.span) == (len(sent), len(sent))
    assert (header.first_timestamp_us, header.last_timestamp_us) == (min(timestamps), max(timestamps))
    got = columns_of(data, header)
    assert got[:3] == (timestamps, keys, values)
    assert (got[3] or [None] * len(sent)) == headers


@settings(deadline=None, max_examples=100)
@given(messages, st.sampled_from(["", "lz4", "zstd"]), st.integers(0, 2**64 - 1) | st.none())
def test_the_first_message_that_is_not_older_is_found(makes, sent, compression, asked):
    times = [each[0] for each in sent]
    asked = times[-1] if asked is None else asked
    expected = next((index for index, time_us in enumerate(times) if time_us >= asked), -1)
    data = makes.batch(*map(list, zip(*sent, strict=True)), compression=compression)
    assert batch.first_at(data, 0, check_header(data), asked) == expected


@settings(deadline=None, max_examples=100)
@given(messages, st.sampled_from(["", "lz4", "zstd"]))
def test_arrow_readers_and_python_readers_see_the_same(makes, sent, compression):
    timestamps, keys, values, headers = map(list, zip(*sent, strict=True))
    data = makes.batch(timestamps, keys, values, headers, compression=compression)
    table = batch.record_batch(data, 0, check_header(data))
    assert table.schema == arrow_body.SCHEMA
    assert table.column(0).cast("int64").to_pylist() == timestamps
    assert table.column(1).to_pylist() == keys
    assert table.column(2).to_pylist() == values
    assert arrow_body.header_lists(table.column(3)) == headers


@pytest.mark.parametrize("count", [1, 2, 15, 16, 17, 18, 1000])
@pytest.mark.parametrize("headers", [False, True])
def test_up_to_sixteen_messages_are_packed_rows_and_more_are_arrow(makes, count, headers):
    data = makes.plain(count, headers=headers)
    header = makes.judge(data)
    assert header.encoding == (ENCODING_ROWS if count <= 16 else ENCODING_ARROW)
    assert bool(header.attributes & HAS_HEADERS) == headers
    timestamps, keys, values, found = columns_of(data, header)
    assert (timestamps, keys, values, found) == makes.columns(count, headers=headers)


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_compressed_batch_is_arrow_however_small(makes, compression):
    header = makes.judge(makes.plain(1, compression=compression))
    assert header.encoding == ENCODING_ARROW
    assert header.compression == COMPRESSIONS.index(compression)


@pytest.mark.parametrize("claimed", ["", "lz4", "zstd"])
@pytest.mark.parametrize("compression", ["", "lz4", "zstd"])
def test_a_batch_must_name_the_compression_that_it_has(makes, compression, claimed):
    data = bytearray(makes.plain(50, compression=compression))
    header = check_header(data)
    attributes = ENCODING_ARROW | COMPRESSIONS.index(claimed) << COMPRESSION_SHIFT
    named = msgspec.structs.replace(header, attributes=attributes | header.attributes & HAS_HEADERS)
    data[:HEADER_BYTES] = pack(named)
    if claimed == compression:
        batch.validate(data, check_header(data))
        return
    with pytest.raises(CorruptData, match="its header says that it is"):
        batch.validate(data, check_header(data))
    assert columns_of(data, check_header(data))[2] == columns_of(makes.plain(50), check_header(makes.plain(50)))[2]


@pytest.mark.parametrize("compression", ["", "lz4", "zstd"])
@pytest.mark.parametrize("count", [1, 16, 17, 50])
def test_null_and_empty_are_different_things(makes, count, compression):
    times = [NOW_US] * count
    nothing, empty = [None] * count, [b""] * count
    data = makes.batch(times, nothing, empty, [[]] * count, compression=compression)
    assert columns_of(data, makes.judge(data))[1:] == (nothing, empty, [[]] * count)
    data = makes.batch(times, empty, nothing, [[("", None), ("", b"")]] * count, compression=compression)
    assert columns_of(data, makes.judge(data))[1:] == (empty, nothing, [[("", None), ("", b"")]] * count)


def test_the_fast_path_for_one_timestamp_is_the_same_encoding(makes):
    for count in (3, 16, 17, 200):
        _, keys, values, _ = makes.columns(count)
        assert batch.encode_at(NOW_US, keys, values) == batch.encode([NOW_US] * count, keys, values)


def test_a_record_batch_of_the_schema_is_sent_as_it_is(makes):
    table = arrow_body.record_batch(*makes.columns(30, headers=True))
    data = makes.addressed(batch.encode_arrow(table))
    header = makes.judge(data)
    assert batch.record_batch(data, 0, header).equals(table)
    assert (header.first_timestamp_us, header.last_timestamp_us) == (NOW_US, NOW_US + 29)


def test_a_slice_of_a_record_batch_is_sent_as_only_that(makes):
    table = arrow_body.record_batch(*makes.columns(100, headers=True))
    for compression in ("", "zstd"):
        data = makes.addressed(batch.encode_arrow(table.slice(40, 20), compression=compression))
        header = makes.judge(data)
        assert columns_of(data, header)[2] == [b"value %d" % i for i in range(40, 60)]
        assert header.first_timestamp_us == NOW_US + 40


@pytest.mark.parametrize("compression", ["", "lz4", "zstd"])
@pytest.mark.parametrize(("count", "headers"), [(1, False), (3, True), (17, False), (20, True)])
def test_no_single_flipped_byte_gets_past_the_head(makes, count, headers, compression):
    data = makes.plain(count, headers=headers, compression=compression)
    for at in range(len(data)):
        for flip in (0x01, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[at] ^= flip
            with pytest.raises(CorruptData):
                makes.judge(damaged)


@pytest.mark.parametrize("count", [2, 20])
def test_no_cut_off_or_extended_batch_gets_past_the_head(makes, count):
    data = makes.plain(count)
    for length in range(len(data)):
        with pytest.raises(CorruptData):
            makes.judge(data[:length])
    with pytest.raises(CorruptData):
        makes.judge(data + b"\0")


@pytest.mark.parametrize("count", [2, 20])
def test_a_reader_checks_the_body_again(makes, count):
    data = bytearray(makes.plain(count))
    header = check_header(data)
    data[-1] ^= 1
    with pytest.raises(CorruptData, match="checksum"):
        batch.columns(data, 0, header)
    with pytest.raises(CorruptData, match="checksum"):
        batch.record_batch(data, 0, header)


# --- forged batches: every checksum is right, the content is not --------------------------------

COUNT_AT, ATTRIBUTES_AT, FIRST_TIME_AT, LAST_TIME_AT, SPAN_AT = 28, 44, 48, 56, 84


@pytest.mark.parametrize("count", [3, 30])
@pytest.mark.parametrize(
    ("layout", "at", "value"),
    [
        ("<I", COUNT_AT, 0),
        ("<I", COUNT_AT, 2),
        ("<I", COUNT_AT, 2**32 - 1),
        ("<I", SPAN_AT, 0),
        ("<I", SPAN_AT, 2**32 - 1),
        ("<I", ATTRIBUTES_AT, 2),
        ("<I", ATTRIBUTES_AT, 0x31),
        ("<I", ATTRIBUTES_AT, 0x200),
        ("<q", FIRST_TIME_AT, -1),
        ("<q", FIRST_TIME_AT, NOW_US + 1),
        ("<q", LAST_TIME_AT, NOW_US),
        ("<q", LAST_TIME_AT, TIME_MAX_US + 1),
    ],
)
def test_a_header_that_lies_about_its_body_is_refused(makes, count, layout, at, value):
    with pytest.raises(CorruptData):
        makes.judge(makes.with_field(makes.plain(count), layout, at, value))


def test_a_body_of_the_other_encoding_is_refused(makes):
    few, many = makes.plain(3), makes.plain(30)
    with pytest.raises(CorruptData):
        makes.judge(makes.with_field(few, "<I", ATTRIBUTES_AT, ENCODING_ARROW))
    with pytest.raises(CorruptData):
        makes.judge(makes.with_field(many, "<I", ATTRIBUTES_AT, ENCODING_ROWS))


def test_more_than_sixteen_packed_rows_are_refused(makes):
    columns = makes.columns(17)
    forged = makes.with_body(makes.plain(17), rows.encode(*columns))
    with pytest.raises(CorruptData, match="packed rows"):
        makes.judge(makes.with_field(forged, "<I", ATTRIBUTES_AT, ENCODING_ROWS))


@pytest.mark.parametrize("count", [3, 30])
def test_headers_cannot_be_hidden(makes, count):
    data = makes.plain(count, headers=True)
    attributes = check_header(data).attributes & ~HAS_HEADERS
    with pytest.raises(CorruptData, match="hides"):
        makes.judge(makes.with_field(data, "<I", ATTRIBUTES_AT, attributes))


@pytest.mark.parametrize("moment", [-1, TIME_MAX_US + 1, -(2**63), 2**63 - 1])
@pytest.mark.parametrize("count", [3, 30])
def test_a_time_that_no_calendar_has_is_refused(makes, count, moment):
    times, keys, values, _ = makes.columns(count)
    forged = makes.batch([*times[:-1], moment], keys, values)
    with pytest.raises(CorruptData, match="time range"):
        makes.judge(forged)
    hidden = makes.with_field(forged, "<q", FIRST_TIME_AT, times[0])
    with pytest.raises(CorruptData, match="time range"):
        makes.judge(makes.with_field(hidden, "<q", LAST_TIME_AT, times[-2]))


# --- what producers are told --------------------------------------------------------------------


def test_a_producer_is_told_what_no_batch_can_carry():
    batch.check_message(b"k" * limits.MESSAGE_KEY_BYTES_MAX, b"v" * limits.MESSAGE_VALUE_BYTES_MAX)
    with pytest.raises(LimitExceeded, match="value"):
        batch.check_message(None, bytes(limits.MESSAGE_VALUE_BYTES_MAX + 1))
    with pytest.raises(InvalidArgument, match="key"):
        batch.check_message(bytes(limits.MESSAGE_KEY_BYTES_MAX + 1), None)


def test_a_batch_that_no_frame_can_carry_is_refused_by_its_producer():
    value = bytes(limits.MESSAGE_VALUE_BYTES_MAX)
    with pytest.raises(LimitExceeded, match="limit is"):
        batch.encode([NOW_US] * 3, [None] * 3, [value] * 3)


def test_values_that_are_not_bytes_are_refused_by_the_producer():
    for wrong in (5, 1.5, object()):
        with pytest.raises(InvalidArgument, match="must be bytes"):
            batch.encode([NOW_US] * 20, [None] * 20, [wrong] * 20)


def test_a_batch_holds_nothing_but_header_and_body(makes):
    for count in (1, 16, 17):
        data = makes.plain(count)
        assert len(data) == check_header(data).length
        assert len(data) - HEADER_BYTES == len(batch.encode(*makes.columns(count)).body)


def test_one_small_message_costs_little(makes):
    data = makes.batch([NOW_US], [None], [b"x" * 100])
    assert len(data) == HEADER_BYTES + 20 + 100


def test_pyarrow_understands_the_body_without_our_help(makes):
    data = makes.plain(20)
    body = pa.py_buffer(data[HEADER_BYTES:])
    assert pa.ipc.read_record_batch(body, arrow_body.SCHEMA).num_rows == 20


# --- what one message may hold (C34) --------------------------------------------------------------


def encoded_as(makes, encoding, keys, values, headers):
    """A batch of these messages in one encoding, whatever the number of messages would choose."""
    times = [NOW_US] * len(keys)
    if encoding == "rows":
        return makes.encoded(rows.encode(times, keys, values, headers), len(keys), ENCODING_ROWS, headers)
    table = arrow_body.record_batch(times, keys, values, headers)
    compression = "" if encoding == "arrow" else encoding
    attributes = ENCODING_ARROW | COMPRESSIONS.index(compression) << COMPRESSION_SHIFT
    return makes.encoded(bytes(arrow_body.encode(table, compression)), len(keys), attributes, headers)


SMALL = [("n", b"v")]
ENCODINGS = ["rows", "arrow", "lz4", "zstd"]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("place", [0, 2])
@pytest.mark.parametrize(
    ("key", "value", "headers", "what"),
    [
        (bytes(limits.MESSAGE_KEY_BYTES_MAX + 1), b"v", SMALL, "key has 65537 bytes"),
        (b"k", bytes(limits.MESSAGE_VALUE_BYTES_MAX + 1), SMALL, "value has 8388609 bytes"),
        (b"k", b"v", [("n", b"")] * (limits.MESSAGE_HEADERS_MAX + 1), "1001 headers"),
        (b"k", b"v", [("n", bytes(limits.MESSAGE_HEADERS_BYTES_MAX))], "headers have 1048577 bytes"),
    ],
    ids=["key", "value", "headers", "header bytes"],
)
def test_a_head_refuses_a_message_that_is_too_large_in_every_encoding(
    makes, encoding, place, key, value, headers, what
):
    keys, values, named = [b"k"] * 3, [b"v"] * 3, [SMALL] * 3
    keys[place], values[place], named[place] = key, value, headers
    with pytest.raises(LimitExceeded, match=what):
        makes.judge(encoded_as(makes, encoding, keys, values, named))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_a_head_takes_what_is_just_within_the_limits_and_it_can_be_written_again(makes, encoding):
    key, value = bytes(limits.MESSAGE_KEY_BYTES_MAX), bytes(limits.MESSAGE_VALUE_BYTES_MAX)
    many = [("n", b"")] * (limits.MESSAGE_HEADERS_MAX - 1)
    headers = [("n", bytes(limits.MESSAGE_HEADERS_BYTES_MAX - len(many) - 1)), *many]
    data = encoded_as(makes, encoding, [key, None, b"k"], [value, b"v", None], [headers, None, []])
    header = makes.judge(data)
    kept = sparse.rows_of(header, memoryview(data)[HEADER_BYTES:])
    again = sparse.merge(header, header.base_offset, header.end_offset, kept, NOW_US)
    assert sparse.rows_of(check_header(again), memoryview(again)[HEADER_BYTES:]) == kept


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_many_small_messages_together_may_be_larger_than_one(makes, encoding):
    count = 16 if encoding == "rows" else 100
    keys = [bytes(limits.MESSAGE_KEY_BYTES_MAX // 2)] * count
    headers = [[("n", bytes(limits.MESSAGE_HEADERS_BYTES_MAX // 100))] * 8] * count
    makes.judge(encoded_as(makes, encoding, keys, [b"v"] * count, headers))


def test_a_row_with_more_headers_than_heads_take_stays_readable():
    headers = [("n", b"%d" % index) for index in range(1_500)]
    packed = rows.encode([NOW_US], [b"k"], [b"v"], [headers])
    assert rows.decode(memoryview(packed), 1) == ([NOW_US], [b"k"], [b"v"], [headers])
