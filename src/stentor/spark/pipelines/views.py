"""A topic as one table: its history from the lake, the rest from the brokers, without gap or overlap.

The lake says up to which offset every partition is recorded; the brokers are read from there. Both are looked at once,
when the view is made, so that a recorder may go on meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stentor.errors import OffsetOutOfRange, TopicNotFound
from stentor.spark.connections import SparkConnection
from stentor.spark.offsets import Places, TopicPlace, missing, places_of, to_offset
from stentor.spark.options import to_json
from stentor.spark.pipelines.lake import Lake, open_lake

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from stentor.spark.pipelines.times import Times

COLUMNS: Final = ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]


def topic_view(
    spark: SparkSession,
    topic: str,
    *,
    url: str | None = None,
    lake: str | Path | Lake | None = None,
    times: Times | None = None,
) -> DataFrame:
    """All messages of a topic: those in the lake, then those that only the brokers have.

    With `times` days of the lake that cannot hold such messages are left out; messages of other times may be there.
    """
    place = lake if lake is None or isinstance(lake, Lake) else open_lake(lake)
    live = _live(SparkConnection(url), topic)
    if live is None:
        if place is None or topic not in place.topics():
            raise TopicNotFound(
                f"There is no topic {topic}" + (", neither in the cluster nor in the lake." if place else "."),
                hint="List topics with `stentor topic list`.",
                object=topic,
            )
        return place.frame(spark, [topic], times=times).select(*COLUMNS)
    start, end = live
    if place is None:
        return _broker_frame(spark, topic, start, end, url)
    recorded, ends = place.snapshot(spark, topic, start.id, start.offsets, times)
    start = _continued(topic, start, ends)
    history = recorded.where(f"topic_id = {start.id}").select(*COLUMNS)
    return history.unionByName(_broker_frame(spark, topic, start, end, url))


def _live(connection: SparkConnection, topic: str) -> tuple[TopicPlace, TopicPlace] | None:
    client = connection.client()
    try:
        start = places_of(client.find_offsets([topic], "earliest"))[topic]
        return start, places_of(client.find_offsets([topic], "latest"))[topic]
    except TopicNotFound:
        return None


def _continued(topic: str, start: TopicPlace, ends: dict[int, int]) -> TopicPlace:
    """Where the brokers are read from: where the lake ends."""
    first = {}
    for partition, low in start.offsets.items():
        end = ends.get(partition, low)
        if end < low:
            gone = missing(low, end, start.begins.get(partition, 0))
            raise OffsetOutOfRange(
                f"{topic}/{partition}: the lake ends at {end}, the brokers begin at {low}; {gone} are in neither.",
                hint="Leave the lake out to read what the brokers hold.",
            )
        first[partition] = end
    return TopicPlace(start.id, first)


def _broker_frame(spark: SparkSession, topic: str, start: TopicPlace, end: TopicPlace, url: str | None) -> DataFrame:
    first = {p: min(offset, end.offsets.get(p, offset)) for p, offset in start.offsets.items()}
    last = {p: max(end.offsets.get(p, offset), offset) for p, offset in first.items()}
    places = ({topic: TopicPlace(start.id, offsets)} for offsets in (first, last))
    return between(spark, *places, columns=COLUMNS, url=url)


def between(
    spark: SparkSession,
    start: Places,
    end: Places,
    *,
    columns: list[str],
    url: str | None,
    fail_on_data_loss: bool = True,
) -> DataFrame:
    """What brokers hold between two places of the same topics."""
    reader = spark.read.format("stentor").options(
        subscribe=",".join(sorted(end)),
        startingOffsets=to_json(to_offset(start)),
        endingOffsets=to_json(to_offset(end)),
        columns=",".join(columns),
        failOnDataLoss=fail_on_data_loss,
    )
    return (reader if url is None else reader.option("url", url)).load()
