"""Snapshot: the latest value of every key of a topic, at a time or now, of any size.

Within a partition the highest offset is the latest. A key that is in several partitions, because their number was
changed, counts by its message's time. A key whose latest value is null is deleted. Messages without a key are left out.

A table is read by key, so Spark need not shuffle it, and its sequence is written down.
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Final

import stentor
from stentor.errors import InvalidArgument
from stentor.spark.pipelines.folders import local_folder, write_parquet
from stentor.spark.pipelines.times import Times
from stentor.spark.pipelines.views import topic_view
from stentor.spark.session import activate

if TYPE_CHECKING:
    from datetime import datetime
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

_FACTS: Final = "_snapshot.json"
"""Spark passes over files whose names begin like this."""


def latest(
    spark: SparkSession,
    topic: str,
    *,
    url: str | None = None,
    lake: str | Path | None = None,
    until: datetime | None = None,
    until_offsets: dict[int, int] | None = None,
) -> DataFrame:
    """One row per key: topic, partition, offset, timestamp, key, value, headers."""
    from pyspark.sql import functions as f

    times = Times.between(None, until)
    frame = topic_view(spark, topic, url=url, lake=lake, times=times).where("key is not null")
    if until is not None:
        frame = frame.where(f.col("timestamp") < f.lit(until))
    if until_offsets is not None:
        before = [(f.col("partition") == p) & (f.col("offset") < offset) for p, offset in until_offsets.items()]
        if not before:
            raise InvalidArgument("No partition is named.", hint="For example {0: 1000, 1: 990}.")
        condition = before[0]
        for other in before[1:]:
            condition |= other
        frame = frame.where(condition)
    row = f.struct("topic", "partition", "offset", "timestamp", "key", "value", "headers")
    within = frame.groupBy("partition", "key").agg(f.max_by(row, "offset").alias("row"))
    across = within.groupBy("key").agg(
        f.max_by("row", f.struct("row.timestamp", "row.partition", "row.offset")).alias("row")
    )
    return across.select("row.*").where("value is not null")


def table_sequence(name: str, *, url: str | None = None) -> tuple[int, ...] | None:
    """The sequence of a table now; None for a topic that is no table."""
    with stentor.connect(url, name="snapshot pipeline") as client:
        if client.describe_topic(name).settings.kind != "table":
            return None
        ends = client.offsets(name)
        return tuple(ends[partition] for partition in sorted(ends))


def of_table(spark: SparkSession, name: str, sequence: tuple[int, ...], *, url: str | None = None) -> DataFrame:
    """A table at a sequence, one row per key: key, value, version, timestamp."""
    activate(spark)
    reader = spark.read.format("stentor").options(table=name, columns="key,value,version,timestamp")
    if url is not None:
        reader = reader.option("url", url)
    return reader.option("sequence", ",".join(map(str, sequence))).load()


def to_lake(frame: DataFrame, path: str | Path, facts: dict[str, object] | None = None) -> None:
    """Write a snapshot as Parquet; an earlier one at this place is replaced when the new one is complete.

    Facts about it go into `_snapshot.json` beside its files.
    """
    place = local_folder(path, "snapshot")
    if place.exists() and (not place.is_dir() or not all(map(_is_of_snapshot, place.iterdir()))):
        raise InvalidArgument(f"{place} holds something that is not a snapshot.", hint="Name another directory.")
    fresh, old = (place.with_name(f".{place.name}.{which}") for which in ("new", "old"))
    write_parquet(frame, fresh, lambda writer: writer.mode("overwrite").option("compression", "zstd"), "snapshot")
    if facts:
        (fresh / _FACTS).write_text(json.dumps(facts) + "\n")
    shutil.rmtree(old, ignore_errors=True)
    if place.exists():
        place.rename(old)
    fresh.rename(place)
    shutil.rmtree(old, ignore_errors=True)


def _is_of_snapshot(path: Path) -> bool:
    return path.name.endswith((".parquet", ".crc", "_SUCCESS", _FACTS))


def to_topic(frame: DataFrame, topic: str, *, url: str | None = None, name: str | None = None) -> None:
    """Publish a snapshot; with a name it may be repeated and is there once."""
    activate(frame.sparkSession)
    names = [name for name in ("key", "value", "headers", "timestamp") if name in frame.columns]
    writer = frame.select(*names).write.format("stentor").option("topic", topic)
    if url is not None:
        writer = writer.option("url", url)
    if name is not None:
        writer = writer.option("txnAppId", f"snapshot.{name}").option("txnVersion", "0")
    writer.mode("append").save()
