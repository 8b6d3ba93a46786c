"""Batches that hold fewer rows than they cover offsets."""

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.client.decode import decode_messages, offset_batches
from stentor.client.stamped import APPENDED_AT, stamped_batches
from stentor.client.tables import runs, with_position
from stentor.core.table import TableState
from stentor.errors import CorruptData
from stentor.wire import batch, deltas, sparse, table_rows
from stentor.wire.header import (
    CONTROL,
    HEADER_BYTES,
    REFUSED,
    SPARSE,
    check_body,
    check_header,
    mark_refused,
    pack,
    stamp,
    unpack,
)

NOW_US = 1_700_000_000_000_000
BASE = 1000


def stamped(data, base=BASE, epoch=3, at_us=NOW_US):
    buffer = bytearray(data)
    stamp(memoryview(buffer), 0, base_offset=base, epoch=epoch, appended_at_us=at_us)
    return bytes(buffer)


def made(makes, count, base=BASE, *, headers=None, compression="", **stamps):
    numbers = range(base, base + count)
    keys, values = [b"k%d" % number for number in numbers], [b"v%d" % number for number in numbers]
    times = [NOW_US + number for number in numbers]
    named = [[("n", b"%d" % number)] for number in numbers] if headers else None
    return stamped(makes.batch(times, keys, values, named, compression=compression), base, **stamps)


def kept(data, wanted):
    return sparse.keep(check_header(data), data[HEADER_BYTES:], wanted)


def rows_read(chunk, floor=0, ceiling=None):
    """All ways to read a chunk, which must agree."""
    by_message = [
        (message.offset, message.key, message.value, message.timestamp_us, message.headers)
        for run in decode_messages(chunk, "t", 0, floor, ceiling)
        for message in run.messages
    ]
    by_column = []
    for first, found in offset_batches(chunk, "t", 0, floor, ceiling):
        shown = with_position(found, "t", 0, first).to_pydict()
        by_column += list(zip(shown["offset"], shown["key"], shown["value"], strict=True))
        assert [
            (begin + index, row)
            for begin, part in runs(first, found)
            for index, row in enumerate(part.column("key").to_pylist())
        ] == list(zip(shown["offset"], shown["key"], strict=True))
    assert by_column == [row[:3] for row in by_message]
    return by_message


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_rows_that_are_kept_keep_their_offsets(makes, data):
    count = data.draw(st.integers(1, 40))
    wanted = data.draw(st.sets(st.integers(0, count - 1)))
    whole = made(
        makes, count, headers=data.draw(st.booleans()), compression=data.draw(st.sampled_from(["", "lz4", "zstd"]))
    )
    part = kept(whole, wanted)
    header = check_header(part)
    check_body(part, 0, header)
    before = check_header(whole)
    assert (header.base_offset, header.end_offset, header.epoch) == (BASE, BASE + count, 3)
    assert (header.producer_id, header.sequence) == (before.producer_id, before.sequence)
    assert bool(header.attributes & SPARSE) == (len(wanted) < count)
    floor, ceiling = data.draw(st.integers(0, BASE + count)), data.draw(st.none() | st.integers(BASE, BASE + count))
    expected = [row for row in rows_read(whole, floor, ceiling) if row[0] - BASE in wanted]
    assert rows_read(part, floor, ceiling) == expected
    again = kept(part, {0})
    assert rows_read(again) == rows_read(part)[:1]


def test_batches_with_everything_stay_what_they_were(makes):
    whole = made(makes, 5)
    assert kept(whole, range(5)) == whole


def test_a_stream_of_whole_and_sparse_batches_is_read_in_order(makes):
    parts = [
        made(makes, 1, 0),
        kept(made(makes, 20, 1), {3, 7}),
        *[made(makes, 1, 21 + number) for number in range(300)],
        kept(made(makes, 40, 321), set()),
        kept(made(makes, 2, 361), {1}),
        made(makes, 30, 363),
    ]
    chunk = b"".join(parts)
    offsets = [row[0] for row in rows_read(chunk)]
    assert offsets == [0, 4, 8, *range(21, 321), 362, *range(363, 393)]
    assert all(row[1] == b"k%d" % row[0] and row[3] == NOW_US + row[0] for row in rows_read(chunk))


def test_control_batches_are_for_brokers_alone(makes):
    header = msgspec.structs.replace(
        check_header(made(makes, 1, 1)), count=0, span=1, attributes=CONTROL, length=HEADER_BYTES
    )
    chunk = made(makes, 1, 0) + bytes(pack(header)) + made(makes, 1, 2)
    assert [row[0] for row in rows_read(chunk)] == [0, 2]


def test_what_is_left_of_several_batches_is_one_batch(makes):
    parts = [made(makes, 20, 0, at_us=5), made(makes, 3, 20, at_us=6), made(makes, 1, 23, at_us=7)]
    headers = [check_header(part) for part in parts]
    rows = sparse.nothing()
    for part, header in zip(parts, headers, strict=True):
        found = sparse.rows_of(header, part[HEADER_BYTES:])
        rows.extend(found.chosen([offset % 2 == 0 for offset in found.offsets]))
    merged = sparse.merge(headers[0], 0, 24, rows, 7)
    header = check_header(merged)
    assert (header.base_offset, header.end_offset, header.count) == (0, 24, 12)
    assert (header.producer_id, header.sequence, header.appended_at_us) == (0, 0, 7)
    assert [row[0] for row in rows_read(merged)] == list(range(0, 24, 2))
    ((first, found),) = stamped_batches(merged, "t", 0, 0, None)
    assert first.to_pylist() == list(range(0, 24, 2))
    assert found.column(APPENDED_AT).cast(pa.int64()).to_pylist() == [7] * 12


