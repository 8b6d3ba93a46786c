"""When messages were appended, beside them as a column: for every row the time of its own batch."""

import time

import pyarrow as pa
import pytest

from stentor.client.decode import offset_batches
from stentor.client.stamped import APPENDED_AT


@pytest.fixture
def written(client):
    """Batches of one and of many messages, at different times."""
    for number in range(40):
        client.publish("stamped", b"%d" % number, timestamp=1_000_000 + number)
    with client.producer("stamped") as producer:
        producer.send_batch(pa.table({"value": [b"x"] * 100}))
    client.publish("stamped", b"last", headers={"a": b"b"})
    return 141


def times_of(client, **options):
    found = {}
    for first, batch in client.read("stamped", partition=0, **options).offset_batches(appended_at=True):
        assert batch.schema.names == ["timestamp", "key", "value", "headers", APPENDED_AT]
        for index, moment in enumerate(batch.column(APPENDED_AT).cast(pa.int64()).to_pylist()):
            found[first + index] = moment
    return found


def test_every_message_has_the_time_at_which_its_batch_was_appended(client, written):
    began_us = time.time_ns() // 1000 - 60_000_000
    found = times_of(client)
    assert list(found) == list(range(written))
    moments = list(found.values())
    assert moments == sorted(moments)
    assert began_us < moments[0] <= moments[-1] <= time.time_ns() // 1000 + 1_000_000
    assert len(set(moments[40:140])) == 1
    assert len(set(moments)) > 10


def test_a_part_has_the_times_of_the_whole(client, written):
    whole = times_of(client)
    for start, end in ((0, 7), (13, 60), (50, 55), (139, 141)):
        part = times_of(client, start=start, end=end)
        assert part == {offset: whole[offset] for offset in range(start, end)}


def test_decoders_that_join_batches_get_each_its_own_time(client, written, monkeypatch):
    from stentor.client import stamped

    def joining(*args):
        found = list(offset_batches(*args))
        yield found[0][0], pa.Table.from_batches([batch for _, batch in found]).combine_chunks().to_batches()[0]

    whole = times_of(client)
    monkeypatch.setattr(stamped, "offset_batches", joining)
    assert times_of(client) == whole
