"""Writes: rows become messages, and those of a stream exactly once."""

from __future__ import annotations

import json
import shutil
import time
from datetime import UTC, datetime

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from stentor.spark.kept_secret import FILE

SCHEMA = "key string, value string, headers array<struct<key: string, value: binary>>, timestamp timestamp"
MOMENT = datetime(2026, 11, 15, 8, 30, 0, 123456, tzinfo=UTC)


def write(frame, **options):
    frame.write.format("stentor").mode("append").options(**options).save()


def values_in(client, topic):
    return sorted(message.value.decode() for message in client.read(topic))


class TestBatch:
    def test_rows_become_messages_with_all_they_have(self, spark, client, topic):
        now = time.time()
        rows = [
            ("k", "v", [("trace", bytearray(b"\x01")), ("empty", bytearray())], MOMENT),
            (None, None, None, None),
            ("", "", [], MOMENT),
        ]
        write(spark.createDataFrame(rows, SCHEMA).coalesce(1), topic=topic)
        first, second, third = client.read(topic)
        assert (first.key, first.value, first.timestamp) == (b"k", b"v", MOMENT)
        assert dict(first.headers) == {"trace": b"\x01", "empty": b""}
        assert (second.key, second.value, not second.headers) == (None, None, True)
        assert now - 1 <= second.timestamp.timestamp() <= time.time() + 1
        assert (third.key, third.value) == (b"", b"")

    def test_keys_go_where_the_client_sends_them(self, spark, client, topic):
        keys = [f"customer-{number}" for number in range(40)]
        for name in (f"{topic}.client", f"{topic}.spark"):
            client.create_topic(name, partitions=3)
        for key in keys:
            client.publish(f"{topic}.client", "v", key=key)
        write(spark.createDataFrame([(key, "v") for key in keys], "key string, value string"), topic=f"{topic}.spark")
        by_client, by_spark = (
            {message.key: message.partition for message in client.read(name)}
            for name in (f"{topic}.client", f"{topic}.spark")
        )
        assert by_spark == by_client
        assert len(set(by_spark.values())) == 3

    def test_rows_may_name_their_topic_and_partition(self, spark, client, topic):
        client.create_topic(f"{topic}.a", partitions=3)
        client.create_topic(f"{topic}.b", partitions=2)
        rows = [(f"{topic}.a", 2, "1"), (f"{topic}.b", 0, "2"), (f"{topic}.a", 0, "3"), (f"{topic}.b", None, "4")]
        frame = spark.createDataFrame(rows, "topic string, partition int, value string")
        write(frame)
        found = {(message.topic, message.partition): message.value for message in client.read(f"{topic}.*")}
        assert found[f"{topic}.a", 2] == b"1"
        assert found[f"{topic}.a", 0] == b"3"
        assert sorted(message.value for message in client.read(f"{topic}.b")) == [b"2", b"4"]
        write(frame.drop("partition"), topic=f"{topic}.all")
        assert values_in(client, f"{topic}.all") == ["1", "2", "3", "4"]

    def test_bytes_are_written_as_they_are_and_path_is_a_topic(self, spark, client, topic):
        frame = spark.createDataFrame([(bytearray(b"\xff\x00"),)], "value binary")
        frame.write.format("stentor").mode("append").option("compression", "zstd").save(topic)
        assert [message.value for message in client.read(topic)] == [b"\xff\x00"]

    @pytest.mark.parametrize("options", [{}, {"txnAppId": "skewed", "txnVersion": "1"}])
    def test_a_few_large_values_among_small_ones_are_written(self, spark, client, topic, options):
        frame = spark.range(9000).selectExpr("if(id between 4001 and 4004, repeat('x', 7 << 20), string(id)) as value")
        write(frame.coalesce(1), topic=topic, **options)
        sizes = [len(message.value) for message in client.read(topic)]
        assert len(sizes) == 9000
        assert sizes[4001:4005] == [7 << 20] * 4

    @pytest.mark.parametrize("options", [{}, {"txnAppId": "too-large", "txnVersion": "1"}])
    def test_a_value_that_is_too_large_is_refused_before_its_batch_is_sent(self, spark, client, topic, options):
        client.create_topic(topic)
        frame = spark.range(500).selectExpr("if(id = 321, repeat('x', (8 << 20) + 1), string(id)) as value")
        with pytest.raises(PySparkException, match="Row 321 of Spark's partition 0, counted from 0, has a value of"):
            write(frame.coalesce(1), topic=topic, **options)
        assert client.offsets(topic) == {0: 0}

    def test_a_batch_of_the_same_version_leaves_its_rows_once(self, spark, client, topic):
        for version, value in ((1, "a"), (1, "a"), (2, "b"), (3_000_000_000_000, "c")):
            frame = spark.createDataFrame([(value,)], "value string")
            write(frame, topic=topic, txnAppId=f"app-{topic}", txnVersion=version)
        late = spark.createDataFrame([("late",)], "value string")
        with pytest.raises(PySparkException, match="txnVersion 1 comes with 1 rows after"):
            write(late, topic=topic, txnAppId=f"app-{topic}", txnVersion=1)
        write(late, topic=topic, txnAppId=f"app-{topic}", txnVersion=1, dropRepeated="true")
        assert values_in(client, topic) == ["a", "b", "c"]