def test_batches_without_effect_have_no_rows(makes):
    data = bytearray(made(makes, 4))
    mark_refused(memoryview(data), 0)
    header = unpack(data)
    assert header.attributes & REFUSED
    assert sparse.rows_of(header, data[HEADER_BYTES:]) == sparse.nothing()


@pytest.mark.parametrize(
    ("packed", "count", "span"),
    [([0, 0], 2, 5), ([3, 1], 2, 5), ([0, 5], 2, 5), ([0, 2**32 - 1], 2, 5), ([0, 1], 2, 2), ([], 2, 5)],
    ids=["twice", "backwards", "beyond", "far beyond", "not sparse", "cut off"],
)
def test_malformed_deltas_are_damage(makes, packed, count, span):
    whole = made(makes, 2)
    header = msgspec.structs.replace(check_header(whole), count=count, span=span, attributes=SPARSE)
    body = deltas.pack(packed) if packed else b"\0"
    with pytest.raises(CorruptData):
        deltas.of(header, body)


def test_clients_may_not_publish_sparse_or_control_batches(makes):
    part = kept(made(makes, 3), {0, 2})
    with pytest.raises(CorruptData):
        batch.validate(part, check_header(part))
    for attribute in (SPARSE, CONTROL):
        whole = made(makes, 3)
        header = msgspec.structs.replace(check_header(whole), attributes=attribute)
        bad = bytes(pack(header)) + whole[HEADER_BYTES:]
        with pytest.raises(CorruptData, match="unknown attributes"):
            batch.validate(bad, check_header(bad))


def test_tables_know_the_versions_of_rows_that_were_left(makes):
    part = kept(made(makes, 20), {4, 9})
    state = TableState(table_rows.changes, table_rows.offsets)
    header = check_header(part)
    state.apply(header, part[HEADER_BYTES:])
    state.commit(header.end_offset)
    assert state.committed_version(b"k1004") == 1004
    assert state.committed_version(b"k1009") == 1009
    assert state.statistics()["keys"] == 2
    empty = kept(made(makes, 20, 1020), set())
    state.apply(check_header(empty), b"")
    state.check_invariants()


def test_keys_that_expire_do_so_after_their_batches_were_merged(makes):
    times, keys, values = [1, 2, 3], [b"a", b"b", b"c"], [b"v"] * 3
    ttl = table_rows.lease(5_000_000)
    rows = sparse.Rows([7, 8, 9], times, keys, values, [None, ttl, None])
    like = msgspec.structs.replace(check_header(made(makes, 3)), attributes=0)
    merged = sparse.merge(like, 5, 20, rows, 0)
    state = TableState(table_rows.changes, table_rows.offsets)
    state.apply(check_header(merged), merged[HEADER_BYTES:])
    state.commit(20)
    assert {key: lease.ttl_us for key, lease in state.leases.items()} == {b"b": 5_000_000}


@pytest.mark.parametrize("offset", [BASE + 1, BASE + 7, BASE + 12, BASE + 19])
def test_the_rest_of_a_batch_begins_inside_of_it(makes, offset):
    """For a successor that ends inside of what was merged here."""
    whole = kept(made(makes, 20), {2, 7, 12})
    rest = sparse.behind(check_header(whole), whole[HEADER_BYTES:], offset)
    header = check_header(rest)
    assert (header.base_offset, header.end_offset, header.epoch) == (offset, BASE + 20, 3)
    assert rows_read(rest) == [row for row in rows_read(whole) if row[0] >= offset]


# --- large batches, whose rows never become Python's ----------------------------------------------


@pytest.mark.parametrize("compression", ["", "lz4", "zstd"])
@pytest.mark.parametrize("wanted", [set(range(0, 3_000, 7)), {5}, set(), set(range(1, 3_000))], ids=len)
def test_a_large_batch_is_cut_as_a_small_one_is(monkeypatch, compression, wanted):
    count = 3_000
    keys = [b"k%d" % number if number % 3 else None for number in range(count)]
    values = [b"v%d" % number if number % 5 else None for number in range(count)]
    times = [(number * 7_919) % 10_007 for number in range(count)]
    encoded = batch.encode(times, keys, values, compression=compression)
    address = batch.address(encoded, topic_id=7, partition=0, producer_id=3, generation=1, sequence=4)
    header, body = check_header(bytes(address) + bytes(encoded.body)), memoryview(encoded.body)
    cut = {}
    for way, least in ("large", 1_000), ("small", 10_000):
        monkeypatch.setattr(sparse, "_TAKEN_FROM", least)
        cut[way] = sparse.keep(header, body, wanted)
    large, small = (check_header(each) for each in cut.values())
    check_body(cut["large"], 0, large)
    rows = [sparse.rows_of(check_header(each), memoryview(each)[HEADER_BYTES:]) for each in cut.values()]
    assert rows[0] == rows[1]
    assert rows[0].offsets == sorted(wanted)
    same = ("base_offset", "span", "count", "first_timestamp_us", "last_timestamp_us", "producer_id", "sequence")
    assert [getattr(large, name) for name in same] == [getattr(small, name) for name in same]
    assert large.compression == (header.compression if wanted else 0)
