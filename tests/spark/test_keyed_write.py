"""Writing DataFrames into tables: keys are set and deleted, once."""

from __future__ import annotations

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from stentor.errors import InvalidArgument, TopicNotFound
from stentor.spark.options import write_options
from stentor.spark.rows import check_table_columns
from stentor.spark.source import StentorDataSource


@pytest.fixture
def config(client, topic):
    client.create_topic(topic, kind="table", partitions=3)
    with client.table(topic) as table:
        table.put("app/old", "stays")
        table.put("app/gone", "goes")
    return topic


def write(frame, **options):
    frame.write.format("stentor").mode("append").options(**options).save()


def content(client, name):
    with client.table(name) as table:
        return dict(table.items())


ROWS = [("app/rate", b"100"), ("app/gone", None), *((f"many/{n}", b"%d" % n) for n in range(20))]
WANTED = {"app/old": b"stays", "app/rate": b"100"} | {f"many/{n}": b"%d" % n for n in range(20)}


class TestBatch:
    @pytest.mark.parametrize("staged", [pytest.param(False, marks=pytest.mark.long), True])
    def test_rows_set_keys_and_a_null_value_deletes_one(self, spark, client, config, staged):
        frame = spark.createDataFrame(ROWS, "key string, value binary")
        for _ in range(2):
            write(frame, table=config, **({"txnAppId": config, "txnVersion": "1"} if staged else {}))
        assert content(client, config) == WANTED
        with client.table(config) as table:
            table.put("app/rate", "200", if_version=table.entry("app/rate").version)  # where puts find it
            changes = sum(table.sequence)
        assert changes == 2 + len(ROWS) * (1 if staged else 2) + 1

    def test_what_was_read_of_a_table_can_be_written_to_another(self, spark, client, config):
        client.create_topic(f"{config}.copy", kind="table")
        write(spark.read.format("stentor").option("table", config).load(), table=f"{config}.copy")
        assert content(client, f"{config}.copy") == content(client, config)

    def test_it_is_inserted_by_sql(self, spark, client, config):
        name = config.replace("-", "_")
        spark.sql(f"CREATE TABLE {name} USING stentor OPTIONS (table '{config}', columns 'key,value')")
        try:
            spark.sql(f"INSERT INTO {name} WITH (table = '{config}') SELECT 'app/rate', binary('7')")
            assert content(client, config)["app/rate"] == b"7"
        finally:
            spark.sql(f"DROP TABLE {name}")

    @pytest.mark.parametrize(
        ("key", "value", "sentence"),
        [
            ("if(id = 7, null, string(id))", "''", "Row 7 of Spark's partition 0, counted from 0, has no key. Fill"),
            ("if(id = 7, '/a', string(id))", "''", "Row 7 of Spark's partition 0, counted from 0, has the key '/a'"),
            ("if(id = 7, '', string(id))", "''", "has the key '', which no table takes. Use a path such as"),
            ("binary(if(id = 7, x'ff', binary('a')))", "''", "A key of Spark's partition 0 is not UTF-8."),
            ("string(id)", "if(id = 7, repeat('x', (8 << 20) + 1), '')", "Row 7 of Spark's partition 0"),
            ("repeat('x', if(id = 7, 65537, 1))", "''", "has a key of more than the 65536 bytes"),
        ],
        ids=["null", "slash", "empty", "bytes", "large value", "large key"],
    )
    def test_a_row_that_no_table_takes_is_named_before_its_batch_is_sent(
        self, spark, client, config, key, value, sentence
    ):
        before = content(client, config)
        frame = spark.range(20).coalesce(1).selectExpr(f"{key} as key", f"{value} as value")
        with pytest.raises(PySparkException) as caught:
            write(frame, table=config)
        assert sentence in str(caught.value)
        assert content(client, config) == before


class TestStream:
    @pytest.mark.long
    def test_a_stream_writes_its_changes_once_also_when_spark_repeats_a_batch(self, spark, client, config, tmp_path):
        target = f"{config}.copy"
        client.create_topic(target, kind="table", partitions=2)

        def follow():
            source = spark.readStream.format("stentor").options(table=config, startingOffsets="earliest").load()
            sink = source.writeStream.format("stentor").options(table=target, checkpointLocation=str(tmp_path))
            sink.trigger(availableNow=True).start().awaitTermination()
            return sum(client.offsets(target).values())

        assert follow() == 2
        with client.table(config) as table:
            table.delete("app/gone")
            table.put("app/rate", "1")
        assert follow() == 4
        last = max(
            (path for path in (tmp_path / "commits").iterdir() if path.name.isdigit()), key=lambda p: int(p.name)
        )
        last.unlink()
        last.with_name(f".{last.name}.crc").unlink(missing_ok=True)
        assert follow() == 4
        assert content(client, target) == content(client, config) == {"app/old": b"stays", "app/rate": b"1"}


class TestMistakes:
    @pytest.mark.parametrize(
        ("schema", "sentence"),
        [
            ("value binary", "A table needs a column `key`. The columns are: value."),
            ("key string", "A table needs a column `value`. The columns are: key."),
            ("key int, value binary", "Column key is int; binary or string is needed. Cast it first"),
            ("key string, value binary, customer int", "Column customer cannot be written to a table. A table accepts"),
            ("key string, value binary, topic string", "Column topic cannot be written to a table."),
        ],
    )
    def test_columns(self, spark, schema, sentence):
        with pytest.raises(InvalidArgument) as caught:
            check_table_columns(spark.createDataFrame([], schema).schema)
        assert sentence in str(caught.value)

    def test_topics(self, client, config):
        schema = StructType().add("key", "string").add("value", "string")
        client.create_topic("plain", exist_ok=True)
        with pytest.raises(InvalidArgument, match="Topic plain is no table"):
            StentorDataSource({"table": "plain"}).writer(schema, overwrite=False)
        with pytest.raises(
            TopicNotFound, match=r"There is no table nobody\. Make it with `stentor table create nobody`"
        ):
            StentorDataSource({"table": "nobody"}).streamWriter(schema, overwrite=False)
        assert not client.topics("nobody")
        with pytest.raises(InvalidArgument, match="A table cannot be overwritten"):
            StentorDataSource({"table": config}).writer(schema, overwrite=True)
        with pytest.raises(InvalidArgument, match="topic and table exclude each other"):
            write_options({"table": "a", "topic": "b"}, streaming=False)
