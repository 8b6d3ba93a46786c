"""Record: topics into a lake, once or for ever, each message exactly once.

Every round looks how far the lake is, reads from there to the committed ends, and adds files and new ends to the lake
in one step. A round that is interrupted at any point is as if it had not been.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Final

import msgspec

from stentor.errors import DeadlineExceeded, NotReady, OffsetOutOfRange
from stentor.spark import offsets
from stentor.spark.connections import SparkConnection
from stentor.spark.offsets import Places, TopicPlace, places_of
from stentor.spark.pipelines.lake import Lake, open_lake
from stentor.spark.pipelines.views import COLUMNS, between

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from stentor.spark.pipelines.lake import Ends

logger = logging.getLogger(__name__)

_MARK_S: Final = 10.0
"""How long a round waits to tell the brokers how far it is: they keep messages for longer if they do not hear it."""

ROUND_ROWS: Final = 5_000_000
COMPACT_EVERY_ROUNDS: Final = 20
_DAY_US: Final = 86_400_000_000
_DAY: Final = (
    f"date_from_unix_date(int((unix_micros(timestamp) - pmod(unix_micros(timestamp), {_DAY_US})) div {_DAY_US}))"
)
"""In UTC. Spark's `to_date` would take the session's time zone."""


class Round(msgspec.Struct, frozen=True):
    """What one round recorded."""

    number: int
    rows: int
    file_bytes: int
    seconds: float
    waiting_rows: int  # published, but not recorded yet; some of them may be compacted away


def record(
    spark: SparkSession,
    topics: list[str],
    lake: str | Path | Lake,
    *,
    url: str | None = None,
    kind: str | None = None,
    once: bool = True,
    interval_s: float = 10.0,
    round_rows: int = ROUND_ROWS,
    fail_on_data_loss: bool = True,
    on_round: Callable[[Round], None] = lambda _: None,
    stop: threading.Event | None = None,
) -> int:
    """Record topics and patterns; how many messages were recorded.

    With `once` everything that is committed now, however much is published meanwhile; otherwise until `stop` is set.
    """
    place = lake if isinstance(lake, Lake) else open_lake(lake, kind)
    recorder = _Recorder(spark, topics, place, SparkConnection(url), round_rows, fail_on_data_loss=fail_on_data_loss)
    stopped = stop or threading.Event()
    recorded = 0
    with place.writing():
        if once:
            recorder.stop_at_present()
        while not stopped.is_set():
            done = recorder.round()
            if done is not None:
                recorded += done.rows
                on_round(done)
                if not once and done.number % COMPACT_EVERY_ROUNDS == 0:
                    place.compact(spark)
            elif once:
                break
            else:
                stopped.wait(interval_s)
    return recorded


class _Recorder:
    def __init__(
        self,
        spark: SparkSession,
        topics: list[str],
        lake: Lake,
        connection: SparkConnection,
        round_rows: int,
        *,
        fail_on_data_loss: bool,
    ) -> None:
        self._spark = spark
        self._topics = topics
        self._lake = lake
        self._connection = connection
        self._round_rows = round_rows
        self._fail_on_data_loss = fail_on_data_loss
        self._number = 0
        self._final: Places | None = None
        self._marked: Places = {}

    def stop_at_present(self) -> None:
        """What is published from now on is not recorded any more."""
        self._final = self._latest()

    def _latest(self) -> Places:
        return places_of(self._connection.client().find_offsets(self._topics, "latest"))

    def round(self) -> Round | None:
        """Record what is there now, up to a round's rows; return None if nothing is."""
        began = time.monotonic()
        client = self._connection.client()
        latest = self._latest() if self._final is None else self._final
        start = self._start(places_of(client.find_offsets(self._topics, "earliest")))
        start = {name: topic for name, topic in start.items() if name in latest}
        latest = {name: latest[name] for name in start}
        waiting = _rows(start, latest)
        if not waiting:
            self._mark(start)  # a round that was interrupted may not have told
            return None
        end = offsets.limited(start, latest, self._round_rows)
        added = self._lake.add(self._read(start, end), _ends(start, end), planned=self._planned(start, end))
        self._number += 1
        self._mark(end)
        return Round(self._number, added.rows, added.file_bytes, time.monotonic() - began, waiting - _rows(start, end))

    def _planned(self, start: Places, end: Places) -> int | None:
        """Return how many rows there must be; None where offsets may have no message any more, or never had one."""
        client = self._connection.client()
        settings = [client.find_topic(name).settings for name in start]
        gapless = self._fail_on_data_loss and all(each.kind == "stream" and not each.compacted for each in settings)
        return _rows(start, end) if gapless else None

    def _start(self, earliest: Places) -> Places:
        """Where the lake ends; what it never had, from the first offset on."""
        found: Places = {}
        for name, topic in earliest.items():
            known = self._lake.ends(name, topic.id, topic.offsets)
            first = {}
            for partition, low in topic.offsets.items():
                end = known.get(partition, low)
                if end < low and self._fail_on_data_loss:
                    gone = offsets.missing(low, end, topic.begins.get(partition, 0))
                    raise OffsetOutOfRange(
                        f"{name}/{partition} begins at {low}; the lake ends at {end}:"
                        f" {gone} were deleted before they were recorded.",
                        hint="Record more often, let the topic keep unrecorded messages (keep_unrecorded), or continue"
                        " without them with --allow-data-loss.",
                    )
                first[partition] = max(end, low)
            found[name] = TopicPlace(topic.id, first)
        return found

    def _read(self, start: Places, end: Places) -> DataFrame:
        from pyspark.sql import functions as f

        frame = between(
            self._spark,
            start,
            end,
            columns=[*COLUMNS, "topicId", "appendedAt"],
            url=self._connection.url,
            fail_on_data_loss=self._fail_on_data_loss,  # retention may also come between planning and reading
        )
        frame = frame.withColumnsRenamed({"topicId": "topic_id", "appendedAt": "appended_at"})
        return frame.withColumn("date", f.expr(_DAY))

    def _mark(self, recorded: Places) -> None:
        """Tell the brokers, where a topic's retention waits for it."""
        client = self._connection.client()
        for name, topic in recorded.items():
            if self._marked.get(name) != topic and client.describe_topic(name).settings.keep_unrecorded:
                try:
                    client.mark_recorded(name, topic.offsets, timeout=_MARK_S)
                except (NotReady, DeadlineExceeded) as error:  # the cluster is being upgraded, or has lost brokers
                    logger.warning("topics keep what is recorded already; the next round says so again: %s", error)
                    return
            self._marked[name] = topic


def _rows(start: Places, end: Places) -> int:
    return sum(part.rows for part in offsets.ranges_between(start, end))


def _ends(start: Places, end: Places) -> Ends:
    """What the lake is to remember: only partitions in which something was recorded."""
    ends: Ends = {}
    for part in offsets.ranges_between(start, end):
        ends.setdefault(part.topic, {}).setdefault(part.topic_id, {})[part.partition] = part.end
    return ends
