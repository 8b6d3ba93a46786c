"""Reading: the driver plans ranges of offsets, tasks read them as Arrow batches.

A range is read up to its end, however long that takes a broker that has failed over meanwhile: the end was committed
when it was planned, so it comes. Readers are pickled to the tasks: they carry options only.
"""

from __future__ import annotations

import functools
import gc
import logging
import time
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader

from stentor.client.exact import read_exactly
from stentor.errors import InvalidArgument, OffsetOutOfRange, StentorError, TopicNotFound
from stentor.memory import keep_freed_memory
from stentor.spark import keyed, offsets
from stentor.spark.columns import Shaper
from stentor.spark.errors import plainly
from stentor.spark.keyed import TableShaper
from stentor.spark.offsets import OffsetRange, Places
from stentor.spark.topics import SparkTopics
from stentor.spark.typed import RowShaper

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, SupportsTriggerAvailableNow
except ImportError:  # before 4.2 Spark has no read limits: a trigger takes all there is
    ReadAllAvailable = ReadMaxRows = None  # type: ignore[assignment,misc]

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Stands in for what this Spark does not know."""


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql.types import StructType

    from stentor.spark.options import SparkReadOptions
    from stentor.wire.schemas import SchemaColumn

logger = logging.getLogger(__name__)

POLL_S: Final = 0.004
POLL_S_MAX: Final = 1.0
POLL_SHARE: Final = 0.05
"""Looking for news gets rarer while there are none: an idle stream should cost next to nothing. The pause is this share
of the time since the last news, so that what comes after some silence waits for a twentieth of that silence at most."""
LONG_POLL_S: Final = 0.5
"""An idle stream is asked for its end a hundred times a second; better to answer when there is something."""


@functools.cache
def _settle() -> None:
    """Once in each of Spark's Python workers, which collects garbage after every task, however much is loaded."""
    if TaskContext.get() is not None:
        gc.freeze()
        keep_freed_memory()


class _RangeReader:
    """Reads a range of one partition; in a task."""

    _is_snapshot = False
    """Whether a table is read as the latest row of each key, or as its changes."""

    def __init__(self, options: SparkReadOptions, schema: StructType, typed: list[SchemaColumn] | None = None) -> None:
        self._options = options
        self._schema = schema
        self._typed = typed  # the topic's own schema, if its rows are read

    def read(self, partition: Any) -> Iterator[Any]:
        """Arrow batches of a range."""
        if not isinstance(partition, OffsetRange):
            return  # Spark's own stand-in, when there is nothing to read
        _settle()
        try:
            yield from self._shaper(partition).batches(self._rows(partition))
        except StentorError as error:
            raise error.with_traceback(None) from None

    def _shaper(self, part: OffsetRange) -> Shaper | RowShaper | TableShaper:
        if self._options.table is not None:
            return TableShaper(self._schema, part.partition, self._options.subtree, snapshot=self._is_snapshot)
        if self._typed is None:
            return Shaper(self._schema, part.topic, part.topic_id, part.partition)
        return RowShaper(self._schema, self._typed, part.topic, part.partition)

    def _rows(self, part: OffsetRange) -> Iterator[tuple[int, Any]]:
        start = part.start
        while start < part.end:
            try:
                for first, batch in self._opened(part, start):
                    start = first + batch.num_rows
                    yield first, batch
                start = part.end
            except OffsetOutOfRange as error:
                if self._options.fail_on_data_loss:
                    raise _lost(part, start, error) from error
                logger.warning("%s: offsets from %d on were deleted; reading continues after them.", part, start)
                start = max(start + 1, int(error.detail.get("start", part.end)))

    def _opened(self, part: OffsetRange, start: int) -> Iterator[tuple[int, Any]]:
        client = self._options.connection.client()
        try:
            found = client.find_offsets([part.topic], start)[part.topic]
        except TopicNotFound as error:
            if self._options.fail_on_data_loss:
                raise offsets.deleted(part.topic) from error
            logger.warning("%s: the topic was deleted.", part)
            return
        if found.id != part.topic_id:
            raise offsets.recreated(part.topic)
        if self._options.table is not None and self._is_snapshot:
            read = read_exactly(client, part.topic, part.partition, start, part.end)
        else:
            read = client.read(part.topic, partition=part.partition, start=start, end=part.end)
        stamped = self._typed is None and "appendedAt" in self._schema.fieldNames()
        yield from read.offset_batches(appended_at=stamped)


def _lost(part: OffsetRange, start: int, error: StentorError) -> StentorError:
    return OffsetOutOfRange(
        f"{part.topic}/{part.partition}: offset {start} was deleted before it was read: {error.message}",
        hint="Let the topic keep its messages longer, or set failOnDataLoss to false to continue without them.",
        object=f"{part.topic}/{part.partition}",
    )


class TopicReader(_RangeReader, DataSourceReader):
    """A bounded read: what the topics held when it was planned, or the snapshot of a table then."""

    _is_snapshot = True

    @plainly
    def partitions(self) -> Sequence[OffsetRange]:
        options = self._options
        topics = SparkTopics(options)
        start = topics.resolved(options.start, "earliest", "startingOffsets")
        end = self._end(topics)
        ranges = offsets.ranges_between(start, {name: end[name] for name in end if name in start})
        if options.table is not None:
            return ranges  # what is the latest row of a key is only known to who reads the whole partition
        return offsets.divided(ranges, options.rows_per_partition_max, options.partitions_min)

    def _end(self, topics: SparkTopics) -> Places:
        options = self._options
        if options.table is None or options.sequence is None:
            return topics.resolved(options.end, "latest", "endingOffsets")
        wanted = keyed.sequence_end(options.table, options.sequence, topics.at("latest")[options.table])
        return topics.resolved(wanted, "latest", "sequence")


