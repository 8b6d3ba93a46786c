"""Lakes: every row once, whatever is interrupted; readable at any time; one writer; small files joined."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.spark.lakes import Interrupted, add, interrupt, offsets_in, record, rows_of

from stentor.errors import CorruptData, InvalidArgument, NotReady
from stentor.spark.pipelines import lake as lakes
from stentor.spark.pipelines.lake import DeltaLake, Lake, ParquetLake, open_lake

DAY = date(2026, 11, 15)
NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)


@pytest.fixture(params=["parquet", "delta"])
def kind(request):
    return request.param


@pytest.fixture
def place(tmp_path):
    return tmp_path / "a lake"


@pytest.fixture
def rows(spark):
    return rows_of(spark)


def test_a_delta_table_that_an_older_version_made_gets_the_column_it_lacks(spark, place, rows):
    """Without it in the table's schema, joining files would lose the column."""
    from pyspark.sql import functions as f

    header = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
    fields = {"topic": pa.string(), "topic_id": pa.int64(), "partition": pa.int32(), "offset": pa.int64()}
    fields |= {"timestamp": pa.timestamp("us", "UTC"), "key": pa.binary(), "value": pa.binary(), "headers": header}
    DeltaTable.create(str(place), pa.schema(fields | {"date": pa.date32()}), partition_by=["topic", "date"])
    for end in (1, 2, 3):
        lake = open_lake(place, "delta")
        frame = rows(end - 1, end).withColumn("appended_at", f.expr("timestamp'2026-11-15 12:00:01'"))
        with lake.writing():
            add(lake, frame, end)
    assert open_lake(place).compact(spark) == 2
    found = open_lake(place).frame(spark).collect()
    assert sorted(row.offset for row in found) == [0, 1, 2]
    assert all(row.appended_at is not None for row in found)


STEPS = {
    "before staging": (Lake, "_stage", {}),
    "after staging": (Lake, "_stage", {"after": True}),
    "before a file is moved": (Lake, "_placed", {}),
    "after a file was moved": (Lake, "_placed", {"after": True}),
}
OWN_STEPS = {
    "parquet": {
        "before the commit": (ParquetLake, "_save", {}),
        "after the commit": (ParquetLake, "_save", {"after": True}),
    },
    "delta": {
        "before the commit": (DeltaTable, "create_write_transaction", {}),
        "after the commit": (DeltaTable, "create_write_transaction", {"after": True}),
    },
}


class TestExactlyOnce:
    def test_a_round_that_was_interrupted_is_recorded_once_when_run_again(self, place, kind, rows, monkeypatch):
        record(place, kind, rows, 1)
        end = 1
        for step, (owner, name, how) in (STEPS | OWN_STEPS[kind]).items():
            with monkeypatch.context() as patch:
                interrupt(patch, owner, name, **how)
                with pytest.raises(Interrupted):
                    record(place, kind, rows, end + 1)
            counts = end + 1 if step.startswith("after the commit") else end
            assert offsets_in(open_lake(place)) == list(range(counts)), step
            record(place, kind, rows, end + 2)
            assert offsets_in(open_lake(place)) == list(range(end + 2)), step
            assert not (place / "_staging").exists()
            end += 2

    @pytest.mark.parametrize("step", STEPS)
    def test_the_very_first_round_may_be_interrupted_too(self, place, kind, rows, monkeypatch, step):
        owner, name, how = STEPS[step]
        with monkeypatch.context() as patch:
            interrupt(patch, owner, name, **how)
            with pytest.raises(Interrupted):
                record(place, kind, rows, 2)
        record(place, kind, rows, 3)
        assert offsets_in(open_lake(place)) == [0, 1, 2]

    def test_files_that_never_counted_are_taken_away(self, spark, place, rows, monkeypatch):
        record(place, "parquet", rows, 2)
        with monkeypatch.context() as patch:
            interrupt(patch, ParquetLake, "_save")
            with pytest.raises(Interrupted):
                record(place, "parquet", rows, 4)
        assert len(list(place.glob("topic=*/*/*"))) == 2
        record(place, "parquet", rows, 2)
        assert len(list(place.glob("topic=*/*/*"))) == 1


