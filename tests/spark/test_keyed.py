"""Tables by key in Spark: snapshots and change feeds."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException

import stentor
from stentor.errors import InvalidArgument
from stentor.spark.options import read_options


@pytest.fixture
def config(client, topic):
    """A table with changes of all kinds; one was refused, one key was deleted, one was deleted and set again."""
    client.create_topic(topic, kind="table", partitions=3)
    with client.table(topic) as table:
        for key in ("app/rate", "app/burst", "app/gone", "title"):
            table.put(key, f"old {key}")
        first = table.entry("title").version
        table.put("title", "Shop €", if_version=first)
        with pytest.raises(stentor.ConditionFailed):
            table.put("title", "never", if_version=first)
        table.delete("app/gone")
        table.delete("app/burst")
        table.put("app/burst", "20")
        table.put("empty", b"")
    return topic


def snapshot(spark, name, **options):
    return spark.read.format("stentor").options(table=name, **options).load()


def rows_of(frame):
    return sorted(tuple(row) for row in frame.select("key", "value", "version").collect())


def entries_of(client, name, subtree=""):
    with client.table(name) as table:
        return sorted((entry.key, entry.value, entry.version) for entry in table.entries(subtree))


class TestSnapshot:
    def test_it_has_one_row_per_key_as_a_copy_has(self, spark, client, config):
        frame = snapshot(spark, config)
        assert frame.columns == ["key", "value", "version", "timestamp", "change"]
        assert rows_of(frame) == entries_of(client, config)
        assert {row.change for row in frame.collect()} == {"put"}
        assert all(row.timestamp is not None for row in frame.collect())

    def test_a_frame_is_of_one_sequence_and_another_sees_more(self, spark, client, config):
        frame = snapshot(spark, config)
        before = rows_of(frame)
        with client.table(config) as table:
            sequence = table.sequence
            table.put("title", "later")
            table.delete("app/rate")
        assert rows_of(frame) == before
        assert rows_of(snapshot(spark, config)) == entries_of(client, config) != before
        assert rows_of(snapshot(spark, config, sequence=str(sequence))) == before

    def test_a_subtree_and_columns_are_chosen(self, spark, client, config):
        assert rows_of(snapshot(spark, config, subtree="app/")) == entries_of(client, config, "app/")
        keys = snapshot(spark, config, columns="partition,key")
        assert keys.columns == ["partition", "key"]
        assert sorted(row.key for row in keys.collect()) == ["app/burst", "app/rate", "empty", "title"]
        assert {row.partition for row in keys.collect()} <= {0, 1, 2}
        narrow = spark.read.schema("version bigint").format("stentor").option("table", config).load()
        assert sorted(row.version for row in narrow.collect()) == sorted(e[2] for e in entries_of(client, config))

    def test_an_empty_table_has_no_rows(self, spark, client, topic):
        client.create_topic(topic, kind="table")
        assert snapshot(spark, topic).count() == 0

    def test_it_is_a_table_of_the_catalog(self, spark, client, config):
        name = config.replace("-", "_")
        spark.sql(f"CREATE TABLE {name} USING stentor OPTIONS (table '{config}', subtree 'app/')")
        try:
            found = spark.sql(f"SELECT key, value, version FROM {name}")
            assert sorted(map(tuple, found.collect())) == entries_of(client, config, "app/")
        finally:
            spark.sql(f"DROP TABLE {name}")

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            ({"table": "nobody"}, "There is no table nobody. Make it with `stentor table create nobody`."),
            ({"table": "plain"}, "Topic plain is no table. Use the option subscribe to read it"),
            ({"sequence": "1,2"}, "has 3 partitions; the sequence has 2"),
            ({"sequence": "0,0,999"}, "sequence says 999"),
        ],
    )
    def test_what_cannot_be_read_is_one_sentence(self, spark, client, config, options, sentence):
        client.create_topic("plain", exist_ok=True)
        with pytest.raises(PySparkException) as caught:
            spark.read.format("stentor").options(**{"table": config} | options).load().collect()
        assert sentence in str(caught.value)
        assert not client.topics("nobody")

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            ({"table": "a", "subscribe": "b"}, "not subscribe and table."),
            ({"table": "a.*"}, "'a.*' is not a topic name."),
            ({"subscribe": "a", "subtree": "x/"}, "subtree is for tables. Name one"),
            ({"subscribe": "a", "sequence": "1"}, "sequence is for tables. Name one"),
            ({"table": "a", "subtree": "x"}, "is no subtree: it would end in the middle of a word."),
            ({"table": "a", "sequence": "now"}, "sequence='now' is not a sequence of a table. Use the offset of each"),
            ({"table": "a", "sequence": ""}, "is not a sequence of a table."),
            ({"table": "a", "sequence": "1", "endingOffsets": "latest"}, "sequence says where a snapshot ends."),
            ({"table": "a", "startingOffsets": "earliest"}, "startingOffsets is not for snapshots of a table."),
            ({"table": "a", "minPartitions": "3"}, "minPartitions is not for snapshots of a table."),
            ({"table": "a", "columns": "key,offset"}, "is not a list of columns of a table. Choose from key, value,"),
            ({"table": "a", "columns": "typed"}, "is not a list of columns of a table."),
            ({"table": "a", "includeHeaders": "true"}, "Rows of a table have no headers."),
        ],
    )
    def test_wrong_options_are_one_sentence(self, options, sentence):
        with pytest.raises(InvalidArgument) as caught:
            read_options(options, streaming=False)
        assert sentence in str(caught.value)


class TestChangeFeed:
    def changes(self, spark, name, place, **options):
        """What the feed has by now."""
        frame = spark.readStream.format("stentor").options(table=name, startingOffsets="earliest", **options).load()
        sink = frame.writeStream.format("parquet").option("checkpointLocation", str(place / "state"))
        sink.trigger(availableNow=True).start(str(place / "out")).awaitTermination()
        found = spark.read.parquet(str(place / "out")).selectExpr("key", "string(value)", "version", "change")
        return [tuple(row) for row in found.collect()]

    def test_it_has_every_change_of_a_key_in_order_and_none_that_was_refused(self, spark, client, config, tmp_path):
        found = self.changes(spark, config, tmp_path)
        by_key = {}
        for key, value, _, change in sorted(found, key=lambda row: row[2]):
            by_key.setdefault(key, []).append((value, change))
        assert by_key == {
            "app/rate": [("old app/rate", "put")],
            "app/gone": [("old app/gone", "put"), (None, "delete")],
            "app/burst": [("old app/burst", "put"), (None, "delete"), ("20", "put")],
            "title": [("old title", "put"), ("Shop €", "put")],
            "empty": [("", "put")],
        }
        assert {(row[0], row[2]) for row in found} >= {(e[0], e[2]) for e in entries_of(client, config)}

    def test_it_goes_on_where_it_was_and_keeps_to_its_subtree(self, spark, client, config, tmp_path):
        assert len(self.changes(spark, config, tmp_path, subtree="app/")) == 6
        with client.table(config) as table:
            table.put("app/rate", "9")
            table.put("title", "not of the subtree")
        found = self.changes(spark, config, tmp_path, subtree="app/")
        assert len(found) == 7
        assert sorted(row[1] for row in found if row[0] == "app/rate") == ["9", "old app/rate"]

    def test_a_stream_has_no_sequence(self):
        with pytest.raises(InvalidArgument, match="A stream of a table has no sequence"):
            read_options({"table": "a", "sequence": "1"}, streaming=True)
