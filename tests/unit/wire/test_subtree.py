"""What is left of batches for a subtree: its rows, where they were, and nothing else."""

import random

import pytest
from crc32c import crc32c

from stentor import limits
from stentor.client.decode import decode_messages
from stentor.errors import CorruptData, LimitExceeded
from stentor.wire import batch, sparse
from stentor.wire import subtree as filtering
from stentor.wire.header import HEADER_BYTES, REFUSED, BatchHeader, check_header, pack


def stored(base, keys, *, values=None, compression="", epoch=1, attributes=0, headers=None):
    """A batch as it lies in a log."""
    values = [b"v%d" % (base + index) for index in range(len(keys))] if values is None else values
    encoded = batch.encode([1_000 + base] * len(keys), keys, values, headers, compression=compression)
    body = bytes(encoded.body)
    fields = dict.fromkeys(BatchHeader.__struct_fields__, 0) | {
        "length": HEADER_BYTES + len(body),
        "body_checksum": crc32c(body),
        "count": encoded.count,
        "span": encoded.count,
        "base_offset": base,
        "epoch": epoch,
        "attributes": encoded.attributes | attributes,
        "topic_id": 7,
        "first_timestamp_us": encoded.first_timestamp_us,
        "last_timestamp_us": encoded.last_timestamp_us,
    }
    return bytes(pack(BatchHeader(**fields))) + body


def kept(chunks, subtree):
    """The batches that are left, and how many rows."""
    return kept_from(chunks, subtree, 0)[:2]


def kept_from(chunks, subtree, floor):
    work = filtering.Filtering(chunks, subtree, floor)
    while (found := work.go_on()) is None:
        pass
    return found


def read(chunks):
    return [
        (message.offset, message.key, message.value, message.timestamp_us)
        for run in decode_messages(b"".join(chunks), "t", 0, 0, None)
        for message in run.messages
    ]


def wanted(chunks, subtree):
    return [row for row in read(chunks) if row[1].startswith(subtree)]


@pytest.mark.parametrize("compression", ["", "lz4", "zstd"])
@pytest.mark.parametrize("size", [1, 3, 200])
def test_the_rows_of_the_subtree_are_left_with_their_offsets(compression, size):
    chance = random.Random(size)
    chunks, base = [], 0
    for _ in range(30):
        keys = [chance.choice([b"app/a", b"app/b/c", b"apple", b"b/app/", b"z"]) for _ in range(size)]
        chunks.append(stored(base, keys, compression=compression if size > 1 else ""))
        base += size
    found, rows = kept([b"".join(chunks[:10]), *chunks[10:]], b"app/")
    assert read(found) == wanted(chunks, b"app/")
    assert rows == len(read(found))
    assert kept(chunks, b"no/") == ([], 0)


def test_what_is_left_of_many_batches_is_one():
    chunks = [stored(base, [b"app/a" if base == 500 else b"other", b"z"]) for base in range(0, 2_000, 2)]
    found, rows = kept(chunks, b"app/")
    assert (len(found), rows) == (1, 1)
    assert len(found[0]) < 300
    chunks = [stored(base, [b"app/a", b"z"]) for base in range(0, 2_000, 2)]
    (found,), rows = kept(chunks, b"app/")
    header = check_header(found)
    assert (header.base_offset, header.end_offset, header.count, rows) == (0, 2_000, 1_000, 1_000)


def test_a_batch_that_is_wanted_as_it_is_is_not_touched():
    whole = stored(5, [b"app/a", b"app/b"])
    assert kept([whole], b"app/") == ([whole], 2)


def test_batches_of_different_epochs_are_not_joined():
    found, _ = kept([stored(0, [b"app/a", b"z"], epoch=1), stored(2, [b"app/b", b"z"], epoch=2)], b"app/")
    assert [check_header(part).epoch for part in found] == [1, 2]


def test_deletions_and_headers_are_kept():
    chunk = stored(3, [b"app/a", b"z", b"app/b"], values=[None, b"1", b"2"], headers=[[("h", b"x")], None, None])
    ((found,), rows) = kept([chunk], b"app/")
    (run,) = decode_messages(found, "t", 0, 0, None)
    one, two = run.messages
    assert (one.offset, one.value, one.headers, two.offset, two.value, two.headers) == (
        3,
        None,
        [("h", b"x")],
        5,
        b"2",
        [],
    )
    assert rows == 2


def test_changes_that_were_refused_are_left_out():
    assert kept([stored(0, [b"app/a"], attributes=REFUSED)], b"app/") == ([], 0)


def test_large_rows_are_not_joined_beyond_what_a_batch_may_hold():
    large = b"x" * (7 * 1024 * 1024)
    chunks = [stored(base, [b"app/a", b"z"], values=[large, b""]) for base in range(0, 8, 2)]
    found, rows = kept(chunks, b"app/")
    assert rows == 4
    assert read(found) == wanted(chunks, b"app/")


def expanding(base, *, rows=31, key=b"app/", compression="zstd"):
    """Two kilobytes with a header of nearly a megabyte for each row. The last row is of another subtree."""
    keys = [*(b"%s%d" % (key, number) for number in range(rows - 1)), b"zzz"]
    headers = [[("h", bytes(limits.MESSAGE_HEADERS_BYTES_MAX - 200))]] * rows
    return stored(base, keys, values=[b"v"] * rows, headers=headers, compression=compression)


