"""Replay: recorded messages once more, the same ones, in the same order, at the pace that is asked for."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
import threading
from collections import defaultdict
from datetime import UTC, datetime, timedelta

import msgspec
import pyarrow.parquet as pq
import pytest
from tests.spark.clock import Clock

from stentor.errors import InvalidArgument
from stentor.spark.pipelines import replay, runs
from stentor.spark.pipelines.record import record
from stentor.spark.pipelines.replay import ReplayPlace, ReplayPlan, Selection, publish, select
from stentor.testing import broker as another_broker

NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
MESSAGES = 3000
SPAN_S = 30.0
_numbers = itertools.count()


def by_partition(client, topic):
    """All that a topic holds, in the order of each partition."""
    found = defaultdict(list)
    for message in client.read(topic):
        headers = tuple(sorted(dict(message.headers or {}).items()))
        found[message.partition].append((message.timestamp, message.key, message.value, headers))
    return dict(found)


def count(client, topic):
    return sum(client.offsets(topic).values())


@pytest.fixture(scope="module")
def feed(spark, client, broker, tmp_path_factory):
    """A lake with two topics: `feed.a` of half a minute, with clocks that go back now and then, and `feed.b`."""
    client.create_topic("feed.a", partitions=3)
    client.create_topic("feed.b", partitions=2)
    with client.producer("feed.a") as producer:
        for number in range(MESSAGES):
            moment = NOON + timedelta(seconds=SPAN_S * number / MESSAGES)
            if number % 50 == 49:
                moment -= timedelta(seconds=1)
            producer.send(
                None if number % 100 == 7 else b"%d" % number,
                key=b"key-%d" % (number % 20) if number % 9 else None,
                headers={"n": b"%d" % number} if number % 2 else None,
                timestamp=moment,
                partition=number % 3,
            )
    for number in range(10):
        client.publish("feed.b", b"b%d" % number, timestamp=NOON + timedelta(seconds=number), partition=1)
    lake = tmp_path_factory.mktemp("replay") / "lake"
    record(spark, ["feed.>"], lake, url=broker.url)
    return lake


@pytest.fixture(scope="module")
def selected(spark, feed, tmp_path_factory):
    """Everything of `feed.a`, selected once for many replays."""
    place = tmp_path_factory.mktemp("selected") / "work"
    select(spark, feed, place, Selection(topics=["feed.a"], pace_by="timestamp"), speed=0)
    return place


@pytest.fixture
def work(selected, tmp_path):
    """A replay of `feed.a` into a topic of its own, as if it had just been selected."""

    def make(into, speed=0.0, seconds=2.0):
        place = tmp_path / f"work-{next(_numbers)}"
        shutil.copytree(selected, place)
        plan = msgspec.json.decode((place / "plan.json").read_bytes(), type=ReplayPlan)
        span = msgspec.structs.replace(plan.span, seconds=seconds)
        identity = f"{plan.identity}/{place.name}"
        plan = msgspec.structs.replace(plan, into=into, speed=speed, identity=identity, span=span)
        (place / "plan.json").write_bytes(msgspec.json.encode(plan))
        return place

    return make


def test_the_plan_is_for_its_owner_alone(selected):
    assert (selected / "plan.json").stat().st_mode & 0o077 == 0


class TestSameMessages:
    def test_what_retention_deleted_is_replayed_byte_for_byte(self, spark, client, topic, tmp_path, wait_until):
        client.create_topic(topic, partitions=2, retention_bytes=0, keep_unrecorded=True)
        for number in range(20):
            client.publish(
                topic,
                b"%d:" % number + bytes(range(256)) * 70,
                key=b"\x00\xff%d" % number if number % 3 else None,
                headers={"trace": bytes([number]), "empty": b""} if number % 4 else None,
                timestamp=NOON + timedelta(microseconds=1 + 997 * (number if number % 5 else number - 3)),
                partition=number % 2,
            )
        published = by_partition(client, topic)
        assert record(spark, [topic], tmp_path / "lake") == 20
        wait_until(lambda: all(client.offsets(topic, "earliest").values()))
        assert count(client, topic) - sum(client.offsets(topic, "earliest").values()) < 20
        plan = select(spark, tmp_path / "lake", tmp_path / "work", Selection(into=f"{topic}.again"), speed=0)
        assert plan.rows == publish(tmp_path / "work") == 20
        assert by_partition(client, f"{topic}.again") == published

    def test_order_within_partitions_and_every_property_is_kept(self, client, topic, work):
        assert publish(work(topic)) == MESSAGES
        assert by_partition(client, topic) == by_partition(client, "feed.a")

    def test_messages_go_into_another_cluster_and_under_their_own_name(self, client, work):
        with another_broker() as other, other.client() as there:
            assert publish(work(None), url=other.url) == MESSAGES
            assert by_partition(there, "feed.a") == by_partition(client, "feed.a")


class TestSelection:
    @pytest.fixture
    def replayed(self, spark, client, feed, tmp_path):
        """What a selection publishes, by topic."""

        def run(**selection):
            name = f"selected{next(_numbers)}"
            place = tmp_path / name
            select(spark, feed, place, Selection(into=f"{name}.*", **selection), speed=0)
            publish(place)
            return {
                found.name.removeprefix(f"{name}."): by_partition(client, found.name)
                for found in client.topics(f"{name}.>")
            }

        return run

    def test_all_topics_keep_their_names_behind_the_star(self, client, replayed):
        assert replayed() == {name: by_partition(client, name) for name in ("feed.a", "feed.b")}

    def test_topics_can_be_named_by_patterns(self, replayed):
        assert list(replayed(topics=["*.b"])) == ["feed.b"]

    def test_a_range_of_time_begins_at_its_start_and_ends_before_its_end(self, client, replayed):
        start, end = NOON + timedelta(seconds=3), NOON + timedelta(seconds=6)
        found = replayed(topics=["feed.a", "feed.b"], start=start, end=end)
        for topic in ("feed.a", "feed.b"):
            wanted = {
                partition: [message for message in messages if start <= message[0] < end]
                for partition, messages in by_partition(client, topic).items()
            }
            assert found[topic] == wanted
        assert [message[2] for message in found["feed.b"][1]] == [b"b3", b"b4", b"b5"]

    def test_only_the_keys_that_are_asked_for(self, client, replayed):
        keys = (b"key-3", b"key-4")
        wanted = {
            partition: [message for message in messages if message[1] in keys]
            for partition, messages in by_partition(client, "feed.a").items()
        }
        assert replayed(topics=["feed.a"], keys=["key-3", "key-4"])["feed.a"] == wanted

    def test_several_topics_can_be_replayed_into_one(self, spark, client, feed, topic, tmp_path):
        plan = select(spark, feed, tmp_path, Selection(into=topic, end=NOON + timedelta(seconds=2)), speed=0)
        assert publish(tmp_path) == plan.rows == count(client, topic)
        values = [message[2] for messages in by_partition(client, topic).values() for message in messages]
        assert {b"b0", b"b1", b"0", b"1", b"2"} < set(values)
        assert len(values) == plan.rows

    def test_a_selection_of_nothing_is_told(self, spark, feed, tmp_path):
        with pytest.raises(InvalidArgument, match=r"No recorded message matches the selection"):
            select(spark, feed, tmp_path / "work", Selection(topics=["feed.zzz"]))

    def test_a_directory_that_holds_a_replay_is_not_overwritten(self, spark, feed, work, topic):
        said = r"already holds a replay\. Continue it with resume, or choose another directory\."
        with pytest.raises(InvalidArgument, match=said):
            select(spark, feed, work(topic), Selection())

    def test_a_lake_that_is_not_there_is_told(self, spark, tmp_path):
        with pytest.raises(InvalidArgument, match=r"There is no lake at"):
            select(spark, tmp_path / "nothing", tmp_path / "work", Selection())


class TestTakenUpAgain:
    def test_a_replay_that_was_stopped_goes_on_where_it_was(self, client, topic, work):
        place, stop = work(topic, speed=1000), threading.Event()
        first = publish(place, stop=stop, on_progress=lambda done: stop.set() if done.rows > 1000 else None)
        assert 1000 < first < MESSAGES
        assert count(client, topic) == first
        assert publish(place) == MESSAGES - first
        assert publish(place) == 0
        assert by_partition(client, topic) == by_partition(client, "feed.a")

    @pytest.mark.parametrize(("speed", "lasting"), [(0, True), (1000, True), (0, False)])
    def test_a_replay_that_failed_in_the_middle_doubles_nothing(self, client, topic, work, speed, lasting, monkeypatch):
        """Also one that was selected by an older version, whose producers showed no token."""
        monkeypatch.setattr(runs, "PART_ROWS", 100)
        place = work(topic, speed=speed)
        plan = msgspec.json.decode((place / "plan.json").read_bytes(), type=ReplayPlan)
        (place / "plan.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(plan, lasting=lasting)))

        def fail(done):
            if done.rows > 2000:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            publish(place, on_progress=fail)
        assert not (place / "place.json").exists()
        assert publish(place) == MESSAGES
        assert by_partition(client, topic) == by_partition(client, "feed.a")

    def test_a_replay_that_was_killed_doubles_nothing(self, client, topic, work, broker, wait_until):
        client.create_topic(topic, partitions=3)
        place = work(topic, speed=15, seconds=0.3)
        code = f"from stentor.spark.pipelines import replay\nreplay.publish({str(place)!r}, url={broker.url!r})"
        with subprocess.Popen([sys.executable, "-c", code]) as process:
            wait_until(lambda: count(client, topic) > 1000, "some messages are published", 60)
            process.kill()
        there = count(client, topic)
        known = msgspec.json.decode((place / "place.json").read_bytes(), type=ReplayPlace)
        assert 0 < known.rows <= there < MESSAGES
        assert publish(place) == MESSAGES - known.rows
        assert by_partition(client, topic) == by_partition(client, "feed.a")

    def test_cuts_that_changed_are_noticed(self, topic, work):
        place, stop = work(topic, speed=1000), threading.Event()
        publish(place, stop=stop, on_progress=lambda done: stop.set() if done.rows else None)
        plan = msgspec.json.decode((place / "plan.json").read_bytes(), type=ReplayPlan)
        (place / "plan.json").write_bytes(msgspec.json.encode(msgspec.structs.replace(plan, speed=0)))
        with pytest.raises(InvalidArgument, match=r"was divided differently before"):
            publish(place)

    def test_rows_that_are_missing_are_noticed(self, topic, work):
        place = work(topic)
        shutil.rmtree(next((place / "rows").glob("topic=*/topic_id=*/partition=1")))
        with pytest.raises(InvalidArgument, match=r"holds 2000 rows; 3000 were selected"):
            publish(place)

    def test_there_must_be_a_replay(self, tmp_path):
        with pytest.raises(InvalidArgument, match=r"There is no replay in .* Select one first."):
            publish(tmp_path)

    def test_a_target_with_too_few_partitions_is_refused(self, client, topic, work):
        client.create_topic(topic, partitions=2)
        with pytest.raises(InvalidArgument, match=rf"{topic} has 2 partitions; feed.a was recorded with 3"):
            publish(work(topic))


class TestClocksAhead:
    """Three of a hundred producers' clocks are ten minutes ahead."""

    @pytest.fixture
    def lake(self, spark, client, broker, topic, tmp_path):
        client.create_topic(topic)
        with client.producer(topic) as producer:
            for number in range(300):
                moment = NOON + timedelta(milliseconds=number) + timedelta(minutes=10 * (number % 33 == 1))
                producer.send(b"%d" % number, timestamp=moment)
                if number % 100 == 99:
                    producer.flush()
        record(spark, [topic], tmp_path / "lake", url=broker.url)
        return tmp_path / "lake"

    def test_they_do_not_change_the_pace(self, spark, lake, topic, tmp_path):
        plan = select(spark, lake, tmp_path / "work", Selection(into=f"{topic}.again"))
        parts = list(runs.read(tmp_path / "work" / "rows", 1, plan.first_us))
        assert sum(part.rows.num_rows for part in parts) == 300
        assert len({part.due_us for part in parts}) >= 3
        assert plan.last_us - plan.first_us < 60e6
        assert abs(plan.last_us / 1e6 - datetime.now(UTC).timestamp()) < 300

    def test_a_replay_by_the_messages_own_times_can_be_asked_for(self, spark, lake, tmp_path):
        plan = select(spark, lake, tmp_path / "work", Selection(pace_by="timestamp"))
        assert plan.first_us == int(NOON.timestamp() * 1e6)
        assert plan.last_us - plan.first_us > 600e6
        with pytest.raises(InvalidArgument, match="cannot be paced by offset"):
            select(spark, lake, tmp_path / "other", Selection(pace_by="offset"))

    def test_a_lake_that_an_older_version_recorded_is_replayed_by_the_messages_own_times(
        self, spark, client, lake, topic, tmp_path
    ):
        for path in lake.glob("topic=*/date=*/*.parquet"):
            table = pq.ParquetFile(path).read()
            assert table.column("appended_at").null_count == 0
            pq.write_table(table.drop_columns(["appended_at"]), path)
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
        plan = select(spark, lake, tmp_path / "work", Selection(into=f"{topic}.again"), speed=0)
        assert plan.first_us == int(NOON.timestamp() * 1e6)
        assert publish(tmp_path / "work") == 300
        assert by_partition(client, f"{topic}.again") == by_partition(client, topic)