class TopicStreamReader(_RangeReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream: from the offsets of its checkpoint on."""

    def __init__(self, options: SparkReadOptions, schema: StructType, typed: list[SchemaColumn] | None = None) -> None:
        super().__init__(options, schema, typed)
        if ReadMaxRows is None and options.rows_per_trigger_max:
            raise InvalidArgument(
                "maxOffsetsPerTrigger needs PySpark 4.2 or newer.", hint="pip install 'pyspark>=4.2', or leave it out."
            )
        self._topics = SparkTopics(options)
        self._last: Places | None = None  # the end that was told last
        self._final: Places | None = None  # Trigger.AvailableNow: where to stop
        self._waits_since: float | None = None  # for enough rows
        self._news_at = self._looked_at = time.monotonic()

    @plainly
    def initialOffset(self) -> dict[str, Any]:
        return offsets.to_offset(self._topics.resolved(self._options.start, "latest", "startingOffsets"))

    def getDefaultReadLimit(self) -> Any:
        most = self._options.rows_per_trigger_max
        return ReadAllAvailable() if most is None else ReadMaxRows(most)

    @plainly
    def prepareForTriggerAvailableNow(self) -> None:
        """Everything that is there now will be read, and no more."""
        self._final = self._topics.at("latest", gone_ok=True)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """For the query's progress: how far behind it is."""
        return None if self._last is None else offsets.to_offset(self._last)

    @plainly
    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        """The end of what can be read now; waits a moment while there is nothing new."""
        before = {} if start is None else offsets.from_offset(start)
        deadline = time.monotonic() + LONG_POLL_S
        while True:
            if start is not None and self._final is None:
                self._pause()
            end = self._end(before)
            before = self._lifted(before, end)
            begin = self._begin(before, end)
            rows = sum(part.rows for part in offsets.ranges_between(begin, end))
            if rows and self._is_enough(rows):
                break
            if start is None or self._final is not None or time.monotonic() > deadline:
                return offsets.to_offset(before or end)
        self._news_at = time.monotonic()
        most = getattr(limit, "max_rows", None)
        return offsets.to_offset(end if most is None else offsets.limited(begin, end, most))

    def _pause(self) -> None:
        """Wait until the next look is due, also when Spark asks again at once."""
        pause = min(max(POLL_S, POLL_SHARE * (self._looked_at - self._news_at)), POLL_S_MAX)
        wait = self._looked_at + pause - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        self._looked_at = time.monotonic()

    def _end(self, before: Places) -> Places:
        """The committed ends, never behind what was told: another member may know less at the moment."""
        found = self._final if self._final is not None else self._topics.at("latest", gone_ok=True)
        offsets.check_same(before, found)
        self._check_gone(before, found)
        end = dict(found)
        for name, topic in before.items():
            if name in found:
                known = {p: max(o, topic.offsets.get(p, 0)) for p, o in found[name].offsets.items()}
                end[name] = offsets.TopicPlace(topic.id, topic.offsets | known, found[name].begins)
        self._last = end
        return end

    def _check_gone(self, before: Places, found: Places) -> None:
        gone = sorted(before.keys() - found.keys())
        if gone and self._options.fail_on_data_loss:
            raise offsets.deleted(gone[0])

    def _lifted(self, before: Places, found: Places) -> Places:
        """Go on where a memory topic began again: offsets below say nothing of how many messages there were."""
        for name, partition in offsets.lost(before, found):
            stood, begins = before[name].offsets[partition], found[name].begins[partition]
            if self._options.fail_on_data_loss:
                raise OffsetOutOfRange(
                    f"{name}/{partition} is kept in memory and was lost with its brokers. It began again at offset"
                    f" {begins}; this query stands at {stood}. Nobody knows how many messages it misses.",
                    hint="Set failOnDataLoss to false to continue without them.",
                    object=f"{name}/{partition}",
                )
            logger.warning(
                "%s/%d was lost with its brokers' memory. Reading goes on from offset %d instead of %d."
                " Nobody knows how many messages are missing.",
                *(name, partition, begins, stood),
            )
        return offsets.lifted(before, found)

    def _begin(self, before: Places, end: Places) -> Places:
        """Topics and partitions that came later are read from their first offset on."""
        later = offsets.unnamed(before, end)
        return offsets.completed(before, self._topics.at("earliest", later)) if later else before

    def _is_enough(self, rows: int) -> bool:
        least = self._options.rows_per_trigger_min
        if least is None or self._final is not None or rows >= least:
            self._waits_since = None
            return True
        if self._waits_since is None:
            self._waits_since = time.monotonic()
        if time.monotonic() - self._waits_since >= self._options.trigger_delay_s:
            self._waits_since = None
            return True
        return False

    @plainly
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[OffsetRange]:
        before, after = offsets.from_offset(start), offsets.from_offset(end)
        ranges = offsets.ranges_between(self._begin(before, after), after)
        if offsets.crosses_loss(ranges):  # as Spark keeps a place, it does not say where topics began again
            before = self._lifted(before, self._topics.at("earliest", sorted(after), gone_ok=True))
            ranges = offsets.ranges_between(self._begin(before, after), after)
        return offsets.divided(ranges, self._options.rows_per_partition_max, self._options.partitions_min)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark keeps the offsets itself, in its checkpoint. A group's positions are only told, so that lag tools see
        them: a failure is logged, and stops no query. Spark says this one micro-batch late.
        """
        group = self._options.group
        if not group:
            return
        for name, place in offsets.from_offset(end).items():
            try:
                self._options.connection.client().move_cursor(name, group, place.offsets)
            except StentorError as error:
                logger.warning("could not tell the progress in %s to group %s: %s", name, group, error)

    def stop(self) -> None:
        """The client stays: it belongs to the process."""
