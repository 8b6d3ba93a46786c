"""Runs of a replay: order inside a partition is exact, across partitions it is by time to within a tick."""

from __future__ import annotations

import random
from itertools import accumulate, groupby

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stentor.spark.pipelines import runs

NOON_US = 1_763_208_000_000_000
TICK_US = 1000


@pytest.fixture
def write(tmp_path):
    """Writes a run as Spark would: one directory per partition, small row groups, one or two files."""

    def write_run(topic, partition, times, *, files=1, appended=None):
        place = tmp_path / f"topic={topic}" / "topic_id=7" / f"partition={partition}"
        place.mkdir(parents=True)
        values = [f"{topic}/{partition}/{index}" for index in range(len(times))]
        size = -(-len(times) // files)
        for file in range(files):
            chosen = slice(file * size, (file + 1) * size)
            table = pa.table(
                {
                    "timestamp": pa.array(times[chosen], pa.timestamp("us", "UTC")),
                    "key": pa.nulls(len(times[chosen]), pa.binary()),
                    "value": pa.array(values[chosen], pa.binary()),
                    "headers": pa.nulls(len(times[chosen]), pa.list_(pa.struct([("key", pa.string())]))),
                }
            )
            if appended is not None:
                table = table.append_column("appended_at", pa.array(appended[chosen], pa.timestamp("us", "UTC")))
            pq.write_table(table, place / f"part-00000-x.c{file:03}.zstd.parquet", row_group_size=10)
        return list(zip(accumulate(times, max), values, strict=True))

    return write_run


def read(place, tick_us=TICK_US):
    return list(runs.read(place, tick_us, NOON_US))


def values(parts, partition):
    return [value.decode() for part in parts if part.partition == partition for value in part.rows["value"].to_pylist()]


def test_every_partition_keeps_its_order_whatever_its_clocks_say(write, tmp_path):
    random.seed(5)
    times = [NOON_US + random.randrange(50_000) for _ in range(200)]
    for partition in range(3):
        write("a", partition, times, files=1 + partition % 2)
    parts = read(tmp_path)
    for partition in range(3):
        assert values(parts, partition) == [f"a/{partition}/{index}" for index in range(200)]


def test_partitions_are_in_step_to_within_a_tick(write, tmp_path):
    random.seed(6)
    due = {}
    for partition in range(4):
        times = sorted(NOON_US + random.randrange(100_000) for _ in range(50 * (partition + 1)))
        due |= {value: at for at, value in write("a", partition, times)}
    parts = read(tmp_path)
    ticks = [
        {(due[value.decode()] - NOON_US) // TICK_US for part in of_tick for value in part.rows["value"].to_pylist()}
        for _, of_tick in groupby(parts, key=lambda part: part.due_us)
    ]
    assert all(len(found) == 1 for found in ticks)
    assert [min(found) for found in ticks] == sorted(min(found) for found in ticks)


def test_a_message_whose_clock_was_behind_waits_for_those_before_it(write, tmp_path):
    write("a", 0, [NOON_US, NOON_US + 9 * TICK_US, NOON_US + TICK_US])
    write("a", 1, [NOON_US + 5 * TICK_US])
    order = [value.decode() for part in read(tmp_path) for value in part.rows["value"].to_pylist()]
    assert order == ["a/0/0", "a/1/0", "a/0/1", "a/0/2"]


def test_a_tick_begins_with_its_first_row(write, tmp_path):
    write("a", 0, [NOON_US + 10, NOON_US + TICK_US + 700])
    write("a", 1, [NOON_US + 5, NOON_US + TICK_US + 300])
    assert [part.due_us - NOON_US for part in read(tmp_path)] == [5, 5, TICK_US + 300, TICK_US + 300]


def test_many_rows_at_once_are_cut(write, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "PART_ROWS", 4)
    write("a", 0, [NOON_US] * 25)
    assert [part.rows.num_rows for part in read(tmp_path)] == [4, 4, 2, 4, 4, 2, 4, 1]


def test_rows_are_due_when_they_were_appended_whatever_the_clocks_of_producers_say(write, tmp_path):
    times = [NOON_US + 600_000_000 * (index == 3) for index in range(20)]
    write("a", 0, times, appended=[NOON_US + index * TICK_US for index in range(20)])
    parts = read(tmp_path)
    assert [part.due_us - NOON_US for part in parts] == [index * TICK_US for index in range(20)]
    assert parts[0].rows.schema.names == ["timestamp", "key", "value", "headers"]


def test_rows_of_which_nobody_knows_when_they_were_appended_are_due_at_their_own_time(write, tmp_path):
    write("a", 0, [NOON_US, NOON_US + 5 * TICK_US], appended=[None, None])
    assert [part.due_us - NOON_US for part in read(tmp_path)] == [0, 5 * TICK_US]


def test_names_that_spark_escapes_are_read(write, tmp_path):
    write("orders%3Aeu", 0, [NOON_US])
    write("_metrics", 0, [NOON_US])
    assert {part.topic for part in read(tmp_path)} == {"orders:eu", "_metrics"}


def test_nothing_is_nothing(tmp_path):
    assert read(tmp_path) == []
