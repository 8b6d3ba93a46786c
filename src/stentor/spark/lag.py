"""How far a streaming query is behind its topics, from the progress that Spark reports."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from stentor.spark.offsets import Places, from_offset

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import QueryProgressEvent, StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery


class Lag(msgspec.Struct, frozen=True):
    """Messages that were committed when the last micro-batch was planned, and are not processed yet."""

    partitions: dict[str, int]  # by "topic/partition"
    minOffsetsBehindLatest: int  # noqa: N815 - the names that Spark's Kafka source has
    maxOffsetsBehindLatest: int  # noqa: N815
    avgOffsetsBehindLatest: float  # noqa: N815


def lag(query: StreamingQuery | StreamingQueryProgress | QueryProgressEvent) -> Lag:
    """The lag of a query at its last progress; zeros before the first one.

    A StreamingQueryListener has no query at hand: give the event of its `onQueryProgress`.
    """
    known: Any = query
    progress = known.lastProgress if hasattr(known, "lastProgress") else getattr(known, "progress", known)
    behind: dict[str, int] = {}
    for source in progress.sources if progress is not None else []:
        behind |= _behind(_places(source.endOffset), _places(source.latestOffset))
    values = list(behind.values()) or [0]
    return Lag(behind, min(values), max(values), sum(values) / len(values))


def _places(offset: Any) -> Places:
    """Progress has offsets as JSON; other sources have others."""
    try:
        return from_offset(json.loads(offset) if isinstance(offset, str) else offset or {})
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}


def _behind(end: Places, latest: Places) -> dict[str, int]:
    return {
        f"{name}/{partition}": max(0, offset - end[name].offsets.get(partition, offset))
        for name, topic in latest.items()
        if name in end
        for partition, offset in topic.offsets.items()
    }
