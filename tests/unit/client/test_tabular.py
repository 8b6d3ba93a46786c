"""Tabular topics: a table that goes in comes out equal, and what does not fit is refused with topic and column."""

import asyncio
import datetime as dt
import json
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pandas.testing import assert_frame_equal
from polars.testing import assert_frame_equal as assert_polars_equal

import stentor

MOMENT = dt.datetime(2026, 1, 31, 12, 30, 15, 123456)  # noqa: DTZ001 - a time of no zone
SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        pa.field("amount", pa.float64()),
        pa.field("item", pa.string()),
        pa.field("at", pa.timestamp("us", tz="UTC")),
        pa.field("local", pa.timestamp("ns")),
        pa.field("day", pa.date32()),
        pa.field("paid", pa.bool_()),
        pa.field("price", pa.decimal128(12, 2)),
        pa.field("to", pa.struct([pa.field("city", pa.string()), pa.field("zip", pa.int32())])),
        pa.field("tags", pa.list_(pa.field("item", pa.string()))),
        pa.field("seen", pa.list_(pa.struct([pa.field("at", pa.timestamp("ms", tz="Europe/Vienna"))]))),
        pa.field("big", pa.uint64()),
        pa.field("small", pa.float32()),
    ]
)
ROWS = [
    {
        "id": 1,
        "amount": 0.1 + 0.2,
        "item": 'tea "green"\n€',
        "at": MOMENT.replace(tzinfo=dt.UTC),
        "local": MOMENT,
        "day": MOMENT.date(),
        "paid": True,
        "price": Decimal("12.50"),
        "to": {"city": "Wien", "zip": 1010},
        "tags": ["a", None, ""],
        "seen": [{"at": dt.datetime(2026, 7, 1, tzinfo=dt.UTC)}, {"at": None}, None],
        "big": 2**64 - 1,
        "small": 1.1,
    },
    {"id": -(2**63), "to": {"city": None, "zip": 1}, "tags": [], "amount": 1e300},
    {"id": 2**63 - 1, "seen": []},
]
TABLE = pa.Table.from_pylist(ROWS, schema=SCHEMA)


def sent(client, name, data, schema=SCHEMA, **options):
    topic = client.tabular(name, schema)
    with topic.producer() as producer:
        producer.send_batch(data, **options)
    return topic


def test_a_table_comes_back_equal_in_arrow_pandas_and_polars(client):
    topic = sent(client, "table.all", TABLE)
    assert topic.read().to_arrow().equals(TABLE)
    assert_frame_equal(topic.read().to_pandas(), TABLE.to_pandas())
    assert_polars_equal(topic.read().to_polars(), pl.from_arrow(TABLE))
    assert client.tabular("table.all").schema.equals(SCHEMA), "whoever comes later learns it from the topic"


def test_a_pandas_frame_comes_back_equal(client):
    frame = pd.DataFrame(
        {
            "number": [1, 2, 3],
            "real": [0.5, np.nan, -1e-9],
            "text": ["a", None, "ü"],
            "at": pd.to_datetime(["2026-01-01T10:00", None, "2026-06-01T12:30:00.000001"], format="ISO8601"),
            "zoned": pd.to_datetime(["2026-01-01T10:00Z", None, "2026-06-01T12:30Z"]).tz_convert("Europe/Vienna"),
            "kind": pd.Categorical(["x", "y", "x"]).astype(str),
            "nested": [{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}],
        }
    )
    schema = pa.Schema.from_pandas(frame, preserve_index=False)
    topic = sent(client, "table.pandas", frame, schema)
    found = topic.read().to_pandas()
    expected = pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata().to_pandas()
    assert_frame_equal(found, expected)
    assert_frame_equal(found.drop(columns="nested"), frame.drop(columns="nested"))


def test_a_polars_frame_comes_back_equal(client):
    frame = pl.DataFrame(
        {
            "number": [1, None, 3],
            "real": [0.5, None, -1e-9],
            "text": ["a", None, "ü"],
            "at": [MOMENT, None, MOMENT],
            "nested": [{"a": 1, "b": ["x"]}, {"a": None, "b": []}, {"a": 3, "b": None}],
        }
    )
    topic = sent(client, "table.polars", frame, frame.to_arrow().schema)
    assert_polars_equal(topic.read().to_polars(), frame)


