"""Record: topics into a lake, each message once, however often and for how long it is run."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import pytest

from stentor import Client
from stentor.errors import ConnectionFailed, DeadlineExceeded, OffsetOutOfRange, TopicNotFound
from stentor.spark.pipelines.lake import open_lake
from stentor.spark.pipelines.record import record

NOON = datetime(2026, 11, 15, 12, 0, 0, 123456, tzinfo=UTC)
LARGE = b"x" * 20_000
"""Four of them fill a segment of the shared broker."""


@pytest.fixture
def lake(tmp_path):
    return open_lake(tmp_path / "lake")


def values_in(spark, lake):
    rows = lake.frame(spark).orderBy("topic", "topic_id", "partition", "offset").collect()
    return [bytes(row.value).decode() for row in rows]


def publish(client, topic, *values, **options):
    for value in values:
        client.publish(topic, value, **options)


@pytest.fixture
def following(spark, lake):
    """Records in the background until the test ends."""
    stop = threading.Event()
    outcome = []

    def run(topics):
        outcome.append(record(spark, topics, lake, once=False, interval_s=0.02, stop=stop))

    threads = []

    def start(*topics):
        threads.append(threading.Thread(target=run, args=(list(topics),)))
        threads[0].start()

    def end():
        stop.set()
        for thread in threads:
            thread.join()
        return outcome[0]

    yield start, end
    end()


class TestOnce:
    def test_messages_are_recorded_with_all_they_have(self, spark, client, topic, lake):
        client.create_topic(topic, partitions=3)
        made = client.publish(topic, b"\x00v", key=b"k", headers={"h": b"\x01"}, timestamp=NOON, partition=2)
        client.publish(topic, None, timestamp=NOON.replace(day=14), partition=0)
        assert record(spark, [topic], lake) == 2
        first, second = lake.frame(spark).orderBy("partition").collect()
        assert (first.partition, first.key, first.value, first.headers) == (0, None, None, None)
        assert (second.topic, second.topic_id) == (topic, client.describe_topic(topic).id)
        assert (second.partition, second.offset) == (2, made.offset)
        assert (second.key, second.value, second.headers) == (b"k", b"\x00v", [("h", b"\x01")])
        assert second.timestamp.replace(tzinfo=UTC) == NOON
        folders = {path.parent.name for path in lake.files()}
        assert folders == {"date=2026-11-14", "date=2026-11-15"}

    @pytest.mark.parametrize("kind", ["parquet", "delta"])
    def test_the_next_run_goes_on_where_the_lake_ends(self, spark, client, topic, tmp_path, kind):
        publish(client, topic, "a", "b")
        assert record(spark, [topic], tmp_path / "lake", kind=kind) == 2
        assert record(spark, [topic], tmp_path / "lake") == 0
        publish(client, topic, "c")
        assert record(spark, [topic], tmp_path / "lake") == 1
        assert values_in(spark, open_lake(tmp_path / "lake")) == ["a", "b", "c"]

    def test_it_stops_at_what_was_committed_at_its_start_although_publishing_goes_on(self, spark, client, topic, lake):
        publish(client, topic, "a", "b", "c")
        rounds = []

        def publish_more(done):
            rounds.append((done.number, done.rows, done.waiting_rows))
            publish(client, topic, "later")

        assert record(spark, [topic], lake, round_rows=2, on_round=publish_more) == 3
        assert rounds == [(1, 2, 1), (2, 1, 0)]
        assert values_in(spark, lake) == ["a", "b", "c"]

    def test_a_topic_that_was_made_again_is_recorded_from_its_start_beside_the_old_one(
        self, spark, client, topic, lake
    ):
        publish(client, topic, "a", "b")
        record(spark, [topic], lake)
        client.delete_topic(topic)
        publish(client, topic, "c")
        assert record(spark, [topic], lake) == 1
        assert sorted(values_in(spark, lake)) == ["a", "b", "c"]

    def test_a_topic_that_does_not_exist_is_told_and_the_lake_can_be_used_later(self, spark, client, topic, lake):
        with pytest.raises(TopicNotFound):
            record(spark, [f"{topic}.nothing"], lake)
        publish(client, topic, "a")
        assert record(spark, [topic], open_lake(lake.path)) == 1

    def test_a_pattern_that_matches_nothing_records_nothing(self, spark, topic, lake):
        assert record(spark, [f"{topic}.*"], lake) == 0


class TestFollowing:
    def test_new_messages_and_new_topics_of_a_pattern_are_recorded_until_it_is_stopped(
        self, spark, client, topic, lake, following, wait_until
    ):
        start, end = following
        publish(client, f"{topic}.a", "1")
        publish(client, f"{topic}.deep.a", "not of the pattern")
        start(f"{topic}.*")
        wait_until(lambda: lake.exists() and lake.topics() == {f"{topic}.a"})
        publish(client, f"{topic}.a", "2")
        publish(client, f"{topic}.b", "3")
        wait_until(lambda: lake.topics() == {f"{topic}.a", f"{topic}.b"} and len(lake.files()) >= 3)
        assert end() == 3
        assert values_in(spark, lake) == ["1", "2", "3"]

    def test_small_files_are_joined_on_the_way(self, spark, client, topic, lake, following, wait_until, monkeypatch):
        monkeypatch.setattr("stentor.spark.pipelines.record.COMPACT_EVERY_ROUNDS", 3)
        start, end = following
        start(f"{topic}.*")
        for number in range(1, 4):
            publish(client, f"{topic}.a", str(number))
            wait_until(lambda number=number: lake.ends(f"{topic}.a", _id(client, topic), [0]) == {0: number})
        assert end() == 3
        assert len(lake.files()) == 1
        assert values_in(spark, lake) == ["1", "2", "3"]


def _id(client, topic):
    return client.describe_topic(f"{topic}.a").id


class TestRetention:
    def test_a_gap_is_an_error_or_allowed(self, spark, client, topic, lake, wait_until):
        client.create_topic(topic, retention_bytes=0)
        publish(client, topic, "a")
        record(spark, [topic], lake)
        publish(client, topic, *[LARGE] * 12)
        wait_until(lambda: client.offsets(topic, "earliest")[0] > 1)
        client.alter_topic(topic, retention_bytes=1 << 30)
        with pytest.raises(OffsetOutOfRange, match=r"begins at \d+; the lake ends at 1: \d+ messages were deleted"):
            record(spark, [topic], lake)
        low = client.offsets(topic, "earliest")[0]
        recorded = record(spark, [topic], lake, fail_on_data_loss=False)
        assert recorded == 13 - low
        found = [row.offset for row in lake.frame(spark).orderBy("offset").collect()]
        assert found == [0, *range(low, 13)]

    def test_what_is_kept_for_the_recorder_is_deleted_only_when_it_was_recorded(
        self, spark, client, topic, lake, wait_until
    ):
        client.create_topic(topic, retention_bytes=0, keep_unrecorded=True)
        publish(client, topic, *[LARGE] * 12)
        wait_until(lambda: client.describe_topic(topic).partitions[0].kept_unrecorded)
        assert client.offsets(topic, "earliest") == {0: 0}
        told = []

        def look(_):
            told.append(client.describe_topic(topic).partitions[0].recorded)

        assert record(spark, [topic], lake, round_rows=6, on_round=look) == 12
        assert told == [6, 12]
        wait_until(lambda: client.offsets(topic, "earliest")[0])
        publish(client, topic, *[LARGE] * 8)
        assert record(spark, [topic], lake) == 8
        assert [row.offset for row in lake.frame(spark).orderBy("offset").collect()] == list(range(20))

    def test_brokers_that_cannot_be_told_now_stop_no_recorder(
        self, spark, client, topic, lake, wait_until, monkeypatch
    ):
        client.create_topic(topic, retention_bytes=0, keep_unrecorded=True)
        publish(client, topic, *[LARGE] * 8)

        def refuse(*_, **__):
            raise DeadlineExceeded("The cluster is being upgraded.")

        with monkeypatch.context() as patch:
            patch.setattr(Client, "mark_recorded", refuse)
            assert record(spark, [topic], lake) == 8
        assert client.describe_topic(topic).partitions[0].recorded == 0
        assert record(spark, [topic], lake) == 0
        wait_until(lambda: client.offsets(topic, "earliest")[0])

    def test_a_run_that_could_not_tell_the_brokers_is_made_good_by_the_next(
        self, spark, client, topic, lake, wait_until, monkeypatch
    ):
        client.create_topic(topic, retention_bytes=0, keep_unrecorded=True)
        publish(client, topic, *[LARGE] * 8)

        def fail(*_, **__):
            raise ConnectionFailed("The network is gone.")

        with monkeypatch.context() as patch:
            patch.setattr(Client, "mark_recorded", fail)
            with pytest.raises(ConnectionFailed):
                record(spark, [topic], lake)
        assert record(spark, [topic], lake) == 0
        wait_until(lambda: client.offsets(topic, "earliest")[0])
        assert lake.frame(spark).count() == 8
