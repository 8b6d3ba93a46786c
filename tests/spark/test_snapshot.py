"""Snapshots: the latest value of every key, now or then."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from stentor.errors import InvalidArgument, TopicNotFound
from stentor.spark.pipelines.record import record
from stentor.spark.pipelines.snapshot import latest, to_lake, to_topic

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


@pytest.fixture
def prices(client, topic):
    """Two partitions; prices change, one key is deleted, one moved, one message has no key, one clock was behind."""
    client.create_topic(topic, partitions=2)
    messages = [
        (0, "apple", "1", 0),
        (1, "pear", "2", 1),
        (0, "apple", "3", 2),
        (0, "plum", "4", 3),
        (1, "moved", "old", 4),
        (0, None, "no key", 5),
        (0, "plum", None, 6),
        (1, "pear", "5", 0.5),  # later in its partition, though its clock says otherwise
        (0, "moved", "new", 8),
    ]
    for partition, key, value, second in messages:
        client.publish(topic, value, key=key, timestamp=NOON + timedelta(seconds=second), partition=partition)
    return topic


def values(frame):
    return {bytes(row.key).decode(): bytes(row.value).decode() for row in frame.collect()}


NOW = {"apple": "3", "pear": "5", "moved": "new"}


class TestLatest:
    def test_the_latest_value_of_every_key_counts_and_deleted_keys_are_gone(self, spark, prices):
        frame = latest(spark, prices)
        assert values(frame) == NOW
        assert frame.columns == ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]

    def test_as_it_was_at_a_time(self, spark, prices):
        then = latest(spark, prices, until=NOON + timedelta(seconds=4))
        assert values(then) == {"apple": "3", "pear": "5", "plum": "4"}

    def test_as_it_was_at_offsets(self, spark, prices):
        assert values(latest(spark, prices, until_offsets={0: 3, 1: 1})) == {"apple": "3", "pear": "2", "plum": "4"}
        with pytest.raises(InvalidArgument, match="No partition is named"):
            latest(spark, prices, until_offsets={})

    def test_with_the_history_of_a_lake(self, spark, client, prices, tmp_path):
        record(spark, [prices], tmp_path / "lake")
        client.publish(prices, "6", key="apple", partition=0)
        assert values(latest(spark, prices, lake=tmp_path / "lake")) == NOW | {"apple": "6"}

    def test_a_topic_that_does_not_exist_is_told(self, spark, topic):
        with pytest.raises(TopicNotFound, match=f"There is no topic {topic}.nothing"):
            latest(spark, f"{topic}.nothing")


class TestKept:
    def test_a_snapshot_is_written_and_comes_back(self, spark, prices, tmp_path):
        to_lake(latest(spark, prices), tmp_path / "prices")
        assert values(spark.read.parquet(str(tmp_path / "prices"))) == NOW
        to_lake(latest(spark, prices).where("key = binary('apple')"), tmp_path / "prices")
        assert values(spark.read.parquet(str(tmp_path / "prices"))) == {"apple": "3"}
        assert [path.name for path in tmp_path.iterdir()] == ["prices"]

    def test_the_earlier_snapshot_stays_when_the_new_one_fails(self, spark, prices, tmp_path):
        to_lake(latest(spark, prices), tmp_path / "prices")
        broken = spark.range(1).selectExpr("raise_error('the disk is full') as value")
        with pytest.raises(Exception, match="the disk is full"):
            to_lake(broken, tmp_path / "prices")
        assert values(spark.read.parquet(str(tmp_path / "prices"))) == NOW

    def test_a_directory_of_something_else_is_not_replaced(self, spark, tmp_path):
        (tmp_path / "thesis.tex").write_text("x")
        with pytest.raises(InvalidArgument, match=r"holds something that is not a snapshot. Name another directory."):
            to_lake(spark.range(1), tmp_path)
        assert (tmp_path / "thesis.tex").exists()

    def test_a_snapshot_goes_into_a_topic_once_if_it_has_a_name(self, spark, client, prices):
        into = f"{prices}.closing"
        for _ in range(2):
            to_topic(latest(spark, prices), into, name=f"closing-{prices}")
        found = list(client.read(into))
        assert {message.key.decode(): message.value.decode() for message in found} == NOW
        assert len(found) == 3
        assert {message.timestamp for message in found} == {NOON + timedelta(seconds=at) for at in (2, 0.5, 8)}