def test_other_readers_see_json(client):
    sent(client, "table.json", TABLE, key="id")
    first = next(iter(client.read("table.json")))
    assert first.key == b"1"
    row = json.loads(first.value)
    assert (row["id"], row["item"], row["to"]) == (1, ROWS[0]["item"], {"city": "Wien", "zip": 1010})
    assert row["at"] == "2026-01-31T12:30:15.123456Z"
    assert row["seen"][0]["at"] == "2026-07-01T00:00:00.000Z"


def test_many_rows_over_partitions_and_compressed(client):
    client.create_topic("table.many", partitions=3)
    schema = pa.schema([pa.field("n", pa.int64()), pa.field("s", pa.string())])
    table = pa.table({"n": range(20_000), "s": [f"row {number}" for number in range(20_000)]}, schema=schema)
    topic = client.tabular("table.many", schema)
    with topic.producer(compression="zstd") as producer:
        producer.send_batch(table, key="n")
    found = topic.read().to_arrow()
    assert found.sort_by("n").equals(table)
    assert len({batch.num_rows for batch in topic.read(limit=100).batches()}) >= 1
    assert topic.read(limit=100).to_arrow().num_rows == 100


def test_an_empty_read_has_the_columns(client):
    assert client.tabular("table.empty", SCHEMA).read().to_arrow().schema.equals(SCHEMA)


def test_a_subscription_hands_out_rows(client):
    schema = pa.schema([pa.field("n", pa.int64())])
    topic = client.tabular("table.live", schema)
    with topic.subscribe(start="earliest") as subscription, topic.producer() as producer:
        producer.send_batch(pa.table({"n": [1, 2]}))
        assert next(subscription.batches()).to_pydict() == {"n": [1, 2]}


SMALL = pa.schema([pa.field("n", pa.int32(), nullable=False), pa.field("s", pa.string()), pa.field("f", pa.float64())])
AT = pa.schema([pa.field("at", pa.timestamp("us"))])
WRONG = {
    "an unknown column": (SMALL, {"n": [1], "x": [1]}, "x", "has no column x"),
    "a missing one": (SMALL, {"s": ["a"]}, "n", "not nullable"),
    "a null": (SMALL, {"n": [1, None]}, "n", "not nullable"),
    "text for a number": (SMALL, {"n": ["1"]}, "n", "is string; int32 is needed"),
    "a number for text": (SMALL, {"n": [1], "s": [1]}, "s", "is int64; string is needed"),
    "too large": (SMALL, {"n": [2**40]}, "n", "does not fit int32"),
    "a fraction": (SMALL, {"n": [1.5]}, "n", "does not fit int32"),
    "an infinity": (SMALL, {"n": [1], "f": [float("inf")]}, "f", "infinity"),
    "a moment for a time without a zone": (AT, {"at": [dt.datetime.now(dt.UTC)]}, "at", "is needed"),
    "nanoseconds lost": (AT, {"at": pa.array([1], pa.timestamp("ns"))}, "at", "does not fit"),
}


@pytest.mark.parametrize(("schema", "data", "column", "words"), WRONG.values(), ids=WRONG.keys())
def test_a_table_that_does_not_fit_is_refused_whole_with_topic_and_column(client, schema, data, column, words):
    topic = client.tabular(f"table.wrong.{len(schema)}", schema)
    with topic.producer() as producer, pytest.raises(stentor.SchemaRefused, match=words) as caught:
        producer.send_batch(pa.table(data))
    assert caught.value.detail["column"] == column
    assert topic.name in caught.value.message
    assert topic.read().to_arrow().num_rows == 0


@pytest.mark.parametrize("data", [[{"n": 1}], b"rows", 5, None])
def test_what_is_no_table_is_refused_in_words(client, data):
    with client.tabular("table.wrong.3", SMALL).producer() as producer, pytest.raises(stentor.SchemaRefused):
        producer.send_batch(data)


