"""Joined files: every reader sees each row once, whenever it looks and whatever was interrupted."""

from __future__ import annotations

import os

import msgspec
import pandas as pd
import pytest
from tests.spark.lakes import Interrupted, interrupt, offsets_in, offsets_seen_in, record, rows_of

from stentor.spark.pipelines import joining
from stentor.spark.pipelines import lake as lakes
from stentor.spark.pipelines.joining import Join, Joined, left
from stentor.spark.pipelines.lake import Lake, ParquetLake, open_lake

ALL = [0, 1, 2, 3]
HOUR = lakes.KEPT_AFTER_COMPACTION_S


@pytest.fixture
def rows(spark):
    return rows_of(spark)


@pytest.fixture
def place(tmp_path, rows):
    """A lake of four small files."""
    found = tmp_path / "a lake"
    for end in range(1, 5):
        record(found, "parquet", rows, end)
    return found


@pytest.fixture
def clock(monkeypatch):
    """The lake's clock, which stands still."""

    class Clock:
        now = 1_800_000_000.0

        def time(self):
            return self.now

    found = Clock()
    monkeypatch.setattr(lakes, "time", found)
    return found


def visible(place):
    return sorted(path.name for path in place.glob("topic=*/*/*"))


def hidden(place):
    return sorted(path.name for path in place.glob("_stentor/joined/*/*/*"))


def compact(place, spark):
    lake = open_lake(place)
    with lake.writing():
        return lake.compact(spark)


def write(place):
    """What every writer does first."""
    with open_lake(place).writing():
        pass


def sees_each_row_once(place, expected=ALL):
    return offsets_in(open_lake(place)) == expected and offsets_seen_in(place) == expected


class TestPlainReaders:
    def test_see_the_small_files_for_an_hour_and_then_the_joined_one(self, spark, place, clock):
        small = visible(place)
        assert compact(place, spark) == 3
        clock.now += HOUR
        write(place)
        assert visible(place) == small
        assert len(open_lake(place).files()) == 1
        assert sees_each_row_once(place)
        clock.now += 1
        write(place)
        assert visible(place) == ["c000000005-00000.parquet"]
        assert sees_each_row_once(place)
        assert not (place / "_stentor" / "exchanged").exists()

    def test_of_every_kind_see_each_row_once(self, spark, place, clock):
        compact(place, spark)
        for _ in range(2):
            assert spark.read.parquet(str(place)).count() == 4
            assert len(pd.read_parquet(place)) == 4
            assert offsets_seen_in(place) == ALL
            assert len(list(place.rglob("*.parquet"))) in (4, 1)  # a pattern that looks into every folder
            clock.now += HOUR + 1
            write(place)

    def test_see_each_row_once_before_and_after_the_step_in_which_folders_change_places(
        self, spark, place, clock, monkeypatch
    ):
        compact(place, spark)
        seen = []

        def watched(one, other):
            seen.append(offsets_seen_in(place))
            assert joining_exchange(one, other)
            seen.append(offsets_seen_in(place))
            return True

        joining_exchange = joining.exchange
        monkeypatch.setattr(joining, "exchange", watched)
        clock.now += HOUR + 1
        write(place)
        assert seen == [ALL, ALL]


class TestOurOwnReaders:
    def test_a_query_that_began_before_any_step_reads_for_an_hour(self, spark, place, rows, clock):
        """Before the join, after it, and after the folders changed places."""
        frames = [open_lake(place).frame(spark)]
        compact(place, spark)
        frames.append(open_lake(place).frame(spark))
        assert [frame.count() for frame in frames] == [4, 4]
        clock.now += HOUR + 1
        record(place, "parquet", rows, 5)
        frames = [*frames[1:], open_lake(place).frame(spark)]
        assert [frame.count() for frame in frames] == [4, 5]
        clock.now += HOUR
        write(place)
        assert [frame.count() for frame in frames] == [4, 5]
        clock.now += 1
        write(place)
        assert hidden(place) == []
        assert frames[-1].count() == 5

    def test_rows_that_come_later_count_beside_joined_ones(self, spark, place, rows, clock):
        compact(place, spark)
        record(place, "parquet", rows, 6)
        assert sees_each_row_once(place, [*ALL, 4, 5])
        clock.now += HOUR + 1
        write(place)
        assert visible(place) == ["c000000005-00000.parquet", "c000000006-00000.parquet"]
        assert sees_each_row_once(place, [*ALL, 4, 5])

    def test_a_day_that_is_joined_again_and_again_is_shown_all_the_same(self, spark, place, rows, clock):
        """A recorder that follows joins often: each join waits for its own hour."""
        end = 4
        for _ in range(4):
            compact(place, spark)
            clock.now += HOUR / 2
            for _ in range(2):
                end += 1
                record(place, "parquet", rows, end)
            assert sees_each_row_once(place, list(range(end)))
        assert "c000000001-00000.parquet" not in visible(place)
        assert len(hidden(place)) <= 3
        clock.now += 3 * HOUR
        write(place)
        clock.now += 3 * HOUR
        write(place)
        assert hidden(place) == []
        assert sees_each_row_once(place, list(range(end)))

    def test_a_day_that_somebody_deleted_stays_deleted(self, spark, place, rows, clock):
        compact(place, spark)
        folder = next(place.glob("topic=*/date=*"))
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        assert open_lake(place).files() == []
        clock.now += HOUR + 1
        record(place, "parquet", rows, 6)
        assert sees_each_row_once(place, [4, 5])
        assert hidden(place) == []

    def test_an_older_version_sees_each_row_once(self, spark, place, clock):
        """It knows nothing of joins, and forgets them when it writes."""
        compact(place, spark)
        path = place / "_stentor" / "state.json"
        state = msgspec.json.decode(path.read_bytes())
        del state["joined"]
        path.write_bytes(msgspec.json.encode(state))
        assert sees_each_row_once(place)
        write(place)
        assert hidden(place) == []
        assert sees_each_row_once(place)

    def test_a_lake_that_an_older_version_compacted_loses_the_small_files_as_before(self, place, rows, clock):
        """It left joined files beside the small ones, and said so in its state."""
        folder = next(place.glob("topic=*/date=*"))
        path = place / "_stentor" / "state.json"
        state = msgspec.json.decode(path.read_bytes())
        (folder / "c000000004-00000.parquet").rename(folder / "c000000005-00000.parquet")
        state |= {"round": 5, "compacted": {f"{folder.parent.name}/{folder.name}": [5, clock.now]}}
        path.write_bytes(msgspec.json.encode(state))
        assert offsets_in(open_lake(place)) == [3]
        clock.now += HOUR + 1
        write(place)
        assert sees_each_row_once(place, [3])


