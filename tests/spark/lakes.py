"""What tests of lakes share: recorded rows, interruptions at any step, and readers that know nothing of lakes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from stentor.spark.pipelines.lake import Lake, open_lake

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest
    from pyspark.sql import DataFrame, SparkSession

TOPIC = "orders.eu"
TOPIC_ID = 7


def rows_of(spark: SparkSession) -> Callable[..., DataFrame]:
    """What makes frames of messages of one topic, as a round records them."""

    def make(first: int, end: int, *, topic: str = TOPIC, topic_id: int = TOPIC_ID, partition: int = 0) -> DataFrame:
        return spark.range(first, end, numPartitions=1).selectExpr(
            f"'{topic}' as topic",
            f"bigint({topic_id}) as topic_id",
            f"{partition} as partition",
            "id as offset",
            "timestamp'2026-11-15 12:00:00' as timestamp",
            "binary('k') as key",
            "binary(string(id)) as value",
            "array(struct('h' as key, binary('x') as value)) as headers",
            "date'2026-11-15' as date",
        )

    return make


def add(
    lake: Lake, frame: DataFrame, end: int, *, topic: str = TOPIC, topic_id: int = TOPIC_ID, partition: int = 0
) -> None:
    lake.add(frame, {topic: {topic_id: {partition: end}}})


def record(place: Path, kind: str, rows: Callable[..., DataFrame], end: int) -> None:
    """What a recorder does: go on where the lake ends."""
    lake = open_lake(place, kind)
    with lake.writing():
        first = lake.ends(TOPIC, TOPIC_ID, [0]).get(0, 0)
        if first < end:
            add(lake, rows(first, end), end)


def offsets_in(lake: Lake) -> list[int]:
    """What the files that count hold, without the time that Spark takes."""
    tables = [pq.ParquetFile(path).read(["topic_id", "offset"]) for path in lake.files()]
    rows = pa.concat_tables(tables, promote_options="permissive").to_pylist()
    return [offset for _, offset in sorted((row["topic_id"], row["offset"]) for row in rows)]


def offsets_seen_in(place: Path) -> list[int]:
    """What a reader sees that knows only Parquet."""
    found = ds.dataset(place, format="parquet", partitioning="hive").to_table(columns=["offset"])
    return sorted(found.column("offset").to_pylist())


class Interrupted(Exception):  # noqa: N818 - it is no error
    pass


def interrupt(patch: pytest.MonkeyPatch, owner: Any, name: str, *, after: bool = False, call: int = 1) -> None:
    """Let the n-th call of a method end in an error, before or after it did its work."""
    work, calls = getattr(owner, name), []

    def broken(*args: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) != call:
            return work(*args, **options)
        if after:
            work(*args, **options)
        raise Interrupted

    patch.setattr(owner, name, broken)
