"""Replay: recorded messages into topics again, in the order and at the pace in which they happened.

Spark selects and orders, and writes the selection down; one process publishes it. Messages keep key, value, headers,
time and, where the target has as many, their partition. The order is by time across partitions, and by offset within
each: a message whose clock was behind waits for those before it in its partition.

A replay can be interrupted and taken up again, exactly once. Its batches are cut in the same way every time, and
published under the replay's identity: every so often everything is flushed, the place is written down, and the next
generation begins. Whoever takes it up begins at the last such place, and brokers recognise what they have.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import stentor
from stentor.core.names import check_pattern, matches
from stentor.errors import InvalidArgument
from stentor.spark.pipelines.lake import open_lake, replace_whole

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession

    from stentor.client.sync_client import Client

SLICE_ROWS: Final = 16_384
TICK_S: Final = 0.02
"""A paced replay publishes what is due in steps of this."""
CHECKPOINT_S: Final = 2.0
_COLUMNS: Final = ["topic", "partition", "timestamp", "key", "value", "headers", "due"]


class Selection(msgspec.Struct, frozen=True):
    """What is replayed, from where to where."""

    topics: list[str] = []  # names and patterns; none: all that the lake has
    start: datetime | None = None
    end: datetime | None = None
    keys: list[str] = []
    into: str | None = None  # a topic for everything, or a pattern with * for the topic's own name


class Plan(msgspec.Struct, frozen=True):
    """A selection that was made: written down beside its rows."""

    identity: str
    rows: int
    first_us: int
    last_us: int
    partitions: dict[str, int]  # of the source topics
    speed: float  # 0: as fast as possible
    into: str | None = None


class Place(msgspec.Struct):
    """How far a replay is: the rows before this are acknowledged."""

    rows: int = 0
    generation: int = 0


class Progress(msgspec.Struct, frozen=True):
    """For whoever watches."""

    rows: int
    of_rows: int
    seconds: float
    behind_s: float  # how much later than planned the last rows were published


# --- selecting ----------------------------------------------------------------------------------


def select(
    spark: SparkSession, lake: str | Path, work: str | Path, selection: Selection, *, speed: float = 1.0
) -> Plan:
    """Let Spark select and order; the rows and the plan are in the work directory afterwards."""
    from pyspark.sql import functions as f

    if speed < 0:
        raise InvalidArgument(f"speed={speed} must not be negative.", hint="0 is as fast as possible.")
    place = Path(work)
    if (place / "plan.json").is_file():
        raise InvalidArgument(f"{place} holds a replay already.", hint="Take it up with resume, or name another.")
    recorded = open_lake(lake)
    recorded.check()
    topics = [name for name in recorded.topics() if _is_chosen(name, selection.topics)]
    ordered = _ordered(_selected(recorded.frame(spark, topics), selection))
    ordered.write.mode("overwrite").option("compression", "zstd").parquet(str(place / "rows"))
    written = spark.read.schema(ordered.schema).parquet(str(place / "rows"))
    facts = written.agg(f.count("*"), f.min(f.unix_micros("due")), f.max(f.unix_micros("due"))).first()
    if facts is None or not facts[0]:
        raise InvalidArgument("Nothing was recorded that fits the selection.", hint="Look with `stentor sql`.")
    partitions = {row[0]: row[1] + 1 for row in written.groupBy("topic").agg(f.max("partition")).collect()}
    identity = f"replay/{time.time_ns():x}"
    plan = Plan(identity, facts[0], facts[1], facts[2], partitions, speed, selection.into)
    replace_whole(place / "plan.json", msgspec.json.encode(plan))
    return plan


def _is_chosen(topic: str, chosen: list[str]) -> bool:
    return not chosen or any(matches(check_pattern(pattern), topic) for pattern in chosen)


def _selected(frame: DataFrame, selection: Selection) -> DataFrame:
    from pyspark.sql import functions as f

    if selection.start is not None:
        frame = frame.where(f.col("timestamp") >= f.lit(selection.start))
    if selection.end is not None:
        frame = frame.where(f.col("timestamp") < f.lit(selection.end))
    if selection.keys:
        frame = frame.where(f.col("key").isin([key.encode() for key in selection.keys]))
    return frame


def _ordered(frame: DataFrame) -> DataFrame:
    """By the time at which a message is due: its own, but never before one that precedes it in its partition."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    before = Window.partitionBy("topic", "topic_id", "partition").orderBy("offset")
    due = f.max("timestamp").over(before.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    return frame.withColumn("due", due).orderBy("due", "topic", "topic_id", "partition", "offset").select(*_COLUMNS)


# --- publishing ---------------------------------------------------------------------------------


def publish(
    work: str | Path,
    *,
    url: str | None = None,
    on_progress: Callable[[Progress], None] = lambda _: None,
    stop: threading.Event | None = None,
) -> int:
    """Publish what was selected, or go on with it; how many rows were published by this call."""
    place = Path(work)
    with stentor.connect(url, name="replay", timeout=60.0) as client:
        return _Replay(place, client, on_progress, stop).run()


class _Replay:
    def __init__(
        self, place: Path, client: Client, on_progress: Callable[[Progress], None], stop: threading.Event | None
    ) -> None:
        self._plan = _load(place / "plan.json", Plan)
        self._path = place
        self._client = client
        self._tell = on_progress
        self._stop = stop
        self._done = _load(place / "place.json", Place) if (place / "place.json").is_file() else Place()
        self._targets: dict[str, tuple[Any, int]] = {}
        self._began = 0.0
        self._first_us = 0

    def run(self) -> int:
        before = row = self._done.rows
        checked = self._began = time.monotonic()
        self._tell(Progress(row, self._plan.rows, 0.0, 0.0))
        for rows in self._slices(row):
            if self._stop is not None and self._stop.is_set():
                break
            late = self._wait_until_due(rows)
            self._send(rows)
            row += rows.num_rows
            now = time.monotonic()
            if now - checked > CHECKPOINT_S:
                self._checkpoint(row)
                checked = now
            self._tell(Progress(row, self._plan.rows, now - self._began, late))
        self._checkpoint(row)
        self._tell(Progress(row, self._plan.rows, time.monotonic() - self._began, 0.0))
        return row - before

    def _slices(self, skip: int) -> Iterator[Any]:
        """Rows in order, cut where the clock ticks or a batch is full: the same cuts every time."""
        for batch in self._batches():
            if skip >= batch.num_rows:
                skip -= batch.num_rows
                continue
            for start, stop in self._cuts(batch):
                if start >= skip:
                    yield batch.slice(start, stop - start)
                elif stop > skip:
                    raise InvalidArgument(
                        f"{self._path} was cut otherwise before.", hint="Begin the replay anew, with another directory."
                    )
            skip = 0

    def _batches(self) -> Iterator[Any]:
        for path in sorted((self._path / "rows").glob("part-*.parquet")):
            yield from pq.ParquetFile(path).iter_batches(batch_size=SLICE_ROWS, columns=_COLUMNS)

    def _cuts(self, batch: Any) -> Iterator[tuple[int, int]]:
        """Where to cut a batch: at every tick of the recorded time that a tick of ours covers."""
        if not self._plan.speed:
            yield 0, batch.num_rows
            return
        tick_us = max(1, int(TICK_S * 1e6 * self._plan.speed))
        ticks = pc.divide(pc.subtract(batch.column("due").cast(pa.int64()), self._plan.first_us), tick_us)
        runs = pc.run_end_encode(ticks)
        start = 0
        for stop in runs.run_ends.to_pylist():
            yield start, stop
            start = stop

    def _wait_until_due(self, rows: Any) -> float:
        """Sleep until the first row is due; how late it is already."""
        if not self._plan.speed:
            return 0.0
        due_us = rows.column("due").cast(pa.int64())[0].as_py()
        if not self._first_us:
            self._first_us = due_us  # the pace counts from where this run begins
        due = self._began + (due_us - self._first_us) / 1e6 / self._plan.speed
        wait: float = due - time.monotonic()
        if wait > 0:
            (self._stop.wait if self._stop is not None else time.sleep)(wait)
        return max(0.0, -wait)

    # --- sending --------------------------------------------------------------------------------

    def _send(self, rows: Any) -> None:
        """Every partition's rows as one batch."""
        for topic in _values(rows.column("topic")):
            of_topic = rows if topic is None else rows.filter(pc.equal(rows.column("topic"), topic))
            name = of_topic.column("topic")[0].as_py()
            producer, partitions = self._target(name)
            messages = of_topic.select(["timestamp", "key", "value", "headers"])
            for partition in _values(of_topic.column("partition")):
                chosen = messages
                if partition is not None:
                    chosen = messages.filter(pc.equal(of_topic.column("partition"), partition))
                own = of_topic.column("partition")[0].as_py() if partition is None else partition
                producer.send_batch(chosen, partition=own if own < partitions else own % partitions)

    def _target(self, topic: str) -> tuple[Any, int]:
        if topic not in self._targets:
            into = self._plan.into
            name = topic if into is None else into.replace("*", topic)
            wanted = (
                self._plan.partitions[topic] if into is None or "*" in into else max(self._plan.partitions.values())
            )
            self._client.create_topic(name, exist_ok=True, partitions=wanted)
            partitions = len(self._client.find_topic(name).partitions)
            if partitions < wanted:
                raise InvalidArgument(
                    f"Topic {name} has {partitions} partitions; {topic} was recorded with {wanted}.",
                    hint="Replay into a topic with as many, so that the order of every partition stays.",
                )
            self._targets[topic] = (self._producer(topic, name), partitions)
        return self._targets[topic]

    def _producer(self, topic: str, name: str) -> Any:
        # The source's name is part of the identity: two sources may be replayed into one target.
        identity = f"{self._plan.identity}/{topic}"
        return self._client.producer(
            name, identity=identity, generation=self._done.generation, batch_bytes=4 << 20, batch_messages=1_000_000
        )

    def _checkpoint(self, row: int) -> None:
        """Everything so far is acknowledged: write it down, and begin the next generation."""
        for producer, _ in self._targets.values():
            producer.close()
        self._targets.clear()
        self._done = Place(row, self._done.generation + 1)
        replace_whole(self._path / "place.json", msgspec.json.encode(self._done))


def _values(column: Any) -> list[Any]:
    """The different values of a column; [None] if there is one only, so that nothing need be filtered."""
    found = pc.unique(column).to_pylist()
    return [None] if len(found) == 1 else found


def _load(path: Path, kind: Any) -> Any:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError as error:
        raise InvalidArgument(f"There is no replay in {path.parent}.", hint="Select one first.") from error
