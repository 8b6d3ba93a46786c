"""Records about cursors, as messages of an internal topic."""

import pytest

from stentor.core.cursors import Forgotten, Moved
from stentor.wire import batch, cursor_records
from stentor.wire.header import HEADER_BYTES, unpack

RECORDS = [Moved(7, "a", {0: 5, 3: 2**60}, "me", 9, back=True), Moved(7, "é", {}), Forgotten(7), Forgotten(7, "a")]


@pytest.mark.parametrize("record", RECORDS, ids=range(len(RECORDS)))
def test_a_record_is_a_batch_of_one_message(record):
    whole = cursor_records.encode(record, 1_000, topic_id=5, partition=3)
    header = unpack(whole)
    batch.validate(whole, header)
    assert (header.topic_id, header.partition, header.count, header.producer_id) == (5, 3, 1, 0)
    assert list(cursor_records.read(memoryview(whole)[HEADER_BYTES:])) == [record]
    _, keys, _, _ = batch.columns(whole, 0, header)
    assert keys == [record.name.encode()]


@pytest.mark.parametrize("value", [b"", b"{", b'{"type":"later"}', b'{"type":"moved"}', b"\xff", None])
def test_what_is_no_record_is_passed_over(value):
    encoded = batch.encode_at(5, [b"k"], [value])
    assert list(cursor_records.read(encoded.body)) == []


def test_a_body_of_another_encoding_is_passed_over():
    encoded = batch.encode_at(5, [b"k"] * 40, [b"v"] * 40)
    assert list(cursor_records.read(encoded.body)) == []
