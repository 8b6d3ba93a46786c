"""Plain Python and pyarrow read and write the same bodies."""

import random
from array import array

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.errors import CorruptData, InvalidArgument
from stentor.wire import arrow_body, arrow_message, plain_body

_bytes = st.none() | st.binary(max_size=40)
_headers = st.none() | st.lists(st.tuples(st.text(max_size=6), _bytes), max_size=3)
_messages = st.lists(st.tuples(st.integers(0, 2**60), _bytes, _bytes, _headers), min_size=1, max_size=40)


def listed(columns):
    times, keys, values, headers = columns
    if headers is not None and all(one is None for one in headers):
        headers = None
    return list(times), list(keys), list(values), headers


def by_plain(body, count):
    return listed(plain_body.columns(memoryview(body), arrow_message.read(memoryview(body), count)))


def by_arrow(body, count):
    return listed(arrow_body.columns(arrow_body.decode(memoryview(body), count)))


@settings(max_examples=200, deadline=None)
@given(messages=_messages)
def test_both_read_what_the_other_wrote(messages):
    times, keys, values, headers = (list(column) for column in zip(*messages, strict=True))
    wanted = listed((times, keys, values, headers))
    by_us, key_bytes = plain_body.encode(times, keys, values, headers)
    by_them = bytes(arrow_body.encode(arrow_body.record_batch(times, keys, values, headers)))
    assert key_bytes == sum(len(key or b"") for key in keys)
    for body in (by_us, by_them):
        assert by_plain(body, len(messages)) == wanted
        assert by_arrow(body, len(messages)) == wanted


@pytest.mark.parametrize("size", [0, 1, 20])
@pytest.mark.parametrize("odd", [None, 0, 30, 59])
def test_elements_of_one_size_are_read_like_any_others(size, odd):
    """All but perhaps one have this size, and that one makes up for it elsewhere."""
    keys = [random.Random(number).randbytes(size) for number in range(60)]
    if odd is not None:
        keys[odd], keys[5] = keys[odd] + b"x", keys[5][:-1]
    body, _ = plain_body.encode([7] * 60, keys, keys, None)
    assert by_plain(body, 60) == by_arrow(body, 60) == ([7] * 60, keys, keys, None)


@pytest.mark.parametrize("headers", [False, True])
@pytest.mark.parametrize("count", [1, 7, 8, 9, 3000, 1000, 2000, 17])
def test_both_write_the_same_bytes(makes, count, headers):
    """A producer that lasts may send a batch again from another process: brokers compare checksums."""
    times, keys, values, named = makes.columns(count, headers=headers)
    for nulls in (0, 1, count):
        keys[:nulls], values[:nulls] = [None] * nulls, [None] * nulls
        body, _ = plain_body.encode(times, keys, values, named)
        assert body == bytes(arrow_body.encode(arrow_body.record_batch(times, keys, values, named)))


@pytest.mark.parametrize("count", [17, 300, 3000])
def test_without_headers_few_bytes_are_spent_on_them(count):
    columns = array("q", [5]) * count, [None] * count, [b"v"] * count, None
    bodies = plain_body.encode(*columns)[0], arrow_body.encode(arrow_body.record_batch(*columns))
    for body in bodies:
        assert len(body) < 480 + count * (8 + 4 + 4 + 1 + 4 + 1) + 100
        assert by_arrow(body, count) == listed(columns)


def test_its_metadata_is_recognised_at_once(makes, monkeypatch):
    def slow(*_):
        raise AssertionError("walked through the metadata")

    monkeypatch.setattr(arrow_message, "_read", slow)
    body, _ = plain_body.encode(*makes.columns(20))
    assert arrow_message.guard(memoryview(body), 20) == 0


def test_a_body_that_pyarrow_sliced_is_read(makes):
    table = arrow_body.record_batch(*makes.columns(40, headers=True)).slice(13, 20)
    body = bytes(arrow_body.encode(table))
    assert by_plain(body, 20) == listed(column[13:33] for column in makes.columns(40, headers=True))


@pytest.mark.parametrize("odd", ["text", 7, memoryview(array("i", [1, 2]))])
@pytest.mark.parametrize("beside", [b"x", None])
def test_values_that_are_not_bytes_are_refused(odd, beside):
    with pytest.raises(InvalidArgument, match="Every value must be bytes"):
        plain_body.encode([1, 2], [None, None], [beside, odd], None)


@pytest.mark.parametrize("headers", [False, True])
def test_forged_bodies_are_refused_or_read_as_pyarrow_reads_them(makes, headers):
    """Numbers of the metadata, offsets and bits, changed one at a time and by chance."""
    times, keys, values, named = makes.columns(20, headers=headers)
    keys[3] = values[5] = None
    if named:
        named[4], named[6] = None, [("a", None), ("é", b"")]
    body, _ = plain_body.encode(times, keys, values, named)
    whole, begin = by_plain(body, 20), arrow_message.read(memoryview(body), 20).begin
    chance, refused = random.Random(4), 0
    for _ in range(4000):
        forged = bytearray(body)
        place = chance.randrange(len(body))
        forged[place] ^= 1 << chance.randrange(8)
        try:
            wanted = by_arrow(forged, 20)
        except (CorruptData, TypeError):  # TypeError is a header without a key: no broker takes it
            wanted = None
        try:
            found = by_plain(forged, 20)
        except CorruptData:
            found = None
            refused += 1
        if wanted is not None:
            assert found == wanted
        elif found is not None:  # what changes nothing here: Arrow checks the flatbuffer, and offsets below nulls
            assert place < begin or found == whole
    assert refused > 100


def test_cut_bodies_are_refused(makes):
    body, _ = plain_body.encode(*makes.columns(20, headers=True))
    for size in range(len(body)):
        with pytest.raises(CorruptData):
            by_plain(body[:size], 20)


def test_what_arrow_may_leave_out_is_not_missed(makes):
    """An empty column of bytes may have no offsets at all."""
    times, keys, values, _ = makes.columns(20)
    body, _ = plain_body.encode(times, keys, values, None)
    contents = arrow_message.read(memoryview(body), 20)
    places = list(contents.buffers)
    places[2 * 12 + 1] = places[2 * 15 + 1] = 0
    other = arrow_message.write(list(contents.nodes), places, len(body) - contents.begin) + body[contents.begin :]
    assert pa.ipc.read_record_batch(pa.py_buffer(other), arrow_body.SCHEMA).num_rows == 20
    assert by_plain(other, 20) == by_plain(body, 20)
