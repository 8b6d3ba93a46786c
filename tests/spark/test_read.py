"""Batch reads: a topic is a table."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import msgspec
import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, LongType, StringType, StructField, StructType

from stentor.client.link import BrokerLink
from stentor.errors import EndUnknown, InvalidArgument
from stentor.spark import columns
from stentor.spark.offsets import OffsetRange
from stentor.spark.options import read_options
from stentor.spark.reader import TopicReader
from stentor.wire.messages import FindOffset

MORNING = datetime(2026, 11, 15, 8, 0, tzinfo=UTC)


@pytest.fixture(scope="module")
def orders(client):
    """Ten messages in each of three partitions, an hour between one and the next."""
    client.create_topic("orders.eu", partitions=3)
    with client.producer("orders.eu") as producer:
        for partition in range(3):
            for number in range(10):
                moment = MORNING + timedelta(hours=number)
                producer.send(f"{partition}-{number}", f"k{number}", partition=partition, timestamp=moment)
    return "orders.eu"


def values(*pairs):
    return sorted(f"{partition}-{number}".encode() for partition, numbers in pairs for number in numbers)


def found(read, **options):
    return sorted(value for (value,) in read("value", **options))


def planned(**options):
    """The ranges that tasks would read."""
    return TopicReader(read_options(options, streaming=False), StructType([])).partitions()


class TestColumns:
    def test_small_batches_of_any_content_are_rows(self, spark, client):
        wanted = []
        for batch_messages in (1, 10, 1, 300):  # packed rows, and Arrow among them
            with client.producer("small", batch_messages=batch_messages) as producer:
                for _ in range(600):
                    number = len(wanted)
                    key = None if number % 3 == 0 else b"k%d" % number
                    value = None if number % 5 == 0 else b"v" * (number % 40)
                    headers = {"n": b"%d" % number} if number % 7 == 0 else None
                    producer.send(value, key, headers=headers)
                    wanted.append((number, key, value, None if headers is None else [("n", headers["n"])]))
        frame = spark.read.format("stentor").option("includeHeaders", "true").load("small").orderBy("offset")
        rows = frame.select("offset", "key", "value", "headers").collect()
        assert [
            (o, k and bytes(k), None if v is None else bytes(v), h and [(n, bytes(x)) for n, x in h])
            for o, k, v, h in rows
        ] == wanted

    def test_a_topic_has_the_columns_that_users_of_kafka_know(self, spark, orders):
        frame = spark.read.format("stentor").load(orders)
        assert frame.dtypes == [
            ("key", "binary"),
            ("value", "binary"),
            ("topic", "string"),
            ("partition", "int"),
            ("offset", "bigint"),
            ("timestamp", "timestamp"),
            ("timestampType", "int"),
        ]
        [row] = frame.where("partition = 1 and offset = 4").collect()
        assert row.asDict() == {
            "key": b"k4",
            "value": b"1-4",
            "topic": orders,
            "partition": 1,
            "offset": 4,
            "timestamp": (MORNING + timedelta(hours=4)).astimezone().replace(tzinfo=None),
            "timestampType": 0,
        }

    def test_headers_come_when_they_are_asked_for(self, spark, client, topic):
        client.publish(topic, "a", headers={"trace": b"\x01", "empty": b""})
        client.publish(topic, "b")
        frame = spark.read.format("stentor").option("includeHeaders", "true").load(topic)
        assert frame.dtypes[-1] == ("headers", "array<struct<key:string,value:binary>>")
        first, second = frame.orderBy("offset").collect()
        assert [tuple(header) for header in first.headers] == [("trace", b"\x01"), ("empty", b"")]
        assert second.headers is None

    def test_columns_may_be_chosen_in_any_order(self, spark, client, orders):
        frame = spark.read.format("stentor").option("columns", "offset, topicId ,value").load(orders)
        assert frame.dtypes == [("offset", "bigint"), ("topicId", "bigint"), ("value", "binary")]
        rows = frame.where("offset = 9").collect()
        assert {row.topicId for row in rows} == {client.describe_topic(orders).id}
        assert sorted(row.value for row in rows) == [b"0-9", b"1-9", b"2-9"]

    def test_a_schema_may_leave_columns_out(self, spark, orders):
        schema = StructType([StructField("value", BinaryType()), StructField("offset", LongType())])
        frame = spark.read.format("stentor").schema(schema).load(orders)
        assert frame.columns == ["value", "offset"]
        assert sorted(tuple(row) for row in frame.where("offset = 0").collect()) == [
            (b"0-0", 0),
            (b"1-0", 0),
            (b"2-0", 0),
        ]


@pytest.fixture(scope="module")
def shops(client):
    for name in ("shop.a", "shop.b", "shop.b.c", "shops"):
        client.publish(name, name)


@pytest.mark.usefixtures("shops")
class TestTopics:
    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({"subscribe": "shop.a, shop.b"}, ["shop.a", "shop.b"]),
            ({"subscribe": "shop.*"}, ["shop.a", "shop.b"]),
            ({"subscribe": "shop.>"}, ["shop.a", "shop.b", "shop.b.c"]),
            ({"subscribePattern": r"shop\.[ab]"}, ["shop.a", "shop.b"]),
            ({"subscribePattern": "shop.*"}, ["shop.a", "shop.b", "shop.b.c", "shops"]),
            ({"subscribePattern": "hop"}, []),
            ({"subscribe": "shop.*.*.*"}, []),
            ({"assign": '{"shop.b": [0]}'}, ["shop.b"]),
        ],
    )
    def test_topics_are_named_in_four_ways(self, options, expected):
        assert sorted(part.topic for part in planned(**options)) == expected

    def test_rows_of_several_topics_say_where_they_are_from(self, read):
        assert sorted(read("topic", "value", subscribe="shop.*")) == [("shop.a", b"shop.a"), ("shop.b", b"shop.b")]

    def test_internal_topics_are_not_found_by_a_pattern(self, client):
        client.publish("_secret", "x")
        assert "_secret" not in {part.topic for part in planned(subscribePattern=".*")}
        assert {part.topic for part in planned(subscribe="_secret")} == {"_secret"}

    def test_partitions_may_be_assigned(self, read, orders):
        everything = found(read, assign=json.dumps({orders: [0, 2]}))
        assert everything == values((0, range(10)), (2, range(10)))

    def test_a_pattern_without_topics_is_an_empty_table(self, read):
        assert found(read, subscribe="nothing.here.*") == []


class TestPositions:
    def test_json_names_some_partitions_and_the_others_are_read_whole(self, read, orders):
        everything = found(
            read,
            subscribe=orders,
            startingOffsets=json.dumps({orders: {"0": 7, "1": -2}}),
            endingOffsets=json.dumps({orders: {"1": 2, "2": -1}}),
        )
        assert everything == values((0, range(7, 10)), (1, range(2)), (2, range(10)))

    def test_latest_and_earliest_of_single_partitions_leave_nothing_of_them(self, orders):
        start = json.dumps({orders: {"0": -1}})
        end = json.dumps({orders: {"1": -2}})
        parts = planned(subscribe=orders, startingOffsets=start, endingOffsets=end)
        assert [(part.partition, part.start, part.end) for part in parts] == [(2, 0, 10)]

    @pytest.mark.parametrize(
        "write", [lambda moment: moment.isoformat(), lambda moment: f"{moment.timestamp():.0f}000"]
    )
    def test_times_are_dates_or_milliseconds_and_the_end_is_not_included(self, orders, write):
        start, end = MORNING + timedelta(hours=3), MORNING + timedelta(hours=6)
        parts = planned(subscribe=orders, startingTimestamp=write(start), endingTimestamp=write(end))
        assert [(part.start, part.end) for part in parts] == [(3, 6)] * 3

    def test_rows_between_two_times(self, read, orders):
        start, end = MORNING + timedelta(hours=8, minutes=-1), MORNING + timedelta(days=9)
        everything = found(read, subscribe=orders, startingTimestamp=start.isoformat(), endingTimestamp=end.isoformat())
        assert everything == values(*((partition, (8, 9)) for partition in range(3)))

    def test_a_time_after_everything_is_the_end(self, orders):
        assert planned(subscribe=orders, startingTimestamp="2099-01-01T00:00:00Z") == []

    def test_an_end_that_nobody_is_certain_of_is_refused_unless_stale_is_allowed(self, orders, monkeypatch):
        request = BrokerLink.request

        async def unsure(link, message):
            if not isinstance(message, FindOffset) or message.at == "earliest":
                return await request(link, message)
            if not message.stale:
                raise EndUnknown("A member of the chain does not answer.")
            answer = await request(link, message)
            return msgspec.structs.replace(answer, offset=4, committed=4, sure=False)

        monkeypatch.setattr(BrokerLink, "request", unsure)
        with pytest.raises(EndUnknown, match=orders):
            planned(subscribe=orders, timeout="500ms")
        assert [(part.start, part.end) for part in planned(subscribe=orders, stale="allow")] == [(0, 4)] * 3

    def test_a_stream_waits_for_a_certain_end(self, orders):
        with pytest.raises(InvalidArgument, match="stale is for batch reads"):
            read_options({"subscribe": orders, "stale": "allow"}, streaming=True)

    def test_an_end_before_the_start_is_empty(self, orders):
        start, end = json.dumps({orders: {"0": 8}}), json.dumps({orders: {"0": 3, "1": 0, "2": 0}})
        assert planned(subscribe=orders, startingOffsets=start, endingOffsets=end) == []


class TestTasks:
    @pytest.mark.parametrize(
        ("options", "tasks"),
        [
            ({}, 3),
            ({"minPartitions": "2"}, 3),
            ({"minPartitions": "7"}, 9),
            ({"minPartitions": "1000"}, 30),
            ({"maxRecordsPerPartition": "4"}, 9),
            ({"maxRecordsPerPartition": "1"}, 30),
            ({"maxRecordsPerPartition": "5", "minPartitions": "12"}, 15),
        ],
    )
    def test_splitting_neither_loses_nor_repeats(self, orders, options, tasks):
        parts = planned(subscribe=orders, **options)
        offsets = [(part.partition, offset) for part in parts for offset in range(part.start, part.end)]
        assert offsets == [(partition, offset) for partition in range(3) for offset in range(10)]
        assert len(parts) == tasks

    def test_every_task_reads_its_range_and_no_more(self, spark, client, topic):
        with client.producer(topic) as producer:
            producer.send_many([str(number).encode() for number in range(1000)])
        frame = spark.read.format("stentor").option("maxRecordsPerPartition", "301").load(topic)
        assert frame.rdd.getNumPartitions() == 4
        assert [int(row.value) for row in frame.orderBy("offset").collect()] == list(range(1000))


class TestBatches:
    """However messages were published, rows are rows."""

    def test_keys_and_values_may_be_null_or_empty(self, read, client, topic):
        sent = [(None, b"v"), (b"k", None), (None, None), (b"", b"")]
        for key, value in sent:
            client.publish(topic, value, key=key)
        assert read("key", "value", subscribe=topic) == sent

    @pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
    def test_batches_may_be_compressed(self, read, client, topic, compression):
        sent = [(str(number).encode(), b"x" * 50) for number in range(100)]
        with client.producer(topic, compression=compression) as producer:
            producer.send_many([value for _, value in sent], [key for key, _ in sent])
        assert read("key", "value", subscribe=topic) == sent

    def test_packed_rows_and_arrow_come_in_one_table(self, read, client, topic):
        client.publish(topic, "single", headers={"a": b"1"})
        with client.producer(topic) as producer:
            producer.send_many([str(number).encode() for number in range(100)])
            producer.flush()
            producer.send_batch(pa.table({"value": ["from arrow"], "key": ["k"]}))
        client.publish(topic, None, key="last")
        rows = read("offset", "key", "value", "headers", subscribe=topic, includeHeaders=True)
        expected = [(None, str(number).encode()) for number in range(100)]
        expected = [(None, b"single"), *expected, (b"k", b"from arrow"), (b"last", None)]
        assert [row[1:3] for row in rows] == expected
        assert [row[0] for row in rows] == list(range(103))
        assert [tuple(header) for header in rows[0][3]] == [("a", b"1")]
        assert {row[3] for row in rows[1:]} == {None}

    @pytest.mark.parametrize("rows", [1, 10, 50, 10_000])
    def test_batches_are_joined_and_cut_without_losing_their_offsets(self, client, topic, monkeypatch, rows):
        monkeypatch.setattr(columns, "BATCH_ROWS", rows)
        sizes = (1, 1, 60, 1, 30, 100)
        with client.producer(topic) as producer:
            for size in sizes:
                producer.send_many([b"x"] * size)
                producer.flush()
        schema = StructType([StructField("offset", LongType()), StructField("topic", StringType())])
        reader = TopicReader(read_options({"subscribe": topic}, streaming=False), schema)
        part = OffsetRange(topic, client.describe_topic(topic).id, 0, 37, 180)
        batches = list(reader.read(part))
        assert pa.Table.from_batches(batches).to_pydict() == {"offset": list(range(37, 180)), "topic": [topic] * 143}
        assert len(batches) == {1: 4, 10: 3, 50: 2, 10_000: 1}[rows]

    def test_a_table_of_nothing(self, read, client, topic):
        client.create_topic(topic, partitions=2)
        assert read("value", subscribe=topic) == []


def test_a_frame_is_a_snapshot_and_a_new_one_sees_more(spark, client, topic):
    client.publish(topic, "first")
    frame = spark.read.format("stentor").load(topic)
    assert frame.count() == 1
    client.publish(topic, "second")
    assert frame.count() == 1
    assert spark.read.format("stentor").load(topic).count() == 2


def test_a_topic_is_joined_and_aggregated_like_any_table(spark, orders):
    frame = spark.read.format("stentor").load(orders)
    counted = frame.groupBy("partition").count().orderBy("partition")
    assert [tuple(row) for row in counted.collect()] == [(0, 10), (1, 10), (2, 10)]


def test_json_values_become_columns_and_columns_become_json_values(spark, client, topic):
    from stentor.spark import parse_json, text_values, to_json_value

    client.publish(topic, '{"customer": "ada", "amount": 2.5}', key="ada")
    client.publish(topic, "no json")
    frame = spark.read.format("stentor").load(topic)
    parsed = parse_json(frame, "customer string, amount double", keep="offset")
    assert [tuple(row) for row in parsed.orderBy("offset").collect()] == [(0, "ada", 2.5), (1, None, None)]
    back = to_json_value(parsed.where("offset = 0").drop("offset"), key="customer")
    assert [row.asDict() for row in back.collect()] == [{"value": '{"customer":"ada","amount":2.5}', "key": "ada"}]
    assert text_values(frame).select("key", "value").orderBy("offset").collect()[0] == (
        "ada",
        '{"customer": "ada", "amount": 2.5}',
    )


def test_tasks_on_other_machines_use_the_address_that_the_driver_knows(broker, monkeypatch):
    monkeypatch.setenv("STENTOR_URL", "stentor://from-the-environment:7440")
    assert read_options({"subscribe": "t"}, streaming=False).connection.url == "stentor://from-the-environment:7440"
    named = read_options({"subscribe": "t", "url": broker.url}, streaming=False)
    assert named.connection.url == broker.url