@pytest.mark.parametrize("kind", [pa.binary(), pa.null(), pa.duration("s"), pa.map_(pa.string(), pa.int64())], ids=str)
def test_a_type_that_rows_cannot_hold_is_refused_with_its_column(client, kind):
    with pytest.raises(stentor.SchemaRefused, match=r"Column odd for topic table\.odd is"):
        client.tabular("table.odd", pa.schema([pa.field("odd", kind)]))


def test_versions_add_nullable_columns_and_nothing_else(client):
    one = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    two = pa.schema([*one, pa.field("s", pa.string())])
    first = sent(client, "table.versions", pa.table({"n": [1]}), one)
    second = sent(client, "table.versions", pa.table({"n": [2], "s": ["b"]}), two)
    assert (first.version, second.version) == (1, 2)
    assert client.tabular("table.versions", one).version == 1, "the same schema again is the version that it was"
    with first.producer() as producer:
        producer.send_batch(pa.table({"n": [3]}))  # a producer that has not heard of it goes on
    assert client.tabular("table.versions").read().to_arrow().to_pylist() == [
        {"n": 1, "s": None},
        {"n": 2, "s": "b"},
        {"n": 3, "s": None},
    ]
    assert first.read().to_arrow().to_pydict() == {"n": [1, 2, 3]}
    for schema, difference in (
        (pa.schema([pa.field("n", pa.string(), nullable=False), two.field(1)]), "column n was int64 and is string"),
        (pa.schema([two.field(1)]), "column n is missing"),
        (pa.schema([*two, pa.field("t", pa.int64(), nullable=False)]), "column t is new and not nullable"),
    ):
        with pytest.raises(stentor.SchemaRefused, match=difference):
            client.tabular("table.versions", schema)
    assert client.tabular("table.versions").version == 2


def test_the_schema_outlives_changes_and_restarts():
    from stentor.testing import broker

    with broker() as local, local.client() as client:
        topic = sent(client, "table.kept", TABLE)
        client.alter_topic("table.kept", retention_bytes=2**40)
        local.stop()
        local.start()
        assert client.tabular("table.kept").schema.equals(SCHEMA)
        assert topic.read().to_arrow().equals(TABLE)
        with pytest.raises(stentor.SchemaRefused):
            client.publish("table.kept", "no row")


def test_a_topic_without_schema_says_so(client):
    client.publish("table.none", "text")
    with pytest.raises(stentor.SchemaRefused, match=r"table\.none has no schema"):
        client.tabular("table.none")


NO_ROWS = [b"text", None, b"[1]", b'{"n": "one"}', b'{"n": 1}{"n": 2}', b"{}", b""]


@pytest.mark.parametrize("number", range(len(NO_ROWS)))
def test_a_stored_value_that_is_no_row_is_named_by_its_place(client, number):
    name, value = f"table.before.{number}", NO_ROWS[number]
    schema = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    with client.producer(name) as producer:  # before the topic had a schema
        producer.send_many([b'{"n": 0}'] * 700)
        producer.send(value)
        producer.send_many([b'{"n": 0}'] * 300)
    with pytest.raises(stentor.DecodeFailed, match=f"{name}/0@700 ") as caught:
        client.tabular(name, schema).read().to_arrow()
    assert caught.value.detail == {"topic": name, "partition": 0, "offset": 700}


def test_async_tables_do_the_same(shared):
    async def work():
        async with stentor.connect_async(shared.url) as client:
            topic = await client.tabular("table.async", SCHEMA)
            async with await topic.producer() as producer:
                await producer.send_batch(TABLE)
                with pytest.raises(stentor.SchemaRefused):
                    await producer.send_batch(pa.table({"id": ["x"]}))
            assert (await (await topic.read()).to_arrow()).equals(TABLE)
            assert_frame_equal(await (await topic.read()).to_pandas(), TABLE.to_pandas())
            async with await topic.subscribe(start="earliest") as subscription:
                assert (await anext(subscription.batches())).num_rows == 3

    asyncio.run(work())