class TestReading:
    def test_rows_come_back_as_they_were(self, spark, place, kind, rows):
        record(place, kind, rows, 2)
        found = open_lake(place).frame(spark).orderBy("offset").collect()
        assert [tuple(row) for row in found] == [
            ("orders.eu", 7, 0, offset, NOON.replace(tzinfo=None), b"k", b"%d" % offset, [("h", b"x")], None, DAY)
            for offset in range(2)
        ]
        assert open_lake(place).topics() == {"orders.eu"}

    def test_a_frame_shows_the_lake_as_it_was_when_the_frame_was_made(self, spark, place, kind, rows):
        record(place, kind, rows, 2)
        before = open_lake(place).frame(spark)
        record(place, kind, rows, 4)
        assert before.count() == 2
        assert open_lake(place).frame(spark).count() == 4

    def test_topics_are_told_apart_by_their_whole_name(self, spark, place, kind, rows):
        lake = open_lake(place, kind)
        with lake.writing():
            for topic in ("orders", "orders.eu", "orders-eu"):
                add(lake, rows(0, 1, topic=topic), 1, topic=topic)
        found = {row.topic for row in lake.frame(spark, ["orders", "orders-eu", "nothing"]).collect()}
        assert found == {"orders", "orders-eu"}

    def test_a_topic_that_was_made_again_has_ends_of_its_own(self, spark, place, kind, rows):
        lake = open_lake(place, kind)
        with lake.writing():
            add(lake, rows(0, 3), 3)
            assert lake.ends("orders.eu", 8, [0]) == {}
            add(lake, rows(0, 2, topic_id=8), 2, topic_id=8)
        assert lake.ends("orders.eu", 7, [0, 1]) == {0: 3}
        assert lake.ends("orders.eu", 8, [0]) == {0: 2}
        assert offsets_in(lake) == [0, 1, 2, 0, 1]

    def test_other_readers_of_delta_see_the_same(self, place, rows):
        record(place, "delta", rows, 3)
        table = DeltaTable(str(place)).to_pyarrow_table().sort_by("offset").to_pydict()
        assert table["value"] == [b"0", b"1", b"2"]
        assert table["timestamp"] == [NOON] * 3
        assert table["headers"] == [[{"key": "h", "value": b"x"}]] * 3


class TestCompaction:
    def test_small_files_are_joined_and_no_row_is_lost(self, spark, place, kind, rows):
        for end in range(1, 5):
            record(place, kind, rows, end)
        lake = open_lake(place)
        before = lake.frame(spark)
        assert len(lake.files()) == 4
        with lake.writing():
            assert lake.compact(spark) == 3
        assert len(lake.files()) == 1
        assert offsets_in(lake) == [0, 1, 2, 3]
        assert before.count() == 4  # a query that began before reads the files that were joined
        record(place, kind, rows, 5)
        assert offsets_in(open_lake(place)) == [0, 1, 2, 3, 4]

    def test_what_was_joined_goes_after_a_while(self, spark, place, kind, rows, monkeypatch):
        for end in range(1, 5):
            record(place, kind, rows, end)
        monkeypatch.setattr(lakes, "KEPT_AFTER_COMPACTION_S", 0.0)
        lake = open_lake(place)
        with lake.writing():
            lake.compact(spark)
        assert len(list(place.glob("topic=*/*/*.parquet"))) == 1
        assert offsets_in(lake) == [0, 1, 2, 3]


class TestMistakes:
    def test_two_writers_at_once_are_told_so(self, place, kind):
        with (
            open_lake(place, kind).writing(),
            pytest.raises(NotReady, match="Another process writes to the lake") as caught,
            open_lake(place, kind).writing(),
        ):
            pass
        assert "Wait for it, or stop it." in str(caught.value)

    def test_a_lake_keeps_its_format(self, place, kind, rows):
        record(place, kind, rows, 1)
        other = {"parquet": "delta", "delta": "parquet"}[kind]
        with pytest.raises(InvalidArgument, match=f"is a lake in {kind} format. Leave the format out, or use {kind}."):
            open_lake(place, other)
        assert isinstance(open_lake(place), DeltaLake if kind == "delta" else ParquetLake)

    def test_an_unknown_format_is_named(self, place):
        with pytest.raises(InvalidArgument, match=r"no lake format 'iceberg'. Use parquet or delta."):
            open_lake(place, "iceberg")

    def test_a_directory_of_something_else_is_not_touched(self, tmp_path):
        (tmp_path / "thesis.tex").write_text("x")
        with pytest.raises(InvalidArgument, match=r"is not a lake, and is not empty. Name another directory."):
            open_lake(tmp_path)
        with pytest.raises(InvalidArgument, match="is not a lake"):
            open_lake(tmp_path / "thesis.tex")

    def test_reading_where_nothing_was_recorded_is_a_mistake(self, spark, place):
        with pytest.raises(InvalidArgument, match=r"There is no lake at .* Create one with `stentor record`."):
            open_lake(place).frame(spark)

    @pytest.mark.parametrize("damage", ["{", '{"round": "x"}', None])
    def test_a_broken_state_is_told_and_no_file_is_touched(self, spark, place, rows, damage):
        record(place, "parquet", rows, 2)
        state = place / "_stentor" / "state.json"
        state.unlink() if damage is None else state.write_text(damage)
        lake = open_lake(place)
        with pytest.raises(CorruptData, match=r"state.json cannot be read: .*Restore it from a backup"):
            lake.frame(spark)
        with pytest.raises(CorruptData), lake.writing():
            pass
        assert len(list(Path(place).glob("topic=*/*/*.parquet"))) == 1
