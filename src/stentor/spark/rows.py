"""Spark's rows on their way to topics: checked by name and type, and sorted by the partition they belong to.

value       binary or string, needed; null is a message without a value
key         binary or string
headers     array<struct<key: string, value: binary>>
timestamp   timestamp; null or missing: now
topic       string; the option `topic` wins
partition   int; null or missing: by the key, without a key in turn
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from stentor.client.tables import check_sizes, conform
from stentor.core.names import check_topic_name
from stentor.errors import InvalidArgument
from stentor.spark.columns import TYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql.types import StructType

_TAKEN: Final = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "headers": (TYPES["headers"],),
    "timestamp": ("timestamp",),
    "topic": ("string",),
    "partition": ("int",),
}
_MESSAGE: Final = ("timestamp", "key", "value", "headers")


def check_columns(schema: StructType, topic: str | None) -> None:
    """Say before any task runs what cannot be written."""
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if field.name not in _TAKEN:
            raise InvalidArgument(
                f"Column {field.name} cannot be written to a topic.",
                hint=f"A topic accepts {', '.join(_TAKEN)}. Make one value of several columns with"
                " to_json(struct(...)), or use stentor.spark.to_json_value(frame).",
            )
        if kind not in _TAKEN[field.name]:
            raise InvalidArgument(
                f"Column {field.name} is {kind}; {' or '.join(_TAKEN[field.name])} is needed.",
                hint=f"Cast it first, for example frame.withColumn('{field.name}',"
                f" col('{field.name}').cast('{_TAKEN[field.name][-1]}')).",
            )
    names = schema.fieldNames()
    if "value" not in names:
        raise InvalidArgument("A topic needs a column `value`.", hint=f"The columns are: {', '.join(names)}.")
    if topic is None and "topic" not in names:
        raise InvalidArgument(
            "No topic is named.",
            hint="Set the option topic, or have a column `topic`. SQL: INSERT INTO … WITH (topic = 'orders') SELECT …",
        )


class Router:
    """Sorts rows by topic and partition, keeping their order in each."""

    def __init__(self, topic: str | None, partitions_of: Callable[[str], int], task: int = 0) -> None:
        self._topic = topic
        self._partitions_of = partitions_of
        self._task = task
        self._rows = 0  # before the batch at hand
        self._turn = 0

    def parts(self, batch: Any) -> Iterator[tuple[str, int, Any]]:
        """(topic, partition, rows as messages) for all that a batch holds; LimitExceeded before the first of them."""
        now_us = time.time_ns() // 1000
        check_sizes(batch, f"Spark's partition {self._task}", self._rows)
        self._rows += batch.num_rows
        for topic, rows in self._by_topic(batch):
            messages = conform(_message_columns(rows, now_us), now_us)
            yield from ((topic, *part) for part in self._by_partition(topic, rows, messages))

    def _by_topic(self, batch: Any) -> Iterator[tuple[str, Any]]:
        if self._topic is not None:
            yield self._topic, batch
            return
        column = batch.column("topic")
        if column.null_count:
            raise InvalidArgument("A row's topic is null.", hint="Set the option topic, or fill the column `topic`.")
        for topic in pc.unique(column).to_pylist():
            check_topic_name(topic)
            yield topic, batch.filter(pc.equal(column, topic))

    def _by_partition(self, topic: str, rows: Any, messages: Any) -> Iterator[tuple[int, Any]]:
        count = self._partitions_of(topic)
        choices = self._choices(rows, count)
        ends = pc.min_max(choices)
        least, most = ends["min"].as_py(), ends["max"].as_py()
        if least is None:
            return  # no rows
        if least < 0 or most >= count:
            raise InvalidArgument(
                f"A row names partition {least if least < 0 else most}; topic {topic} has {count}, counted from 0.",
                hint="Leave out the column `partition` to choose by key.",
            )
        if least == most:
            yield least, messages
            return
        order = pc.array_sort_indices(choices)  # stable: rows of one partition stay in their order
        found, begin = messages.take(order), 0
        sizes = {entry["values"]: entry["counts"] for entry in pc.value_counts(choices).to_pylist()}
        for partition in sorted(sizes):
            yield partition, found.slice(begin, sizes[partition])
            begin += sizes[partition]

    def _choices(self, rows: Any, count: int) -> Any:
        """The partition of every row: the one it names, else by its key, else all those of a batch in turn."""
        self._turn += 1
        turn = pa.scalar(self._turn % count, pa.int32())
        names = rows.schema.names
        chosen = rows.column("partition") if "partition" in names else pa.nulls(len(rows), pa.int32())
        if chosen.null_count and "key" in names and count > 1:
            chosen = pc.coalesce(chosen, _by_key(rows.column("key"), count))
        return pc.fill_null(chosen, turn)


def _by_key(column: Any, count: int) -> Any:
    keys = column.cast(pa.binary()).to_pylist()
    return pa.array([None if key is None else crc32(key) % count for key in keys], pa.int32())


def _message_columns(rows: Any, now_us: int) -> Any:
    kept = rows.select([name for name in _MESSAGE if name in rows.schema.names])
    if "timestamp" not in kept.schema.names or not kept.column("timestamp").null_count:
        return kept
    place, column = kept.schema.names.index("timestamp"), kept.column("timestamp")
    now = pa.scalar(now_us, pa.int64()).cast(column.type)
    return kept.set_column(place, "timestamp", pc.fill_null(column, now))
