"""Times: a query over a lake reads only the days that can hold what it asks for, in every time zone."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pyarrow.parquet as pq
import pytest
from tests.spark.lakes import add

from stentor.spark.pipelines import replay
from stentor.spark.pipelines.lake import open_lake
from stentor.spark.pipelines.record import record
from stentor.spark.pipelines.snapshot import latest
from stentor.spark.pipelines.sql import query
from stentor.spark.pipelines.times import Times
from stentor.spark.pipelines.views import topic_view

FIRST = datetime(2026, 3, 1, 12, tzinfo=UTC)
DAYS = 30
ALL = DAYS


@pytest.fixture(scope="module")
def lake(spark, client, broker, tmp_path_factory):
    """A lake with one message a day."""
    place = tmp_path_factory.mktemp("times") / "lake"
    for day in range(DAYS):
        client.publish("days", str(day), key="k", timestamp=FIRST + timedelta(days=day))
    record(spark, ["days"], place, url=broker.url)
    assert len(open_lake(place).files()) == DAYS
    return place


@pytest.fixture
def zone(spark):
    """Change the session's time zone for a test."""
    before = spark.conf.get("spark.sql.session.timeZone")
    yield lambda name: spark.conf.set("spark.sql.session.timeZone", name)
    spark.conf.set("spark.sql.session.timeZone", before)


def values(frame):
    return sorted(int(row.value) for row in frame.select("value").collect())


def days_read(frame):
    """How many files Spark is given."""
    return len(frame.inputFiles())


class TestSql:
    @pytest.mark.parametrize(
        ("condition", "expected", "days_max"),
        [
            ("timestamp >= timestamp'2026-03-28'", [27, 28, 29], 6),
            ("timestamp < timestamp'2026-03-03'", [0, 1], 6),
            ("timestamp'2026-03-03' > timestamp", [0, 1], 6),
            ("timestamp between '2026-03-10' and '2026-03-11 12:00:00'", [9, 10], 7),
            ("timestamp = timestamp'2026-03-10 12:00:00'", [9], 6),
            ("date(timestamp) = '2026-03-10'", [9], 7),
            ("to_date(timestamp) >= date'2026-03-29' and key = 'k'", [28, 29], 6),
            ("timestamp > timestamp'2026-03-10' and timestamp < timestamp'2026-03-01'", [], 3),
            ("timestamp > timestamp'2026-03-29' or value = '3'", [3, 28, 29], ALL),
            ("not timestamp > timestamp'2026-03-02'", [0], 6),
            ("value = '3'", [3], ALL),
            ("hour(timestamp) = 12 and value = '3'", [3], ALL),
            ("timestamp <= current_timestamp()", list(range(DAYS)), ALL),
            ("timestamp > current_timestamp()", [], 0),
        ],
    )
    def test_a_condition_on_the_time_leaves_out_other_days(self, spark, lake, condition, expected, days_max):
        frame = query(spark, f"select value from days where {condition}", lake=lake)
        assert values(frame) == expected
        assert days_read(frame) <= days_max

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            (
                (
                    "select a.value from days a join days b on a.key = b.key"
                    " where a.timestamp >= '2026-03-29' and b.timestamp < '2026-03-02'"
                ),
                [28, 29],
            ),
            ("select value from days where timestamp = (select max(timestamp) from days)", [29]),
            (
                (
                    "select value from days where timestamp < '2026-03-03' and key in"
                    " (select key from days where timestamp > '2026-03-29')"
                ),
                [0, 1],
            ),
            (
                "select value from days where timestamp >= '2026-03-30' and (select count(*) from days) = 30",
                [29],
            ),
            (
                (
                    "select n as value from (select timestamp, row_number() over (order by timestamp) n from days)"
                    " where timestamp >= '2026-03-30'"
                ),
                [30],
            ),
            (
                (
                    "select n as value from (select max(timestamp) as timestamp, count(*) n from days)"
                    " where timestamp >= '2026-03-30'"
                ),
                [30],
            ),
            (
                (
                    "select value from days where timestamp >= '2026-03-30' union all"
                    " select value from days where timestamp < '2026-03-02'"
                ),
                [0, 29],
            ),
            ("select a.value from days a left join days b on a.key = b.key and a.timestamp > '2026-03-29'", None),
            ("select value from days order by timestamp limit 1", [0]),
            (
                (
                    "select count(*) as value from (select timestamp, monotonically_increasing_id() n from days)"
                    " where timestamp >= '2026-03-30'"
                ),
                [1],
            ),
        ],
    )
    def test_a_condition_on_a_part_of_a_query_leaves_out_nothing_of_the_others(self, spark, lake, text, expected):
        found = values(query(spark, text, lake=lake))
        assert found == (expected if expected is not None else sorted([*range(28), *[28] * 30, *[29] * 30]))

    @pytest.mark.parametrize("name", ["UTC", "Pacific/Kiritimati", "Pacific/Pago_Pago", "Europe/Berlin"])
    def test_every_time_zone_finds_all_rows(self, spark, lake, zone, name):
        zone(name)
        for hour in ("2026-03-10 00:00:00", "2026-03-10 23:59:59"):
            text = f"select value from days where timestamp {{}} timestamp'{hour}'"
            parts = [query(spark, text.format(sign), lake=lake) for sign in ("<", ">=")]
            assert sorted(values(parts[0]) + values(parts[1])) == list(range(DAYS))
            assert days_read(parts[0]) < DAYS
            assert days_read(parts[1]) < DAYS


