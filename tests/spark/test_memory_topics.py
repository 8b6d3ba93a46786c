"""Memory topics that were lost with their brokers: their offsets go on far above, and count no messages."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from stentor.core.memory_limits import OFFSETS_RESERVED
from stentor.errors import OffsetOutOfRange
from stentor.spark import offsets, reader
from stentor.spark.connections import SparkConnection
from stentor.spark.offsets import TopicPlace, from_offset, lifted, limited, lost, missing, ranges_between, to_offset
from stentor.spark.options import read_options
from stentor.spark.pipelines.record import _Recorder
from stentor.spark.pipelines.views import _continued
from stentor.spark.reader import TopicStreamReader
from stentor.testing import broker

VALUE = StructType([StructField("value", BinaryType())])
BEGINS = OFFSETS_RESERVED


@pytest.fixture(scope="module")
def local():
    """Of its own: it is restarted. The topic `m` had 500 messages and has 7 since it was lost; `s` is on disk."""
    with broker() as running, running.client() as client:
        client.create_topic("m", durability="memory")
        for topic, count in (("m", 500), ("s", 10)):
            with client.producer(topic) as producer:
                for number in range(count):
                    producer.send(str(number))
        running.stop()
        running.start()
        for number in range(7):
            client.publish("m", str(number))
        yield running


@pytest.fixture
def stream(local, monkeypatch):
    """Makes the part of a stream that runs in the driver; it does not wait for rows."""
    monkeypatch.setattr(reader, "LONG_POLL_S", 0.0)

    def make(**options):
        return TopicStreamReader(read_options({"subscribe": "m,s", "url": local.url, **options}, streaming=True), VALUE)

    return make


@pytest.fixture
def stood(local):
    """Where a query stood in both topics before one was lost."""
    with local.client() as client:
        ids = {name: found.id for name, found in client.find_offsets(["m", "s"]).items()}
    return to_offset({"m": TopicPlace(ids["m"], {0: 400}), "s": TopicPlace(ids["s"], {0: 8})})


def test_a_place_below_a_new_beginning_is_lifted():
    found = {"a": TopicPlace(1, {0: 70, 1: 9, 2: 60}, {0: 50, 2: 50}), "b": TopicPlace(2, {0: 3})}
    start = {"a": TopicPlace(1, {0: 20, 1: 5, 2: 55}), "b": TopicPlace(2, {0: 1})}
    assert lost(start, found) == [("a", 0)]
    moved = lifted(start, found)
    assert {name: topic.offsets for name, topic in moved.items()} == {"a": {0: 50, 1: 5, 2: 55}, "b": {0: 1}}
    assert (lost(moved, found), start["a"].offsets[0]) == ([], 20)
    assert lost({}, found) == []
    assert sum(part.rows for part in ranges_between(moved, found)) == 20 + 4 + 5 + 2
    assert limited(moved, found, 31) == found


def test_what_is_missing_is_counted_only_if_it_can_be():
    assert missing(60, 20, 0) == "40 messages"
    assert missing(60, 50, 50) == "10 messages", "retention, after it began again"
    assert missing(60, 20, 50) == "an unknown number of messages"


def test_a_stream_goes_on_where_the_topic_began_again(stream, stood):
    made = stream(failOnDataLoss="false")
    end = made.latestOffset(stood)
    assert {name: topic.offsets for name, topic in from_offset(end).items()} == {"m": {0: BEGINS + 7}, "s": {0: 10}}
    parts = made.partitions(stood, end)
    assert sorted((part.topic, part.start, part.end) for part in parts) == [("m", BEGINS, BEGINS + 7), ("s", 8, 10)]
    again = stream(failOnDataLoss="false")  # a restarted driver plans again what Spark has kept
    assert len(again.partitions(stood, end)) == 2


def test_a_limit_counts_messages_and_no_lost_offsets(stream, stood):
    most = SimpleNamespace(max_rows=3)
    end = stream(failOnDataLoss="false").latestOffset(stood, most)
    read = {name: topic.offsets[0] for name, topic in from_offset(end).items()}
    assert read["m"] - BEGINS + read["s"] - 8 == 3


def test_a_stream_that_may_not_lose_anything_fails_at_once(stream, stood):
    with pytest.raises(OffsetOutOfRange, match=f"m/0 is kept in memory .* {BEGINS}; this query stands at 400. Nobody"):
        stream().latestOffset(stood)
    end = to_offset(from_offset(stood) | {"m": TopicPlace(from_offset(stood)["m"].id, {0: BEGINS + 7})})
    with pytest.raises(OffsetOutOfRange, match="Nobody knows how many messages it misses"):
        stream().partitions(stood, end)


def test_a_topic_that_is_empty_since_then_moves_the_stream_as_well(stream, stood, monkeypatch):
    """Else its lag would be the offsets that nothing was ever at."""
    made = stream(failOnDataLoss="false")
    at = made._topics.at

    def empty(*names, **how):
        found = {name: topic.id for name, topic in at(*names, **how).items()}
        return {"m": TopicPlace(found["m"], {0: BEGINS}, {0: BEGINS}), "s": TopicPlace(found["s"], {0: 8})}

    monkeypatch.setattr(made._topics, "at", empty)
    end = made.latestOffset(stood)
    assert {name: topic.offsets for name, topic in from_offset(end).items()} == {"m": {0: BEGINS}, "s": {0: 8}}
    assert made.partitions(stood, end) == []


def test_a_recorder_and_a_view_do_not_count_what_was_lost(local):
    lake = SimpleNamespace(ends=lambda *_: {0: 400})
    earliest = offsets.places_of(SparkConnection(local.url).client().find_offsets(["m"], "earliest"))

    def recorder(*, strict):
        return _Recorder(None, ["m"], lake, SparkConnection(local.url), 1_000, fail_on_data_loss=strict)

    with pytest.raises(OffsetOutOfRange, match="the lake ends at 400: an unknown number of messages were deleted"):
        recorder(strict=True)._start(earliest)
    assert recorder(strict=False)._start(earliest)["m"].offsets == {0: BEGINS}
    with pytest.raises(OffsetOutOfRange, match="an unknown number of messages are in neither"):
        _continued("m", earliest["m"], {0: 400})