class TestPace:
    @pytest.mark.parametrize("speed", [1, 10, 0.5])
    def test_messages_are_published_when_they_are_due(self, client, topic, work, speed, monkeypatch):
        clock = Clock()
        monkeypatch.setattr(replay, "time", clock)
        shown = []
        assert publish(work(topic, speed=speed), on_progress=shown.append) == MESSAGES
        assert clock.now - 1000 == pytest.approx(SPAN_S / speed, rel=0.02)
        for done in shown[1:-1]:  # after so many rows, so much time must have passed, but for a tick and clocks
            assert done.seconds == pytest.approx(done.rows / MESSAGES * SPAN_S / speed, abs=0.05 + 0.02 / speed)
        assert shown[-1].rows == shown[-1].of_rows == MESSAGES

    def test_a_paced_replay_takes_as_long_as_it_should(self, topic, work):
        shown = []
        publish(work(topic, speed=20), on_progress=shown.append)
        assert 0.98 * SPAN_S / 20 <= shown[-1].seconds < 10 * SPAN_S / 20

    def test_full_speed_does_not_wait(self, topic, work, monkeypatch):
        clock = Clock()
        monkeypatch.setattr(replay, "time", clock)
        publish(work(topic))
        assert clock.now == 1000

    def test_a_pace_cannot_be_negative(self, spark, feed, tmp_path):
        with pytest.raises(InvalidArgument, match=r"speed=-1 must not be negative"):
            select(spark, feed, tmp_path, Selection(), speed=-1)
