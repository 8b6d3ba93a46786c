"""Metrics: what brokers say about themselves, per topic and window."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from stentor.errors import InvalidArgument, TopicNotFound
from stentor.spark.pipelines.metrics import SOURCE, TARGET, _keep_newest, last_windows, run, windows
from stentor.testing import broker as another_broker

NOON_S = int(datetime(2026, 11, 15, 12, tzinfo=UTC).timestamp())
MINUTES = [f"2026-11-15T12:0{minute}:00Z" for minute in range(10)]


def said(second, *partitions, broker="b1", uptime=10_000.0, latencies=(), full=None):
    """A record as src/stentor/self_metrics.py makes it, so many seconds after noon; without `full` an older one."""
    return json.dumps(
        {
            "kind": "broker",
            **({} if full is None else {"full": full}),
            "broker": broker,
            "published_at_us": int((NOON_S + second) * 1e6),
            "publish_to_deliver_us": list(latencies),
            "statistics": {
                "broker": {"id": broker, "uptime_s": uptime, "connections": 1},
                "cluster": {},
                "partitions": list(partitions),
            },
        }
    )


def counted(messages, *, topic="orders", partition=0, position=0, size=10, out=0, streams=0, lag=0, log_bytes=0):
    """What a broker says of a partition."""
    return {
        "topic": topic,
        "partition": partition,
        "messages_in": messages,
        "bytes_in": messages * size,
        "messages_out": out,
        "streams": streams,
        "lag_max": lag,
        "replica": {"position": position, "epoch": 1},
        "log": {"bytes": log_bytes, "segments": 1},
    }


@pytest.fixture
def summed(spark):
    """The windows of records, by topic and start."""

    def sum_up(*records, **options):
        frame = spark.createDataFrame([(record,) for record in records], "value string").coalesce(1)
        return {(row.topic, row.start): row for row in windows(frame, **options).collect()}

    return sum_up


class TestWindows:
    def test_growth_counts_from_the_last_record_before_a_window(self, summed):
        found = summed(*(said(second, counted(second * 7)) for second in range(5, 185, 10)))
        assert [found["orders", start].messages for start in MINUTES[:3]] == [350, 420, 420]
        first, second = found["orders", MINUTES[0]], found["orders", MINUTES[1]]
        assert (first.end, second.bytes, second.bytes_per_message) == (MINUTES[1], 4200, 10.0)
        assert second.messages_per_second == 7.0
        assert sorted(found) == [("orders", start) for start in MINUTES[:3]]

    def test_a_broker_that_started_anew_counts_from_zero(self, summed):
        found = summed(
            said(10, counted(1000)),
            said(20, counted(1010)),
            said(40, counted(5), uptime=15.0),
            said(50, counted(8), uptime=25.0),
            said(70, counted(2000), uptime=5.0),  # again, and it is already above what it was
        )
        assert [found["orders", start].messages for start in MINUTES[:2]] == [10 + 5 + 3, 2000]

    def test_brokers_and_partitions_are_summed_and_only_heads_count_what_comes_in(self, summed):
        row = summed(
            said(1, counted(0, streams=1, lag=3, log_bytes=50), counted(0, partition=1, position=1)),
            said(1, counted(0, position=1), counted(0, partition=1, log_bytes=7), broker="b2"),
            said(31, counted(60, out=30, streams=2, lag=9, log_bytes=60), counted(40, partition=1, position=1, out=5)),
            said(31, counted(60, position=1, out=1), counted(40, partition=1, log_bytes=8), broker="b2"),
        )["orders", MINUTES[0]]
        assert (row.messages, row.bytes, row.delivered) == (100, 1000, 36)
        assert (row.subscriptions, row.lag, row.log_bytes) == (2, 9, 68)
        assert row.delivered_per_second == pytest.approx(0.6)

    def test_topics_and_windows_of_any_length_are_told_apart(self, summed):
        found = summed(
            *(said(at, counted(at), counted(2 * at, topic="paid.eu")) for at in (1, 9, 11, 19)),
            window_s=10,
        )
        assert {key: row.messages for key, row in found.items()} == {
            ("orders", "2026-11-15T12:00:00Z"): 8,
            ("orders", "2026-11-15T12:00:10Z"): 10,
            ("paid.eu", "2026-11-15T12:00:00Z"): 16,
            ("paid.eu", "2026-11-15T12:00:10Z"): 20,
        }

    def test_percentiles_are_of_the_latencies_that_each_record_adds(self, summed):
        rows = [said(at, counted(0), latencies=[*range(990, 990 + min(at, 3)), 100 + at]) for at in range(1, 51)]
        row = summed(*rows)["orders", MINUTES[0]]
        assert (row.latency_us_p50, row.latency_us_p99) == (125.0, 150.0)

    def test_without_latencies_there_are_no_percentiles(self, summed):
        row = summed(said(1, counted(0)))["orders", MINUTES[0]]
        assert (row.latency_us_p50, row.latency_us_p99, row.messages, row.bytes_per_message) == (None, None, 0, 0.0)

    def test_what_did_not_change_is_as_it_was(self, summed):
        """Records leave it out. All partitions of a topic count, on all brokers, and growth begins where it ended."""
        other = counted(7, topic="other", streams=1, log_bytes=70)
        found = summed(
            said(5, counted(100, streams=2, log_bytes=1000), other, full=True),
            said(6, counted(50, partition=1, streams=1, lag=3, log_bytes=500), full=True, broker="b2"),
            *(said(second, full=False) for second in range(35, 245, 30)),
            *(said(second, full=False, broker="b2") for second in range(36, 255, 30)),
            said(200, counted(130, streams=2, log_bytes=1300), full=False),
            said(245, counted(131, streams=2, log_bytes=1310), full=False),
        )
        assert sorted(found) == [(topic, start) for topic in ("orders", "other") for start in MINUTES[:5]]
        rows = [found["orders", start] for start in MINUTES[:5]]
        assert [row.messages for row in rows] == [0, 0, 0, 30, 1]
        assert [row.log_bytes for row in rows] == [1500, 1500, 1500, 1800, 1810]
        assert [(row.subscriptions, row.lag) for row in rows] == [(3, 3)] * 5
        assert [found["other", start].log_bytes for start in MINUTES[:5]] == [70] * 5

    def test_a_broker_that_is_silent_and_a_partition_that_went_count_no_more(self, summed):
        orders, moved = counted(1, log_bytes=10), counted(2, topic="moved", log_bytes=20)
        found = summed(
            said(5, orders, moved, full=True),
            said(5, counted(3, partition=1, log_bytes=40), broker="b2", full=True),
            said(35, full=False),
            said(35, broker="b2", full=False),
            said(65, orders, full=True),  # the other partition is not here any more
            *(said(second, full=False) for second in range(95, 180, 30)),
        )
        assert [found["orders", start].log_bytes for start in MINUTES[:3]] == [50, 10, 10]
        assert [start for topic, start in sorted(found) if topic == "moved"] == MINUTES[:1]

    def test_a_broker_that_starts_anew_after_a_silence_counts_from_zero(self, summed):
        found = summed(
            said(5, counted(100), full=True),
            *(said(second, full=False) for second in range(35, 150, 30)),
            said(170, counted(8), uptime=10.0, full=True),
        )
        assert [found["orders", start].messages for start in MINUTES[:3]] == [0, 0, 8]

    def test_windows_that_are_shorter_than_a_silence_are_all_there(self, summed):
        found = summed(
            said(1, counted(10, log_bytes=5), full=True),
            said(31, full=False),
            said(41, counted(15, log_bytes=6), full=False),
            window_s=10,
        )
        starts = [f"2026-11-15T12:00:{second:02}Z" for second in range(0, 50, 10)]
        assert [found["orders", start].log_bytes for start in starts] == [5, 5, 5, 5, 6]
        assert [found["orders", start].messages for start in starts] == [0, 0, 0, 0, 5]

    def test_what_is_no_record_is_left_out(self, summed):
        assert summed("not JSON", "{}", said(1)) == {}

    def test_records_of_a_real_broker_are_understood(self, summed, wait_until):
        with another_broker(metrics_interval_s=0.1) as other, other.client() as client:
            client.create_topic("orders")
            wait_until(lambda: client.topics(SOURCE))
            wait_until(lambda: _told(client, 0))
            for _ in range(10):
                client.publish("orders", b"12345")
            wait_until(lambda: _told(client, 10))
            wait_until(lambda: json.loads([*client.read(SOURCE)][-1].value)["publish_to_deliver_us"])
            found = summed(*(message.value.decode() for message in client.read(SOURCE)), window_s=3600)
        rows = [row for (topic, _), row in found.items() if topic == "orders"]
        assert sum(row.messages for row in rows) == 10
        assert sum(row.bytes for row in rows) >= 50
        assert max(row.log_bytes for row in rows) > 0
        assert max(row.latency_us_p50 for row in rows) > 0


def _told(client, messages):
    """Whether a record says so."""
    for message in client.read(SOURCE):
        for partition in json.loads(message.value)["statistics"]["partitions"]:
            if (partition["topic"], partition["messages_in"]) == ("orders", messages):
                return True
    return False


@pytest.fixture
def one_task(spark):
    """Every task of a stream with state writes files at each batch."""
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "1")
    yield
    spark.conf.set("spark.sql.shuffle.partitions", before)


class TestStream:
    @pytest.mark.long
    @pytest.mark.usefixtures("one_task")
    def test_windows_are_published_once_when_they_are_over(self, spark, client, tmp_path):
        def sum_up(*records):
            for record in records:
                client.publish(SOURCE, record)
            run(spark, tmp_path / "state", window_s=60, late_s=10, once=True).awaitTermination()
            found = [json.loads(message.value) for message in client.read(TARGET)]
            return [(window["topic"], window["start"], window["messages"]) for window in found]

        first, second = ("orders", MINUTES[0], 40), ("orders", MINUTES[1], 60)
        earlier = [said(at, counted(at)) for at in (10, 50, 65, 110)]
        assert sum_up(*earlier) == [first]
        late = said(45, counted(1_000_000))  # the window it belongs to is published already
        assert sum_up(late, said(200, counted(200))) == [first, second]
        newest = last_windows(client)
        assert [(window.topic, window.start, window.messages) for window in newest] == [second]
        assert newest[0].latency_us_p99 is None

    @pytest.mark.long
    @pytest.mark.usefixtures("one_task")
    def test_a_table_has_the_newest_window_also_when_a_query_begins_anew(self, spark, topic, tmp_path):
        with another_broker() as other, other.client() as client:
            for at in (10, 50, 65, 110, 200):
                client.publish(SOURCE, said(at, counted(at)))
            for state in ("state", "state", "another state"):
                options = {"url": other.url, "window_s": 60, "late_s": 10, "into_table": topic}
                run(spark, tmp_path / state, once=True, **options).awaitTermination()
                assert [(w.topic, w.start, w.messages) for w in last_windows(client, topic)] == [
                    ("orders", MINUTES[1], 60)
                ]
                assert client.offsets(topic) == {0: 1}

    def test_a_table_keeps_the_later_window(self, spark, client, topic):
        client.create_topic(topic, kind="table")
        with client.table(topic) as table:
            table.put_many({"late": '{"start": "2026-11-15T12:05:00Z"}', "broken": "not JSON", "other": "1"})
        rows = [
            ("late", MINUTES[4]),
            ("new", MINUTES[1]),
            ("new", MINUTES[3]),
            ("new", MINUTES[2]),
            ("broken", MINUTES[0]),
        ]
        found = spark.createDataFrame(rows, "topic string, start string")
        for _ in range(2):
            _keep_newest(found, 0, options={"table": topic})
        with client.table(topic) as table:
            starts = {key: json.loads(value)["start"] for key, value in table.items() if key != "other"}
            assert starts == {"late": MINUTES[5], "new": MINUTES[3], "broken": MINUTES[0]}
            assert table.sequence == (5,)

    def test_a_topic_that_is_no_table_is_refused_before_spark_starts(self, spark, client, topic, tmp_path):
        client.create_topic(topic)
        client.create_topic(SOURCE, exist_ok=True)
        with pytest.raises(InvalidArgument, match=f"Topic {topic} is no table"):
            run(spark, tmp_path, once=True, into_table=topic)

    def test_what_others_publish_among_the_windows_is_left_out(self):
        with another_broker() as other, other.client() as client:
            for value in (b"not JSON", b"[]", b"\xff", None):
                client.publish(TARGET, value)
            assert last_windows(client) == []

    def test_without_windows_it_is_told_how_to_make_some(self):
        with (
            another_broker() as other,
            other.client() as client,
            pytest.raises(TopicNotFound, match=r"no windows yet. Compute them with `stentor pipeline metrics`."),
        ):
            last_windows(client)