class Pipeline:
    """From one topic to another."""

    def __init__(self, spark, source, target, folder, **options):
        self._spark = spark
        self._source = source
        self._target = target
        self.checkpoint = folder
        self._options = options

    def run(self):
        source = self._spark.readStream.format("stentor").option("startingOffsets", "earliest")
        frame = source.option("maxOffsetsPerTrigger", "3").load(self._source).selectExpr("value", "key")
        sink = frame.writeStream.format("stentor").option("checkpointLocation", str(self.checkpoint))
        query = sink.option("topic", self._target).options(**self._options).trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    def forget_last_commit(self):
        """As if the driver had died between publishing a batch and writing down that it did."""
        last = max(
            (path for path in (self.checkpoint / "commits").iterdir() if path.name.isdigit()),
            key=lambda path: int(path.name),
        )
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


class TestStream:
    @pytest.mark.parametrize("options", [{}, {"applicationId": "totals"}, {"exactlyOnce": "false"}])
    def test_a_stream_is_written_batch_by_batch(self, spark, client, topic, tmp_path, options):
        for number in range(4):
            client.publish(f"{topic}.in", str(number))
        pipeline = Pipeline(spark, f"{topic}.in", f"{topic}.out", tmp_path / "checkpoint", **options)
        pipeline.run()
        assert values_in(client, f"{topic}.out") == ["0", "1", "2", "3"]

    def test_a_batch_that_spark_repeats_is_not_written_twice(self, spark, client, topic, tmp_path):
        pipeline = Pipeline(spark, f"{topic}.in", f"{topic}.out", tmp_path / "checkpoint")
        for number in range(4):
            client.publish(f"{topic}.in", str(number))
        pipeline.run()
        secret = (pipeline.checkpoint / FILE).read_text()
        pipeline.forget_last_commit()
        client.publish(f"{topic}.in", "4")
        query = pipeline.run()
        assert [progress.batchId for progress in query.recentProgress if progress.numInputRows] == [1, 2]
        assert values_in(client, f"{topic}.out") == ["0", "1", "2", "3", "4"]
        assert (pipeline.checkpoint / FILE).read_text() == secret

    @pytest.mark.long
    def test_a_checkpoint_from_a_backup_is_noticed_before_rows_are_dropped(self, spark, client, topic, tmp_path):
        pipeline = Pipeline(spark, f"{topic}.in", f"{topic}.out", tmp_path / "checkpoint")
        for number in range(3):
            client.publish(f"{topic}.in", str(number))
        pipeline.run()
        shutil.copytree(pipeline.checkpoint, tmp_path / "backup")
        for number in range(3, 8):
            client.publish(f"{topic}.in", str(number))
        pipeline.run()
        shutil.rmtree(pipeline.checkpoint)
        shutil.copytree(tmp_path / "backup", pipeline.checkpoint)
        client.publish(f"{topic}.in", "8")
        with pytest.raises(StreamingQueryException, match="is older than what the application wrote"):
            pipeline.run()
        pipeline = Pipeline(spark, f"{topic}.in", f"{topic}.out", tmp_path / "checkpoint", dropRepeated="true")
        pipeline.run()
        client.publish(f"{topic}.in", "9")
        pipeline.run()
        found = values_in(client, f"{topic}.out")
        assert len(set(found)) == len(found)
        assert {"0", "1", "2", "3", "4", "5", "6", "7", "9"} <= set(found)

    @pytest.mark.long
    def test_an_application_that_begins_anew_is_stopped_before_its_rows_are_dropped(
        self, spark, client, topic, tmp_path
    ):
        pipeline = Pipeline(spark, f"{topic}.in", f"{topic}.out", tmp_path / "checkpoint", applicationId=f"app-{topic}")
        client.publish(f"{topic}.in", "a")
        pipeline.run()
        shutil.rmtree(pipeline.checkpoint)
        with pytest.raises(StreamingQueryException, match="another checkpoint"):
            pipeline.run()

    @pytest.mark.long
    def test_a_complete_result_is_written_with_every_batch(self, spark, client, topic, tmp_path):
        for key in "aab":
            client.publish(f"{topic}.in", "x", key=key)
        source = spark.readStream.format("stentor").option("startingOffsets", "earliest").load(f"{topic}.in")
        counted = source.groupBy("key").count().selectExpr("key", "to_json(struct(count)) as value")
        sink = counted.writeStream.format("stentor").outputMode("complete").trigger(availableNow=True)
        sink = sink.option("checkpointLocation", str(tmp_path)).option("topic", f"{topic}.out")
        sink.start().awaitTermination()
        found = {message.key: json.loads(message.value) for message in client.read(f"{topic}.out")}
        assert found == {b"a": {"count": 2}, b"b": {"count": 1}}
