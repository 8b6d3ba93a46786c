"""Replay: recorded messages into topics again, in the order and at the pace in which they happened.

Spark selects and orders, and writes the selection down (runs.py); one process publishes it. Messages keep key, value,
headers, time and, where the target has as many, their partition. The pace and the order across partitions are those in
which brokers appended the messages, or by the messages' own times (`pace_by`); within a partition the order is by
offset.

A replay can be interrupted and taken up again, exactly once. Its batches are cut in the same way every time, and
published under the replay's identity: every so many rows everything is flushed, the place is written down, and the next
generation begins. Whoever takes it up begins at the last such place, and brokers recognise what they have. They do so
within a generation only. So where one ends is a function of its rows alone, by measures that the plan keeps, and never
of the time that a run takes: a run that is taken up would otherwise open the next generation among rows that the
killed run has sent in this one. The identity is a secret that is kept in the plan: nobody else can send under it.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

import stentor
from stentor.client.identity import FormerIdentity
from stentor.core.names import check_pattern, matches
from stentor.errors import InvalidArgument
from stentor.spark.pipelines import runs
from stentor.spark.pipelines.folders import local_folder
from stentor.spark.pipelines.lake import alone, open_lake, replace_whole
from stentor.spark.pipelines.times import Times

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator
    from datetime import datetime
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from stentor.client.sync_client import Client

TICK_S: Final = 0.02
"""A paced replay publishes what is due in steps of this."""
TICK_ROWS: Final = 65_536
"""At full speed partitions keep in step to within about so many rows."""


class Span(msgspec.Struct, frozen=True):
    """How long a generation lasts: until the first of these is reached."""

    rows: int
    bytes: int  # in memory
    parts: int
    seconds: float  # of a paced replay, by the times of its rows


SPAN: Span = Span(rows=1_000_000, bytes=64 << 20, parts=100_000, seconds=2.0)
"""What a broker may have to look for in its log when a replay is taken up: well within PRODUCER_SEARCH_BYTES_MAX and
PRODUCER_SEARCH_BATCHES_MAX. At full speed that is some tenths of a second."""


class Selection(msgspec.Struct, frozen=True):
    """What is replayed, from where to where."""

    topics: list[str] = []  # names and patterns; none: all that the lake has
    start: datetime | None = None
    end: datetime | None = None
    keys: list[str] = []
    into: str | None = None  # a topic for everything, or a pattern with * for the topic's own name
    pace_by: str = "appended_at"  # or "timestamp": which times are the pace


class ReplayPlan(msgspec.Struct, frozen=True):
    """A selection that was made: written down beside its rows."""

    identity: str
    rows: int
    first_us: int
    last_us: int
    partitions: dict[str, int]  # of the source topics
    speed: float  # 0: as fast as possible
    into: str | None = None
    lasting: bool = False  # False in plans of older versions, whose producers had no tokens
    span: Span | None = None  # None in plans of older versions, which changed generations by the clock


class ReplayPlace(msgspec.Struct):
    """How far a replay is: the rows before this are acknowledged."""

    rows: int = 0
    generation: int = 0


class ReplayProgress(msgspec.Struct, frozen=True):
    """For whoever watches."""

    rows: int
    of_rows: int
    seconds: float
    behind_s: float  # how much later than planned the last rows were published


# --- selecting ----------------------------------------------------------------------------------


def select(
    spark: SparkSession, lake: str | Path, work: str | Path, selection: Selection, *, speed: float = 1.0
) -> ReplayPlan:
    """Let Spark select and order; the rows and the plan are in the work directory afterwards."""
    from pyspark.sql import functions as f

    if selection.pace_by not in ("appended_at", "timestamp"):
        raise InvalidArgument(f"A replay cannot be paced by {selection.pace_by}.", hint="Use appended_at or timestamp.")
    if speed < 0:
        raise InvalidArgument(f"speed={speed} must not be negative.", hint="0 is as fast as possible.")
    place = local_folder(work, "replay")
    if (place / "plan.json").is_file():
        raise InvalidArgument(
            f"{place} already holds a replay.", hint="Continue it with resume, or choose another directory."
        )
    recorded = open_lake(lake)
    recorded.check()
    topics = [name for name in recorded.topics() if _is_chosen(name, selection.topics)]
    frame = recorded.frame(spark, topics, times=Times.between(selection.start, selection.end))
    written = runs.write(_selected(frame, selection), place / "rows")
    times = f.unix_micros(f.coalesce("appended_at", "timestamp"))
    facts = written.agg(f.count("*"), f.min(times), f.max(times)).first()
    if facts is None or not facts[0]:
        raise InvalidArgument(
            "No recorded message matches the selection.", hint="See what is recorded with `stentor sql`."
        )
    partitions = {row[0]: row[1] + 1 for row in written.groupBy("topic").agg(f.max("partition")).collect()}
    identity = f"replay/{secrets.token_hex(16)}"
    plan = ReplayPlan(
        identity, facts[0], facts[1], facts[2], partitions, speed, selection.into, lasting=True, span=SPAN
    )
    replace_whole(place / "plan.json", msgspec.json.encode(plan), private=True)
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
    if selection.pace_by == "timestamp":
        frame = frame.withColumn("appended_at", f.lit(None).cast("timestamp"))
    return frame


# --- publishing ---------------------------------------------------------------------------------


def publish(
    work: str | Path,
    *,
    url: str | None = None,
    on_progress: Callable[[ReplayProgress], None] = lambda _: None,
    stop: threading.Event | None = None,
) -> int:
    """Publish what was selected, or go on with it; how many rows were published by this call."""
    place = local_folder(work, "replay")
    _load(place / "plan.json", ReplayPlan)
    with (
        alone(place / "lock", f"Another process publishes the replay in {place}."),  # two would mix up its place
        stentor.connect(url, name="replay", timeout=60.0) as client,
    ):
        return _Replay(place, client, on_progress, stop).run()


class _Generation:
    """What a generation holds so far, and whether the next part still belongs to it.

    One of a plan without a span lasts to the end: an older version may have sent any number of rows in it.
    """

    def __init__(self, plan: ReplayPlan) -> None:
        self._span = plan.span
        self._speed = plan.speed
        self._begin_us: int | None = None
        self._rows = self._bytes = self._parts = 0

    def add(self, part: runs.Part) -> None:
        if self._begin_us is None:
            self._begin_us = part.due_us
        self._rows += part.rows.num_rows
        self._bytes += part.rows.nbytes
        self._parts += 1

    def is_over(self, following: runs.Part) -> bool:
        span = self._span
        if span is None or self._begin_us is None:
            return False
        took_s = (following.due_us - self._begin_us) / 1e6 / self._speed if self._speed else 0.0
        return (
            self._rows >= span.rows
            or self._bytes >= span.bytes
            or self._parts >= span.parts
            or (self._speed > 0 and took_s >= span.seconds)
        )


class _Replay:
    def __init__(
        self, place: Path, client: Client, on_progress: Callable[[ReplayProgress], None], stop: threading.Event | None
    ) -> None:
        self._plan = _load(place / "plan.json", ReplayPlan)
        self._path = place
        self._client = client
        self._tell = on_progress
        self._stop = stop
        self._done = _load(place / "place.json", ReplayPlace) if (place / "place.json").is_file() else ReplayPlace()
        self._targets: dict[str, tuple[Any, int]] = {}
        self._began = 0.0
        self._first_us = 0

    def run(self) -> int:
        before = row = self._done.rows
        self._began = time.monotonic()
        self._tell(ReplayProgress(row, self._plan.rows, 0.0, 0.0))
        generation = _Generation(self._plan)
        for part in self._parts(row):
            if self._stop is not None and self._stop.is_set():
                break
            if generation.is_over(part):
                self._checkpoint(row)
                generation = _Generation(self._plan)
            late = self._wait_until(part.due_us)
            self._send(part)
            generation.add(part)
            row += part.rows.num_rows
            self._tell(ReplayProgress(row, self._plan.rows, time.monotonic() - self._began, late))
        self._checkpoint(row)
        self._tell(ReplayProgress(row, self._plan.rows, time.monotonic() - self._began, 0.0))
        return row - before

    def _parts(self, skip: int) -> Iterator[runs.Part]:
        """What is still to be published."""
        row = 0
        for part in runs.read(self._path / "rows", self._tick_us(), self._plan.first_us):
            if row >= skip:
                yield part
            row += part.rows.num_rows
            if row > skip and row - part.rows.num_rows < skip:
                raise InvalidArgument(
                    f"{self._path} was divided differently before.",
                    hint="Start the replay again, with another directory.",
                )
        if row != self._plan.rows:
            raise InvalidArgument(
                f"{self._path} holds {row} rows; {self._plan.rows} were selected.",
                hint="Files are missing there. Start the replay again, with another directory.",
            )

    def _tick_us(self) -> int:
        """What a tick of ours covers of the recorded time; at full speed, what holds so many rows on average."""
        plan = self._plan
        if plan.speed:
            return max(1, int(TICK_S * 1e6 * plan.speed))
        return max(1, int((plan.last_us - plan.first_us) * TICK_ROWS // plan.rows))

    def _wait_until(self, due_us: int) -> float:
        """Sleep until that moment of the recording; how late it is already."""
        if not self._plan.speed:
            return 0.0
        if not self._first_us:
            self._first_us = due_us  # the pace counts from where this run begins
        due = self._began + (due_us - self._first_us) / 1e6 / self._plan.speed
        wait: float = due - time.monotonic()
        if wait > 0:
            (self._stop.wait if self._stop is not None else time.sleep)(wait)
        return max(0.0, -wait)

    # --- sending --------------------------------------------------------------------------------

    def _send(self, part: runs.Part) -> None:
        producer, partitions = self._target(part.topic)
        producer.send_batch(part.rows, partition=part.partition % partitions)

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
                    hint="Replay into a topic with the same number of partitions, so that each keeps its order.",
                )
            self._targets[topic] = (self._producer(topic, name), partitions)
        return self._targets[topic]

    def _producer(self, topic: str, name: str) -> Any:
        # The source's name is part of the identity: two sources may be replayed into one target.
        identity = f"{self._plan.identity}/{topic}"
        return self._client.producer(
            name,
            identity=identity if self._plan.lasting else FormerIdentity(identity),
            secret="",  # whatever the environment says: the plan's identity is the secret
            generation=self._done.generation,
            batch_bytes=4 << 20,
            batch_messages=1_000_000,
        )

    def _checkpoint(self, row: int) -> None:
        """Everything so far is acknowledged: write it down, and begin the next generation."""
        for producer, _ in self._targets.values():
            producer.close()
        self._targets.clear()
        self._done = ReplayPlace(row, self._done.generation + 1)
        replace_whole(self._path / "place.json", msgspec.json.encode(self._done))


def _load(path: Path, kind: Any) -> Any:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError as error:
        raise InvalidArgument(f"There is no replay in {path.parent}.", hint="Select one first.") from error
