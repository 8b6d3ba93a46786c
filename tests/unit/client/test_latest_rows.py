"""The latest row of each key, out of a log's batches."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from stentor.client import latest_rows
from stentor.client.latest_rows import LatestRows, changes, joined
from stentor.errors import DecodeFailed
from stentor.wire.arrow_body import SCHEMA


def stored(first, rows):
    """A batch as a log has it, with the offset of its first row."""
    count = len(rows)
    columns = [
        pa.array(range(first, first + count), pa.int64()).cast(SCHEMA.field("timestamp").type),
        pa.array([key for key, _ in rows], pa.binary()),
        pa.array([value for _, value in rows], pa.binary()),
        pa.nulls(count, SCHEMA.field("headers").type),
    ]
    return first, pa.RecordBatch.from_arrays(columns, names=["timestamp", "key", "value", "headers"])


def log_of(seed, batches=60):
    """Batches with gaps between them, of keys that come again and are deleted, and what is left of them."""
    rng = random.Random(seed)
    offset, log, left = 0, [], {}
    for _ in range(batches):
        offset += rng.choice((0, 0, 1, 7))
        rows = [
            (b"k/%d" % rng.randrange(40), None if rng.random() < 0.3 else rng.randbytes(rng.randrange(9)))
            for _ in range(rng.randrange(1, 30))
        ]
        log.append(stored(offset, rows))
        for key, value in rows:
            left.pop(key, None)
            if value is not None:
                left[key] = (key.decode(), value, offset)
            offset += 1
    return log, list(left.values())


@pytest.mark.parametrize(("pending", "joined_rows"), [(1, 16), (1, 1), (50, 100), (1 << 18, 1 << 16)])
@pytest.mark.parametrize("seed", range(4))
def test_they_are_what_a_dict_would_hold_however_often_it_is_looked(monkeypatch, seed, pending, joined_rows):
    monkeypatch.setattr(latest_rows, "PENDING_ROWS", pending)
    monkeypatch.setattr(latest_rows, "JOINED_ROWS", joined_rows)
    log, left = log_of(seed)
    latest = LatestRows()
    for batch in changes(log):
        latest.add(batch)
    found = [(r["key"], r["value"], r["version"]) for batch in latest.batches() for r in batch.to_pylist()]
    assert found == left
    assert latest.batches() == latest.batches()


def test_what_is_held_does_not_grow_with_the_log(monkeypatch):
    monkeypatch.setattr(latest_rows, "PENDING_ROWS", 100)
    latest, most = LatestRows(), 0
    for number in range(500):
        for batch in changes([stored(number * 10, [(b"%d" % key, b"x" * 10) for key in range(10)])]):
            latest.add(batch)
        most = max(most, sum(batch.num_rows for batch in latest._batches))
    assert most <= 100 + 10 + 10
    assert [batch.num_rows for batch in latest.batches()] == [10]


def test_values_are_left_out_where_nobody_wants_them():
    (batch,) = changes([stored(5, [(b"a", b"1"), (b"b", None)])], values=False)
    assert batch.column_names == ["key", "version", "timestamp", "there"]
    assert batch.column("there").to_pylist() == [True, False]
    assert batch.column("version").to_pylist() == [5, 6]


def test_a_subtree_is_all_keys_below_it():
    found = changes(
        [stored(0, [(b"a/b", b"1"), (b"a", b"2"), (b"ab/c", b"3")]), stored(3, [(b"z", b"4")])], subtree="a/"
    )
    assert [batch.column("key").to_pylist() for batch in found] == [["a/b"]]


def test_small_batches_are_joined_in_their_order():
    batches = [batch for _, batch in (stored(at, [(b"%d" % at, b"v")]) for at in range(5))]
    (found,) = joined(batches)
    assert found.column("key").to_pylist() == [b"0", b"1", b"2", b"3", b"4"]


def test_a_key_that_is_no_text_is_said_in_words():
    with pytest.raises(DecodeFailed, match="A key of the rows from offset 7 on is not UTF-8"):
        list(changes([stored(7, [(b"\xff", b"v")])]))
