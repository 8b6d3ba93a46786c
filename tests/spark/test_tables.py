"""Topics as permanent tables of Spark's catalog, and threads that share a session."""

from __future__ import annotations

import json
import threading

import pytest
from pyspark.errors import PySparkException

from stentor.spark import register, session


@pytest.fixture
def table(spark, topic):
    """A name for a table, which is dropped afterwards."""
    name = topic.replace("-", "_")
    yield name
    spark.sql(f"DROP TABLE IF EXISTS {name}")


def values_of(spark, query):
    return [row[0] for row in spark.sql(query).collect()]


class TestTables:
    def test_a_topic_is_a_permanent_table(self, spark, client, topic, table):
        for value in "ab":
            client.publish(topic, value)
        start = json.dumps({topic: {"0": 1}})
        spark.sql(
            f"CREATE TABLE {table} USING stentor OPTIONS (subscribe '{topic}', startingOffsets '{start}')"
            " COMMENT 'what people bought' TBLPROPERTIES ('owner.team' = 'shop')"
        )
        assert values_of(spark, f"SELECT string(value) FROM {table}") == ["b"]
        client.publish(topic, "c")
        assert values_of(spark, f"SELECT string(value) FROM {table} ORDER BY offset") == ["b", "c"]
        assert spark.table(table).columns[0] == "key"

    def test_rows_are_inserted_where_the_statement_or_the_row_says(self, spark, client, topic, table):
        client.create_topic(topic)
        spark.sql(f"CREATE TABLE {table} USING stentor OPTIONS (topic '{topic}', columns 'key,value')")
        with pytest.raises(PySparkException, match=r"No topic is named\. .* INSERT INTO … WITH"):
            spark.sql(f"INSERT INTO {table} SELECT binary('k'), binary('v')")
        spark.sql(f"INSERT INTO {table} WITH (topic = '{topic}') SELECT binary('k'), binary('v')")
        assert values_of(spark, f"SELECT string(value) FROM {table}") == ["v"]
        spark.sql(f"DROP TABLE {table}")
        spark.sql(f"CREATE TABLE {table} USING stentor OPTIONS (subscribe '{topic}', columns 'topic,value')")
        spark.sql(f"INSERT INTO {table} SELECT '{topic}', binary('w')")
        assert values_of(spark, f"SELECT string(value) FROM {table}") == ["v", "w"]

    def test_a_table_is_never_written_to_the_topic_of_another_that_its_rows_come_from(
        self, spark, client, topic, table
    ):
        client.publish(topic, "a")
        spark.sql(f"CREATE TABLE {table} USING stentor OPTIONS (topic '{topic}', columns 'key,value')")
        spark.table(table).write.format("stentor").mode("append").save(f"{topic}.copy")
        assert [message.value for message in client.read(f"{topic}.copy")] == [b"a"]
        assert client.offsets(topic) == {0: 1}

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            ("subscribe 'a', assing '{}'", "does not know the option assing. Did you mean assign"),
            ("columns 'key,value'", "Exactly one of subscribe, subscribePattern, assign and table is needed"),
        ],
    )
    def test_wrong_options_are_told_when_the_table_is_made(self, spark, table, options, sentence):
        with pytest.raises(PySparkException, match=sentence):
            spark.sql(f"CREATE TABLE {table} USING stentor OPTIONS ({options})")


class TestThreads:
    @pytest.mark.parametrize("prepare", [register, lambda spark: session("local[2]")])  # noqa: ARG005
    def test_another_thread_writes_and_starts_streams(self, spark, client, topic, tmp_path, prepare):
        client.publish(topic, "a")
        errors = []

        def work():
            try:
                prepare(spark)
                spark.read.format("stentor").load(topic).select("value").write.format("stentor").mode("append").save(
                    f"{topic}.batch"
                )
                source = spark.readStream.format("stentor").option("startingOffsets", "earliest").load(topic)
                sink = source.select("value").writeStream.format("stentor").option("topic", f"{topic}.stream")
                sink = sink.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True)
                sink.start().awaitTermination()
            except PySparkException as error:
                errors.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert errors == []
        assert [message.value for message in client.read(f"{topic}.*")] == [b"a", b"a"]
