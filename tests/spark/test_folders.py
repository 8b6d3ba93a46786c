"""Where lakes, snapshots and replays are: our side and Spark mean one folder, and nothing counts that is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from stentor.errors import InvalidArgument, StorageError
from stentor.spark.pipelines import folders, replay, snapshot
from stentor.spark.pipelines.folders import local_folder
from stentor.spark.pipelines.lake import open_lake
from stentor.spark.pipelines.record import record

ODD = "a b%20c#d[1]{e}*?"


def values(frame):
    return sorted(bytes(row.value) for row in frame.select("value").collect())


@pytest.fixture
def filled(client, topic):
    client.create_topic(topic, partitions=2, keep_unrecorded=True)
    for number in range(10):
        client.publish(topic, b"%d" % number, key=b"k%d" % (number % 3))
    return topic


def marked(client, topic):
    """Up to where retention may delete."""
    return [partition.recorded for partition in client.describe_topic(topic).partitions]


class TestNames:
    @pytest.mark.parametrize(
        "given", ["file:///data/lake", "file:/data/lake", "FILE:///data/lake", "file://localhost/data/lake"]
    )
    def test_a_file_uri_is_the_folder_that_it_names(self, given):
        assert local_folder(given, "lake") == Path("/data/lake")

    @pytest.mark.parametrize("given", ["lake", "./lake", "/data/lake", "../s3/x", "a:b", Path("/data/a b")])
    def test_a_path_stays_as_it_is(self, given):
        assert local_folder(given, "lake") == Path(given)

    def test_what_pathlib_makes_a_uri_is_that_path_again(self):
        assert local_folder(Path("/data", ODD).as_uri(), "lake") == Path("/data", ODD)

    @pytest.mark.parametrize("given", ["s3://bucket/lake", "s3a:/b", "hdfs://host/x", "gs://b", Path("s3://bucket/x")])
    def test_another_file_system_is_refused_in_a_sentence(self, given):
        with pytest.raises(InvalidArgument, match=r"is not a folder of this machine, .* Name a folder such as \./lake"):
            local_folder(given, "lake")

    @pytest.mark.parametrize("given", ["file://server/lake", "file:lake", "file://", "file:///lake?x=1"])
    def test_a_file_uri_that_names_no_folder_here_is_refused(self, given):
        if given == "file:lake":
            assert local_folder(given, "lake") == Path("file:lake")  # as a shell would have it
            return
        with pytest.raises(InvalidArgument, match="does not name a folder of this machine"):
            local_folder(given, "lake")

    @pytest.mark.parametrize("place", ["s3://bucket/x", "hdfs://h/x"])
    def test_nothing_is_made_where_a_place_is_refused(self, spark, filled, tmp_path, monkeypatch, place):
        monkeypatch.chdir(tmp_path)
        frame = spark.range(1)
        for attempt in (
            lambda: open_lake(place),
            lambda: record(spark, [filled], place),
            lambda: snapshot.to_lake(frame, place),
            lambda: replay.select(spark, tmp_path / "lake", place, replay.Selection()),
            lambda: replay.publish(place),
        ):
            with pytest.raises(InvalidArgument, match="is not a folder of this machine"):
                attempt()
        assert list(tmp_path.iterdir()) == []


class TestFileUris:
    @pytest.mark.parametrize("kind", ["parquet", "delta"])
    def test_what_is_recorded_into_one_is_in_its_folder(self, spark, client, filled, tmp_path, kind):
        place = (tmp_path / "lake").as_uri()
        assert record(spark, [filled], place, kind=kind) == 10
        assert values(open_lake(tmp_path / "lake").frame(spark)) == values(open_lake(place).frame(spark))
        assert len(values(open_lake(place).frame(spark))) == 10
        assert sum(marked(client, filled)) == 10

    def test_snapshots_and_replays_are_in_theirs(self, spark, client, filled, tmp_path):
        lake, work, out = ((tmp_path / name).as_uri() for name in ("lake", "work", "out"))
        record(spark, [filled], lake)
        snapshot.to_lake(snapshot.latest(spark, filled, lake=lake), out)
        assert spark.read.parquet(str(tmp_path / "out")).count() == 3
        assert replay.select(spark, lake, work, replay.Selection(into=f"again.{filled}"), speed=0).rows == 10
        assert replay.publish(work) == 10
        assert sum(client.offsets(f"again.{filled}").values()) == 10


def test_a_folder_may_have_any_name(spark, filled, tmp_path):
    place = tmp_path / ODD / "lake"
    assert record(spark, [filled], place) == 10
    lake = open_lake(place)
    assert len(values(lake.frame(spark))) == 10
    with lake.writing():
        lake.compact(spark)
    assert len(values(lake.frame(spark))) == 10
    replay.select(spark, place, tmp_path / ODD / "work", replay.Selection())


class TestElsewhere:
    """Spark writes where this machine does not see it, as executors without a shared file system do."""

    @pytest.fixture(autouse=True)
    def _elsewhere(self, monkeypatch, tmp_path):
        self.is_elsewhere = True
        real = folders.to_write

        def to_write(path):
            return real(tmp_path / "elsewhere" / path.name if self.is_elsewhere else path)

        monkeypatch.setattr(folders, "to_write", to_write)

    def test_a_round_is_refused_and_no_position_moves(self, spark, client, filled, tmp_path):
        with pytest.raises(StorageError, match=r"should get 10 rows, and Spark has put 0 of them into .*_staging"):
            record(spark, [filled], tmp_path / "lake")
        assert marked(client, filled) == [0, 0]
        assert open_lake(tmp_path / "lake").ends(filled, client.describe_topic(filled).id, [0, 1]) == {}
        self.is_elsewhere = False
        assert record(spark, [filled], tmp_path / "lake") == 10
        assert len(values(open_lake(tmp_path / "lake").frame(spark))) == 10

    def test_of_a_compacted_topic_too(self, spark, client, topic, tmp_path):
        """Nobody knows beforehand how many rows there are; the tasks count them."""
        client.create_topic(topic, cleanup="compact")
        client.publish(topic, b"v", key=b"k")
        with pytest.raises(StorageError, match="should get 1 rows, and Spark has put 0"):
            record(spark, [topic], tmp_path / "lake")

    def test_files_that_were_to_be_joined_stay(self, spark, client, filled, tmp_path):
        self.is_elsewhere = False
        lake = open_lake(tmp_path / "lake")
        for number in range(6):
            client.publish(filled, b"more %d" % number)
            record(spark, [filled], lake)
        before = values(lake.frame(spark))
        self.is_elsewhere = True
        with pytest.raises(StorageError, match="should get 16 rows"), lake.writing():
            lake.compact(spark)
        assert values(lake.frame(spark)) == before

    def test_a_snapshot_leaves_the_earlier_one(self, spark, filled, tmp_path):
        frame = snapshot.latest(spark, filled)
        self.is_elsewhere = False
        snapshot.to_lake(frame, tmp_path / "out")
        self.is_elsewhere = True
        with pytest.raises(StorageError, match="The snapshot should get 3 rows"):
            snapshot.to_lake(frame, tmp_path / "out")
        assert spark.read.parquet(str(tmp_path / "out")).count() == 3


def test_rows_that_the_source_did_not_give_are_missed(spark, client, filled, tmp_path, monkeypatch):
    from stentor.spark.pipelines.record import _Recorder

    read = _Recorder._read
    monkeypatch.setattr(_Recorder, "_read", lambda *given: read(*given).where("value != '7'"))
    with pytest.raises(StorageError, match="should get 10 rows, and Spark has put 9"):
        record(spark, [filled], tmp_path / "lake")
    assert marked(client, filled) == [0, 0]