def test_batches_that_expand_are_not_joined_beyond_what_readers_take():
    chunks = [expanding(base) for base in range(0, 31 * 4, 31)]
    assert max(map(len, chunks)) < 4_000
    found, rows = kept(chunks, b"app/")
    assert (len(found), rows) == (4, 30 * 4)
    for index, part in enumerate(found):
        (run,) = decode_messages(part, "t", 0, 0, None)
        assert [message.offset for message in run.messages] == list(range(31 * index, 31 * index + 30))
        assert all(len(message.headers[0][1]) > 1_000_000 for message in run.messages)


@pytest.mark.parametrize("compression", ["", "zstd"])
@pytest.mark.parametrize("what", ["keys", "values", "headers"])
def test_all_of_a_row_counts_for_how_many_are_joined(what, compression):
    rows, parts = 20, []
    for base in range(0, 60 * rows, rows):
        keys = [b"app/%d/" % number + bytes(2_000 if what == "keys" else 0) for number in range(rows - 1)]
        values = [bytes(2_000 if what == "values" else 0)] * rows
        headers = [[("h", bytes(2_000))]] * rows if what == "headers" else None
        parts.append(stored(base, [*keys, b"z"], values=values, headers=headers, compression=compression))
    found, count = kept(parts, b"app/")
    assert count == 60 * (rows - 1)
    assert 4 <= len(found) <= 6
    assert read(found) == wanted(parts, b"app/")


def test_rows_of_large_batches_are_joined_if_few_are_left():
    chunks = [stored(base, [b"app/a"] + [b"z"] * 999, values=[bytes(200)] * 1_000) for base in range(0, 9_000, 1_000)]
    found, rows = kept(chunks, b"app/")
    assert (len(found), rows) == (1, 9)
    assert read(found) == wanted(chunks, b"app/")


def test_what_cannot_be_written_again_goes_as_it_is(monkeypatch):
    def refuse(*_):
        raise LimitExceeded("too large")

    monkeypatch.setattr(sparse, "merged_alone", refuse)
    before, whole = stored(0, [b"app/a", b"z"]), expanding(2)
    found, _ = kept([before, whole], b"app/")
    assert read(found[:1]) == wanted([before], b"app/")
    assert found[1:] == [whole]


def test_no_batch_is_made_that_readers_refuse():
    header = check_header(expanding(0))
    value = bytes(limits.MESSAGE_VALUE_BYTES_MAX)
    rows = sparse.Rows(list(range(5)), [1] * 5, [b"app/a"] * 5, [value] * 5, [None] * 5)
    with pytest.raises(LimitExceeded, match="expand to"):
        sparse.merge(header, 0, 31, rows, 0)


def test_filtering_goes_on_in_pieces_by_what_batches_expand_to():
    large = filtering.Filtering([expanding(0), expanding(31), expanding(62, key=b"none/")], b"app/")
    assert large.go_on() is None
    assert large.go_on().rows == 60
    many = filtering.Filtering([stored(base, [b"app/a", b"z"]) for base in range(0, 2_000, 2)], b"app/")
    assert many.go_on().rows == 1_000


def test_small_is_what_is_small_when_it_is_expanded():
    plain, packed = stored(0, [b"a"] * 30), stored(0, [b"a"] * 30, compression="lz4")
    assert filtering.is_small([plain, packed], 4_096)
    assert not filtering.is_small([plain * 10, packed], 4_096)
    assert not filtering.is_small([expanding(0)], 16 * 1_024)
    hidden = bytearray(packed)
    hidden[HEADER_BYTES] ^= 1
    assert filtering.is_small([bytes(hidden)], 4_096), "what nobody can read expands to nothing"


@pytest.mark.parametrize("place", [HEADER_BYTES + 3, 20], ids=["body", "header"])
@pytest.mark.parametrize("key", [b"app/a", b"other"])
def test_damage_is_not_passed_over(place, key):
    chunk = bytearray(stored(0, [key, b"z"]))
    chunk[place] ^= 1
    with pytest.raises(CorruptData):
        kept([bytes(chunk)], b"app/")


def test_what_a_filter_made_is_filtered_again():
    chunks = [stored(base, [b"app/a", b"app/b", b"z"]) for base in range(0, 30, 3)]
    once, _ = kept(chunks, b"app/")
    twice, rows = kept(once, b"app/b")
    assert rows == 10
    assert read(twice) == wanted(chunks, b"app/b")
    assert check_header(twice[0]).topic_id == 7


def test_what_a_compaction_removed_is_counted_from_where_the_reader_is():
    whole = stored(0, [b"app/a", b"z"] * 5)
    header = check_header(whole, 0)
    thin = sparse.keep(header, whole[HEADER_BYTES:], {1, 4, 9})
    chunks = [stored(10, [b"app/a"]), thin]
    assert [kept_from([thin], b"app/", floor).removed for floor in (0, 1, 2, 5, 9, 10)] == [7, 6, 6, 4, 0, 0]
    assert [sparse.removed([thin], floor) for floor in (0, 1, 2, 5, 9, 10)] == [7, 6, 6, 4, 0, 0]
    assert [sparse.removed([thin], 2, end) for end in (2, 3, 5, 9, 20)] == [0, 1, 2, 6, 6]
    assert sparse.removed([b"".join(chunks)], 0) == 7
    assert sparse.removed([stored(0, [b"a"] * 3)], 0) == 0
