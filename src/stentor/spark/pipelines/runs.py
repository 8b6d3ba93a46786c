"""What a replay publishes: a run of rows for every partition, in the order of its offsets, and all of them in step.

Spark sorts each partition by itself, which is cheap, and writes it down:

    rows/topic=orders.eu/topic_id=…/partition=0/part-….parquet      timestamp, key, value, headers, appended_at

Time is made here, while reading. A row is due at the time at which a broker appended it: producers' clocks may be
wrong, and a single one that is ahead would hold up all rows behind it. Rows that older versions recorded have their own
time only. No row is due before one that precedes it in its partition: the largest time so far counts. Runs are read in
ticks; in each, every run gives what is due by its end. So order inside a partition is exact, and across partitions it
is by time to within a tick.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stentor.spark.pipelines.folders import to_read, write_parquet

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, DataFrameWriter

PART_ROWS: Final = 16_384
"""The most that is published in one batch."""
_GROUP_BYTES: Final = 4 << 20
"""Parquet's row groups: one of each run is in memory at a time."""
_RUN: Final = ("topic", "topic_id", "partition")
_MESSAGE: Final = ["timestamp", "key", "value", "headers"]
_APPENDED: Final = "appended_at"
_TIMES: Final = ("timestamp", _APPENDED)  # in the order in which they are written


class Part(NamedTuple):
    """Rows of one partition that are published together."""

    due_us: int  # when its tick begins: the earliest of all runs
    topic: str
    partition: int
    rows: Any  # a record batch with the columns of a message


def write(frame: DataFrame, place: Path) -> DataFrame:
    """Let Spark write a selection down as runs; the selection as it was written."""
    runs = frame.repartition(*_RUN).sortWithinPartitions(*_RUN, "offset").select(*_RUN, *_MESSAGE, _APPENDED)

    def chosen(writer: DataFrameWriter) -> DataFrameWriter:
        writer = writer.mode("overwrite").partitionBy(*_RUN).option("compression", "zstd")
        # Read once and deleted: looking for repetitions takes longer than it saves, when writing and when reading.
        return writer.option("parquet.enable.dictionary", "false").option("parquet.block.size", _GROUP_BYTES)

    write_parquet(runs, place, chosen, "replay")
    return frame.sparkSession.read.schema(runs.schema).parquet(to_read(place))


def read(place: Path, tick_us: int, first_us: int) -> Iterator[Part]:
    """All rows in order, cut at ticks of the recorded time: the same cuts every time."""
    runs = [_Run(path) for path in sorted(place.glob("topic=*/topic_id=*/partition=*"))]
    while runs := [run for run in runs if not run.is_over]:
        due_us = min(run.due_us for run in runs)
        end_us = first_us + ((due_us - first_us) // tick_us + 1) * tick_us
        for run in runs:
            for rows in run.take(end_us):
                yield Part(due_us, run.topic, run.partition, rows)


class _Run:
    """One partition, and how far it has been read."""

    def __init__(self, path: Path) -> None:
        named = {name: unquote(value) for name, _, value in (part.partition("=") for part in path.parts[-3:])}
        self.topic, self.partition = named["topic"], int(named["partition"])
        self.is_over = False
        self._batches = _batches(path)
        self._rows: Any = None
        self._due: Sequence[int] = ()
        self._at = 0
        self._latest_us = 0
        self._next()

    @property
    def due_us(self) -> int:
        """Of the next row."""
        return self._due[self._at]

    def take(self, end_us: int) -> Iterator[Any]:
        """What is due before then."""
        while not self.is_over and self.due_us < end_us:
            stop = bisect_left(self._due, end_us, self._at)
            yield self._rows.slice(self._at, stop - self._at)
            self._at = stop
            if stop == len(self._due):
                self._next()

    def _next(self) -> None:
        found = next(self._batches, None)
        self._at = 0
        if found is None:
            self.is_over = True
            return
        self._rows = found.select(_MESSAGE)
        times = [found.column(name).cast(pa.timestamp("us", "UTC")) for name in found.schema.names if name in _TIMES]
        due = pc.coalesce(*reversed(times)).cast(pa.int64())
        self._due = pc.cumulative_max(due, start=pa.scalar(self._latest_us, pa.int64())).to_pylist()
        self._latest_us = self._due[-1]


def _batches(path: Path) -> Iterator[Any]:
    """Files are open only while a row group is read: there may be more runs than descriptors."""
    for file in sorted(path.glob("*.parquet")):
        groups = pq.read_metadata(file).num_row_groups
        for group in range(groups):
            with pq.ParquetFile(file) as opened:
                table = opened.read_row_group(group, columns=[*_MESSAGE, _APPENDED])  # what there is of them
            yield from (batch for batch in table.to_batches(max_chunksize=PART_ROWS) if batch.num_rows)
