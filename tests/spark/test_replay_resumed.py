"""A replay that is killed and paused anywhere and taken up again publishes every row once. It needs no Spark."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stentor.errors import NotReady
from stentor.spark.pipelines import replay, runs
from stentor.spark.pipelines.replay import ReplayPlace, ReplayPlan, Span, publish

NOON_US = 1_763_208_000_000_000
ROWS = 1200
PARTITIONS = 2
SPAN = Span(rows=150, bytes=1 << 20, parts=40, seconds=2.0)
_numbers = itertools.count()


def values(partition):
    return [f"{partition}/{number:04}".encode() for number in range(ROWS // PARTITIONS)]


@pytest.fixture
def work(tmp_path):
    """A replay as `select` writes it down: a row of each partition every 10 ms."""

    def make(into, *, speed=0.0, span=SPAN):
        place = tmp_path / f"work-{next(_numbers)}"
        for partition in range(PARTITIONS):
            folder = place / "rows" / "topic=feed" / "topic_id=7" / f"partition={partition}"
            folder.mkdir(parents=True)
            count = ROWS // PARTITIONS
            table = pa.table(
                {
                    "timestamp": pa.array(range(NOON_US, NOON_US + count * 10_000, 10_000), pa.timestamp("us", "UTC")),
                    "key": pa.nulls(count, pa.binary()),
                    "value": pa.array(values(partition), pa.binary()),
                    "headers": pa.nulls(count, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
                }
            )
            pq.write_table(table, folder / "part-00000.parquet", row_group_size=100)
        plan = ReplayPlan(
            identity=f"replay/{place}",
            rows=ROWS,
            first_us=NOON_US,
            last_us=NOON_US + ROWS // PARTITIONS * 10_000,
            partitions={"feed": PARTITIONS},
            speed=speed,
            into=into,
            lasting=True,
            span=span,
        )
        (place / "plan.json").write_bytes(msgspec.json.encode(plan))
        return place

    return make


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch):
    monkeypatch.setattr(runs, "PART_ROWS", 10)


class Clock:
    """Time that stands still but for pauses, which come at random."""

    def __init__(self, dice, pause_s=2.5):
        self._dice = dice
        self._pause_s = pause_s
        self._now = 1000.0

    def monotonic(self):
        self._now += self._dice.choice((0.0, 0.0, self._pause_s))
        return self._now

    def sleep(self, seconds):
        self._now += seconds


class Killed(Exception):  # noqa: N818 - not an error of anybody's
    """The process ends here."""


def check_once(client, topic):
    for partition in range(PARTITIONS):
        assert [message.value for message in client.read(topic, partition=partition)] == values(partition)


def killed_until_it_is_done(place, dice, monkeypatch):
    """Kill it after a random number of parts and pause it at random, until a run comes to its end; the runs it took."""
    for run in itertools.count(1):
        monkeypatch.setattr(replay, "time", Clock(dice))
        left = dice.randrange(1, 90)

        def tell(_):
            nonlocal left
            left -= 1
            if not left:
                raise Killed

        try:
            publish(place, on_progress=tell)
        except Killed:
            continue
        return run
    return 0


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("speed", [0, 50])
def test_a_replay_that_is_killed_and_paused_anywhere_doubles_nothing(client, topic, work, monkeypatch, seed, speed):
    place = work(topic, speed=speed)
    assert killed_until_it_is_done(place, random.Random(seed), monkeypatch) > 1
    check_once(client, topic)


def test_a_pause_after_taking_it_up_opens_no_generation_before_its_time(client, topic, work, monkeypatch):
    place = work(topic, span=msgspec.structs.replace(SPAN, rows=1000))
    shown = []

    def fail(done):
        shown.append(done)
        if done.rows > 900:
            raise Killed

    with pytest.raises(Killed):
        publish(place, on_progress=fail)
    monkeypatch.setattr(replay, "time", Clock(random.Random(1), pause_s=60))
    publish(place)
    check_once(client, topic)


def test_a_version_with_other_spans_keeps_to_those_of_the_plan(client, topic, work, monkeypatch):
    place = work(topic)
    dice = random.Random(7)
    monkeypatch.setattr(replay, "SPAN", Span(rows=1, bytes=1, parts=1, seconds=0.0))
    assert killed_until_it_is_done(place, dice, monkeypatch) > 1
    check_once(client, topic)


def test_what_an_older_version_began_goes_on_in_one_generation(client, topic, work, monkeypatch):
    """It changed generations by the clock: nobody knows how many rows it sent in the last one."""
    place = work(topic, span=None)
    with pytest.raises(Killed):
        publish(place, on_progress=_killer(700))
    (place / "place.json").unlink(missing_ok=True)
    monkeypatch.setattr(replay, "SPAN", SPAN)
    publish(place)
    assert msgspec.json.decode((place / "place.json").read_bytes(), type=ReplayPlace) == ReplayPlace(ROWS, 1)
    check_once(client, topic)


def _killer(rows):
    def tell(done):
        if done.rows > rows:
            raise Killed

    return tell


def test_the_place_is_written_down_before_a_long_wait(topic, work, monkeypatch):
    """A quiet hour of the recording is not waited for twice."""
    place = work(topic, speed=1, span=msgspec.structs.replace(SPAN, rows=ROWS, parts=ROWS, seconds=1.0))
    monkeypatch.setattr(replay, "time", Clock(random.Random(1), pause_s=0))
    with pytest.raises(Killed):
        publish(place, on_progress=_killer(900))
    assert msgspec.json.decode((place / "place.json").read_bytes(), type=ReplayPlace).rows >= 900 - 2 * 100 - 20


@pytest.mark.parametrize("seed", range(2))
def test_a_process_that_is_killed_in_the_middle_doubles_nothing(client, broker, topic, work, seed):
    place = work(topic)
    code = (
        "import os, sys\n"
        "from stentor.spark.pipelines import replay, runs\n"
        "runs.PART_ROWS = 10\n"
        "rows = int(sys.argv[1])\n"
        f"replay.publish({str(place)!r}, url={broker.url!r}, on_progress=lambda d: d.rows > rows and os._exit(9))"
    )
    dice = random.Random(seed)
    for rows in sorted(dice.sample(range(50, ROWS - 50), 2)):
        process = subprocess.run([sys.executable, "-c", code, str(rows)], check=False, timeout=60)
        assert process.returncode == 9
    publish(place)
    check_once(client, topic)


def test_a_second_process_is_refused_while_one_publishes(topic, work):
    place = work(topic)

    def second(_):
        with pytest.raises(NotReady, match=r"Another process publishes the replay in .*Wait for it, or stop it"):
            publish(place)
        raise Killed

    with pytest.raises(Killed):
        publish(place, on_progress=second)
    assert publish(place) > 0