JOIN_STEPS = {
    "before staging": (Lake, "_stage", {}),
    "after staging": (Lake, "_stage", {"after": True}),
    "before a file is moved": (Lake, "_placed", {}),
    "after a file was moved": (Lake, "_placed", {"after": True}),
    "before it counts": (ParquetLake, "_save", {}),
    "after it counts": (ParquetLake, "_save", {"after": True}),
}
SHOW_STEPS = {
    "before a link": (os, "link", {}),
    "after a link": (os, "link", {"after": True}),
    "before the folders change places": (joining, "exchange", {}),
    "after the folders changed places": (joining, "exchange", {"after": True}),
    "before the old folder goes": (Joined, "clean", {"call": 3}),
    "after the old folder went": (Joined, "clean", {"call": 3, "after": True}),
    "before it is written down": (ParquetLake, "_save", {}),
    "after it was written down": (ParquetLake, "_save", {"after": True}),
    "before hidden files go": (Joined, "drop", {}),
}


class TestInterruptions:
    @pytest.mark.parametrize("step", JOIN_STEPS)
    def test_a_join_may_be_interrupted_anywhere(self, spark, place, clock, monkeypatch, step):
        owner, name, how = JOIN_STEPS[step]
        with monkeypatch.context() as patch:
            interrupt(patch, owner, name, **how)
            with pytest.raises(Interrupted):
                compact(place, spark)
        assert sees_each_row_once(place)
        compact(place, spark)
        assert len(hidden(place)) == 1
        assert sees_each_row_once(place)

    @pytest.mark.parametrize("step", SHOW_STEPS)
    @pytest.mark.parametrize("later", [0, 1], ids=["no later round", "a later round"])
    def test_showing_may_be_interrupted_anywhere(self, spark, place, rows, clock, monkeypatch, step, later):
        compact(place, spark)
        record(place, "parquet", rows, 4 + later)
        expected = list(range(4 + later))
        clock.now += HOUR + 1
        owner, name, how = SHOW_STEPS[step]
        with monkeypatch.context() as patch:
            interrupt(patch, owner, name, **how)
            with pytest.raises(Interrupted):
                write(place)
        assert sees_each_row_once(place, expected)
        write(place)
        assert len(visible(place)) == 1 + later
        assert sees_each_row_once(place, expected)

    @pytest.mark.parametrize("unlinked", range(4))
    def test_where_folders_cannot_change_places_ours_see_each_row_once_and_others_all(
        self, spark, place, clock, monkeypatch, unlinked
    ):
        compact(place, spark)
        clock.now += HOUR + 1
        monkeypatch.setattr(joining, "exchange", lambda *_: False)
        with monkeypatch.context() as patch:
            interrupt(patch, type(place), "unlink", call=unlinked + 1)
            with pytest.raises(Interrupted):
                write(place)
        assert offsets_in(open_lake(place)) == ALL
        assert sorted(set(offsets_seen_in(place))) == ALL
        write(place)
        assert sees_each_row_once(place)

    def test_a_file_system_without_links_gets_copies(self, spark, place, clock, monkeypatch):
        compact(place, spark)
        clock.now += HOUR + 1

        def refused(*_):
            raise PermissionError

        monkeypatch.setattr(os, "link", refused)
        write(place)
        assert visible(place) == ["c000000005-00000.parquet"]
        assert sees_each_row_once(place)


class TestWhatIsLeft:
    def test_joins_before_the_one_that_is_shown_go(self):
        joins = [Join(5, 0.0), Join(9, 10.0), Join(12, 20.0)]
        assert left(joins, joins[1], 100.0, 60.0) == joins[1:]
        assert left(joins, None, 100.0, 60.0) == joins

    def test_one_that_is_shown_stays_while_a_query_may_read_it(self):
        joins = [Join(5, 0.0, shown=100.0)]
        assert left(joins, None, 160.0, 60.0) == joins
        assert left(joins, None, 161.0, 60.0) == []