class TestFunctions:
    def test_a_view_and_a_frame_take_times(self, spark, lake):
        times = Times.between(datetime(2026, 3, 10, tzinfo=UTC), datetime(2026, 3, 12, tzinfo=UTC))
        for frame in (topic_view(spark, "days", lake=lake, times=times), open_lake(lake).frame(spark, times=times)):
            assert {9, 10} <= set(values(frame))
            assert days_read(frame) <= 7

    def test_a_snapshot_at_a_time_reads_no_later_days(self, spark, lake):
        frame = latest(spark, "days", lake=lake, until=datetime(2026, 3, 3, tzinfo=UTC))
        assert values(frame) == [1]
        assert days_read(frame) <= 5

    def test_a_replay_reads_its_days_only(self, spark, lake, tmp_path, monkeypatch):
        read = []
        chosen = replay._selected
        monkeypatch.setattr(replay, "_selected", lambda frame, *args: read.append(frame) or chosen(frame, *args))
        start, end = (datetime(2026, 3, day, tzinfo=UTC) for day in (10, 12))
        plan = replay.select(spark, lake, tmp_path / "work", replay.Selection(["days"], start, end), speed=0)
        assert plan.rows == 2
        assert days_read(read[0]) <= 7

    def test_a_condition_on_the_time_of_the_broker_uses_what_the_files_say_of_it(self, lake):
        """Folders are days of messages' own times, so Spark skips parts of files instead."""
        for path in open_lake(lake).files():
            facts = pq.read_metadata(path).row_group(0)
            columns = {facts.column(index).path_in_schema: facts.column(index) for index in range(facts.num_columns)}
            assert columns["appended_at"].statistics.has_min_max
            assert columns["timestamp"].statistics.has_min_max


class TestDays:
    @pytest.mark.parametrize("name", ["Pacific/Kiritimati", "Pacific/Pago_Pago"])
    def test_messages_are_filed_by_their_day_in_utc_whatever_the_sessions_zone(
        self, spark, client, topic, tmp_path, zone, name
    ):
        zone(name)
        moments = [datetime(2026, 3, 9, 23, 59, 59, 999_999, UTC), datetime(2026, 3, 10, tzinfo=UTC)]
        moments.append(datetime(1970, 1, 1, tzinfo=UTC))
        for moment in moments:
            client.publish(topic, "x", timestamp=moment)
        record(spark, [topic], tmp_path / "lake")
        days = sorted(path.parent.name for path in open_lake(tmp_path / "lake").files())
        assert days == ["date=1970-01-01", "date=2026-03-09", "date=2026-03-10"]

    @pytest.mark.parametrize("away", [-1, 1])
    def test_a_lake_whose_days_are_those_of_another_zone_is_read_in_full(self, spark, client, topic, tmp_path, away):
        """Older versions filed messages by the day of the session's time zone."""
        client.publish(topic, "3", timestamp=datetime(2026, 3, 10, 12, tzinfo=UTC))
        topic_id = client.describe_topic(topic).id
        day = date(2026, 3, 10) + timedelta(days=away)
        frame = spark.sql(
            f"select '{topic}' as topic, bigint({topic_id}) as topic_id, 0 as partition, bigint(0) as offset,"
            " timestamp'2026-03-10 12:00:00' as timestamp, binary('k') as key, binary('3') as value,"
            f" cast(null as array<struct<key:string,value:binary>>) as headers, date'{day}' as date"
        )
        lake = open_lake(tmp_path / "lake", "parquet")
        with lake.writing():
            add(lake, frame, 1, topic=topic, topic_id=topic_id)
        text = f"select value from `{topic}` where timestamp between '2026-03-10 12:00:00' and '2026-03-10 12:00:00'"
        assert values(query(spark, text, lake=lake.path)) == [3]


class TestBounds:
    def test_a_day_is_two_wider_on_either_side(self):
        times = Times.between(datetime(2026, 3, 10, 23, tzinfo=UTC), datetime(2026, 3, 10, 23, tzinfo=UTC))
        assert [day for day in range(1, 32) if times.have(f"2026-03-{day:02d}")] == [8, 9, 10, 11, 12]

    def test_a_folder_that_is_no_day_is_read(self):
        assert Times(0, 0).have("__HIVE_DEFAULT_PARTITION__")

    def test_bounds_are_joined(self):
        assert Times(1, 5).both(Times(2, None)) == Times(2, 5)
        assert Times(1, 5).either(Times(2, None)) == Times(1, None)
        assert not Times().is_bounded
