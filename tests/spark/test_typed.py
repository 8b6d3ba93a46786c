"""Tabular topics in Spark: the columns of a topic's schema, with the values that were sent."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from stentor.errors import InvalidArgument, SchemaRefused
from stentor.spark.options import write_options
from stentor.spark.source import StentorDataSource

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("amount", pa.float64()),
        pa.field("item", pa.string()),
        pa.field("at", pa.timestamp("us", tz="Europe/Vienna")),
        pa.field("local", pa.timestamp("ns")),
        pa.field("day", pa.date32()),
        pa.field("paid", pa.bool_()),
        pa.field("price", pa.decimal128(12, 2)),
        pa.field("to", pa.struct([pa.field("city", pa.string()), pa.field("since", pa.timestamp("ms", tz="UTC"))])),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("big", pa.uint64()),
        pa.field("appendedAt", pa.int32()),
    ]
)
MOMENT = dt.datetime(2026, 1, 31, 12, 30, 15, 123456, tzinfo=dt.UTC)
ROWS = [
    {
        "id": 1,
        "amount": 0.1 + 0.2,
        "item": 'tea "green"\n€',
        "at": MOMENT,
        "local": MOMENT.replace(tzinfo=None),
        "day": MOMENT.date(),
        "paid": True,
        "price": Decimal("12.50"),
        "to": {"city": "Wien", "since": MOMENT.replace(microsecond=0)},
        "tags": ["a", None],
        "big": 2**64 - 1,
        "appendedAt": 7,
    },
    {"id": 2, "to": {"city": None, "since": None}, "tags": []},
    {"id": 3},
]
TABLE = pa.Table.from_pylist(ROWS, schema=SCHEMA)
TYPES = {
    "id": "bigint",
    "amount": "double",
    "item": "string",
    "at": "timestamp",
    "local": "timestamp_ntz",
    "day": "date",
    "paid": "boolean",
    "price": "decimal(12,2)",
    "to": "struct<city:string,since:timestamp>",
    "tags": "array<string>",
    "big": "decimal(20,0)",
    "appendedAt": "int",
}


@pytest.fixture
def orders(client, topic):
    with client.tabular(topic, SCHEMA).producer() as producer:
        producer.send_batch(TABLE)
    return topic


def typed(reader, topic):
    return reader.format("stentor").option("subscribe", topic).option("columns", "typed")


def test_a_table_comes_back_equal_in_spark(spark, orders, client):
    frame = typed(spark.read, orders).load()
    assert {field.name: field.dataType.simpleString() for field in frame.schema} == TYPES
    found = frame.orderBy("id").toArrow()
    wanted = TABLE.cast(pa.schema([pa.field(name, found.schema.field(name).type) for name in TABLE.column_names]))
    assert found.to_pylist() == wanted.to_pylist()
    assert (
        found.select(["id", "amount", "item", "at"])
        .to_pandas()
        .equals(
            client.tabular(orders).read().to_pandas()[["id", "amount", "item", "at"]].assign(at=found["at"].to_pandas())
        )
    )


def test_a_stream_has_the_same_columns(spark, orders, tmp_path):
    frame = typed(spark.readStream, orders).option("startingOffsets", "earliest").load()
    query = (
        frame.where("id < 3")
        .writeStream.format("memory")
        .queryName("typed_rows")
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert [row.asDict() for row in spark.sql("select id, `to`.city from typed_rows order by id").collect()] == [
        {"id": 1, "city": "Wien"},
        {"id": 2, "city": None},
    ]


def test_rows_of_all_versions_have_the_columns_of_the_newest(spark, client, orders):
    newer = pa.schema([*SCHEMA, pa.field("note", pa.string())])
    with client.tabular(orders, newer).producer() as producer:
        producer.send_batch(pa.table({"id": [4], "note": ["new"]}))
    rows = typed(spark.read, orders).load().select("id", "note").orderBy("id").collect()
    assert [tuple(row) for row in rows] == [(1, None), (2, None), (3, None), (4, "new")]


def test_a_schema_may_leave_columns_out(spark, orders):
    frame = typed(spark.read.schema("item string, id bigint"), orders).load()
    assert [tuple(row) for row in frame.orderBy("id").collect()] == [(ROWS[0]["item"], 1), (None, 2), (None, 3)]


def test_a_table_of_the_catalog_has_typed_columns(spark, orders):
    spark.sql(f"create table typed_orders using stentor options (subscribe '{orders}', columns 'typed')")
    try:
        assert spark.sql("select sum(amount), count(*) from typed_orders").collect()[0][1] == 3
    finally:
        spark.sql("drop table typed_orders")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"subscribe": "a,b"}, "one topic"),
        ({"subscribe": "a.*"}, "one topic"),
        ({"subscribePattern": "a"}, "one topic"),
        ({"columns": "typed,key"}, "not a list of columns"),
    ],
)
def test_what_has_no_single_schema_is_refused_in_words(spark, orders, options, words):
    given = {"columns": "typed", **({} if "subscribePattern" in options else {"subscribe": orders}), **options}
    with pytest.raises(Exception, match=words):
        spark.read.format("stentor").options(**given).load().collect()


def test_a_topic_without_schema_is_refused_in_words(spark, client, topic):
    client.publish(topic, "text")
    with pytest.raises(Exception, match="has no schema"):
        typed(spark.read, topic).load().collect()


# --- writing ------------------------------------------------------------------------------------


def write(frame, topic, **options):
    frame.write.format("stentor").mode("append").options(topic=topic, columns="typed", **options).save()


@pytest.mark.parametrize("staged", [False, True])
def test_a_frame_is_written_as_rows_of_the_schema(spark, client, orders, staged):
    target = f"{orders}.copy"
    client.create_topic(target, partitions=2)
    client.tabular(target, SCHEMA)
    frame = typed(spark.read, orders).load()
    for _ in range(2):
        write(frame, target, keyColumn="id", **({"txnAppId": target, "txnVersion": "1"} if staged else {}))
    found = client.tabular(target).read().to_arrow().sort_by("id").to_pylist()
    wanted = [row for row in TABLE.to_pylist() for _ in range(1 if staged else 2)]
    assert found == wanted
    assert {message.key for message in client.read(target)} == {b"1", b"2", b"3"}


def test_a_stream_writes_rows_and_columns_may_be_left_out(spark, client, orders, tmp_path):
    target = f"{orders}.copy"
    client.tabular(target, SCHEMA)
    frame = typed(spark.readStream, orders).option("startingOffsets", "earliest").load().select("item", "id")
    sink = frame.writeStream.format("stentor").options(topic=target, columns="typed", checkpointLocation=str(tmp_path))
    sink.trigger(availableNow=True).start().awaitTermination()
    found = client.tabular(target).read().to_arrow().sort_by("id")
    assert found.select(["id", "item"]).to_pylist() == TABLE.select(["id", "item"]).to_pylist()


@pytest.mark.parametrize(
    ("columns", "options", "words"),
    [
        (["1L as id", "1 as colour"], {}, "The schema of topic {} has no column colour."),
        (["'1' as id"], {}, "Column id for topic {} is string; int64 is needed."),
        (["'tea' as item"], {}, "Column id for topic {} is missing, and is not nullable."),
        (["1L as id"], {"keyColumn": "nothing"}, "The schema of topic {} has no column 'nothing' to be the key."),
    ],
)
def test_columns_that_do_not_fit_are_refused_before_anything_is_written(spark, client, orders, columns, options, words):
    with pytest.raises(SchemaRefused) as caught:
        StentorDataSource({"topic": orders, "columns": "typed", **options}).writer(
            spark.range(1).selectExpr(*columns).schema, overwrite=False
        )
    assert words.format(orders) in str(caught.value)


def test_a_value_that_does_not_fit_is_refused_with_topic_and_column(spark, client, orders):
    before = client.offsets(orders)
    with pytest.raises(
        Exception, match=f"Column id for topic {orders} has a null at id, which is not nullable. Nothing of its"
    ):
        write(spark.range(2).coalesce(1).selectExpr("if(id = 1, null, id) as id"), orders)
    with pytest.raises(Exception, match=f"Column price for topic {orders} does not fit decimal128"):
        write(spark.range(1).selectExpr("id", "cast(0.123 as decimal(12,3)) as price"), orders)
    assert client.offsets(orders) == before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topic": "a", "columns": "key,value"}, "is for reads. A write takes columns=typed or none."),
        ({"columns": "typed"}, "columns=typed writes to one topic. Name it in the option topic."),
        ({"table": "a", "columns": "typed"}, "columns=typed writes to one topic."),
        ({"topic": "a", "keyColumn": "id"}, "keyColumn is for columns=typed."),
    ],
)
def test_wrong_options_of_a_write_are_one_sentence(options, words):
    with pytest.raises(InvalidArgument) as caught:
        write_options(options, streaming=False)
    assert words in str(caught.value)
