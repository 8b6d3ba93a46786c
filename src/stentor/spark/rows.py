"""Spark's rows on their way to topics: checked by name and type, and sorted by the partition they belong to.

value       binary or string, needed; null is a message without a value
key         binary or string
headers     array<struct<key: string, value: binary>>
timestamp   timestamp; null or missing: now
topic       string; the option `topic` wins
partition   int; null or missing: by the key, without a key in turn

A table takes key and value, both needed, and timestamp. A null value deletes its key. It ignores version, change and
partition, so that rows of one table can be written to another as they were read.
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
    from collections.abc import Callable, Iterator, Mapping

    from pyspark.sql.types import StructType

_TAKEN: Final = {
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "headers": (TYPES["headers"],),
    "timestamp": ("timestamp",),
    "topic": ("string",),
    "partition": ("int",),
}
_TAKEN_BY_TABLE: Final = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "timestamp": ("timestamp",),
    "version": ("bigint",),
    "change": ("string",),
    "partition": ("int",),
}
_WRITTEN_TO_TABLE: Final = ("key", "value", "timestamp")
_NO_PATH: Final = "^$|^/|/$|//"
"""What a key of a table must not be; as `client.table_copy.check_key` says."""
_MESSAGE: Final = ("timestamp", "key", "value", "headers")


def check_columns(schema: StructType, topic: str | None) -> None:
    """Say before any task runs what cannot be written."""
    _check_types(
        schema,
        "topic",
        _TAKEN,
        " Make one value of several columns with to_json(struct(...)), or use stentor.spark.to_json_value(frame).",
    )
    names = schema.fieldNames()
    if "value" not in names:
        raise InvalidArgument("A topic needs a column `value`.", hint=f"The columns are: {', '.join(names)}.")
    if topic is None and "topic" not in names:
        raise InvalidArgument(
            "No topic is named.",
            hint="Set the option topic, or have a column `topic`. SQL: INSERT INTO … WITH (topic = 'orders') SELECT …",
        )


def check_table_columns(schema: StructType) -> None:
    """The same for rows that go to a table."""
    _check_types(
        schema,
        "table",
        _TAKEN_BY_TABLE,
        " Make a key and one value of several columns with stentor.spark.to_json_value(frame, key='...').",
    )
    for name in ("key", "value"):
        if name not in schema.fieldNames():
            raise InvalidArgument(
                f"A table needs a column `{name}`.", hint=f"The columns are: {', '.join(schema.fieldNames())}."
            )


def _check_types(schema: StructType, what: str, taken: Mapping[str, tuple[str, ...]], more: str) -> None:
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if field.name not in taken:
            raise InvalidArgument(
                f"Column {field.name} cannot be written to a {what}.",
                hint=f"A {what} accepts {', '.join(taken)}.{more}",
            )
        if kind not in taken[field.name]:
            raise InvalidArgument(
                f"Column {field.name} is {kind}; {' or '.join(taken[field.name])} is needed.",
                hint=f"Cast it first, for example frame.withColumn('{field.name}',"
                f" col('{field.name}').cast('{taken[field.name][-1]}')).",
            )


class Router:
    """Sorts rows by topic and partition, keeping their order in each."""

    def __init__(self, topic: str | None, partitions_of: Callable[[str], int], task: int = 0) -> None:
        self._topic = topic
        self._partitions_of = partitions_of
        self._where = f"Spark's partition {task}"
        self._rows = 0  # before the batch at hand
        self._turn = 0

    def parts(self, batch: Any) -> Iterator[tuple[str, int, Any]]:
        """(topic, partition, rows as messages) for all that a batch holds; LimitExceeded before the first of them."""
        now_us = time.time_ns() // 1000
        check_sizes(batch, self._where, self._rows)
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


class TableRouter(Router):
    """Sorts the rows of a table by the partition of their key, and refuses keys that no table takes."""

    def parts(self, batch: Any) -> Iterator[tuple[str, int, Any]]:
        """As of any topic; InvalidArgument names a row with a wrong key before any row of its batch is sent."""
        rows = batch.select([name for name in _WRITTEN_TO_TABLE if name in batch.schema.names])
        self._check_keys(rows.column("key"))
        yield from super().parts(rows)

    def _check_keys(self, keys: Any) -> None:
        if keys.null_count:
            raise InvalidArgument(
                f"{self._place(pc.index(pc.is_null(keys), True).as_py())} has no key.",
                hint="Fill the column `key`, or leave such rows out.",
            )
        try:
            texts = keys.cast(pa.string())
        except pa.ArrowInvalid as error:
            raise InvalidArgument(
                f"A key of {self._where} is not UTF-8.",
                hint="Encode it, for example with hex(key).",
            ) from error
        row = pc.index(pc.match_substring_regex(texts, _NO_PATH), True).as_py()
        if row >= 0:
            raise InvalidArgument(
                f"{self._place(row)} has the key {texts[row].as_py()[:80]!r}, which no table takes.",
                hint="Use a path such as 'app/limits/rate': words with slashes between.",
            )

    def _place(self, row: int) -> str:
        return f"Row {self._rows + row} of {self._where}, counted from 0,"


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
