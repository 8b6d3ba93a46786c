"""The columns of a topic as Spark sees them, and how rows of the wire become them.

    key             binary
    value           binary
    topic           string
    partition       int
    offset          bigint
    timestamp       timestamp
    timestampType   int            always 0: the time that the producer gave
    headers         array<struct<key: string, value: binary>>     only with includeHeaders or in `columns`
    topicId         bigint         only in `columns`: tells a topic from a later one of the same name
    appendedAt      timestamp      only in `columns`: when the broker took the message, by its own clock

Spark takes an Arrow batch only if its types and their nullability are exactly its own, and it looks at the first
batch alone; so they are built from Spark's own schema.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from stentor.client.stamped import APPENDED_AT
from stentor.client.tables import offsets
from stentor.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from pyspark.sql.types import StructType

TYPES: Final = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
    "topicId": "bigint",
    "appendedAt": "timestamp",
}
TABLE_TYPES: Final = {
    "key": "string",
    "value": "binary",
    "version": "bigint",
    "timestamp": "timestamp",
    "change": "string",
    "partition": "int",
}
TABLE_DEFAULT: Final = ("key", "value", "version", "timestamp", "change")
"""The columns of a table that is read by key (`spark.keyed`)."""
DEFAULT: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
TYPED: Final = "typed"
"""The word that stands for the columns of a topic's own schema (`spark.typed`)."""

_TABLE: Final = "stentor.options"
BATCH_ROWS: Final = 65_536
BATCH_BYTES: Final = 8 << 20
"""Small batches are joined until they are this large: each one costs Spark something, however few rows it has."""


def schema_of(names: Iterable[str], types: Mapping[str, str] = TYPES) -> str:
    """Column names as a schema in Spark's words."""
    return ", ".join(f"{name} {types[name]}" for name in names)


def table_schema(names: Iterable[str], options: dict[str, str], columns: Mapping[str, str] = TYPES) -> StructType:
    """The schema of a table in Spark's catalog. Its first column carries the options.

    Spark keeps the options of CREATE TABLE, but hands none of them to a Python source that reads or writes the table;
    of what it keeps, a source gets only the columns and their metadata.
    """
    from pyspark.sql import types

    header = types.StructType().add("key", types.StringType()).add("value", types.BinaryType())
    kinds = {
        "binary": types.BinaryType(),
        "string": types.StringType(),
        "int": types.IntegerType(),
        "bigint": types.LongType(),
        "timestamp": types.TimestampType(),
        TYPES["headers"]: types.ArrayType(header),
    }
    schema = types.StructType([types.StructField(name, kinds[columns[name]]) for name in names])
    return with_options(schema, options)


def with_options(schema: StructType, options: dict[str, str]) -> StructType:
    """The same schema, with the options of its table in its first column."""
    schema.fields[0].metadata = {_TABLE: json.dumps(options, sort_keys=True)}
    return schema


def options_in(schema: StructType) -> dict[str, str]:
    """The options that a table's columns carry; of any other schema none."""
    found = [field.metadata[_TABLE] for field in schema.fields if field.metadata and _TABLE in field.metadata]
    return json.loads(found[0]) if found else {}


def check_schema(schema: StructType, types: Mapping[str, str] = TYPES) -> None:
    """A user's schema may leave columns out; names and types must be those of a topic, or of a table."""
    what = "topic" if types is TYPES else "table"
    for field in schema.fields:
        if field.dataType.simpleString() != types.get(field.name):
            raise InvalidArgument(
                f"Column {field.name} {field.dataType.simpleString()} is not a column of a {what}.",
                hint=f"A {what} has: {schema_of(types, types)}. Cast or parse after load().",
            )


class Shaper:
    """Makes Spark's batches of one partition's rows, of those columns that are asked for."""

    def __init__(self, schema: StructType, topic: str, topic_id: int, partition: int) -> None:
        self._schema = spark_arrow_schema(schema)
        constants = {"topic": topic, "partition": partition, "timestampType": 0, "topicId": topic_id}
        self._makers = [_maker(field, constants) for field in self._schema]

    def batches(self, found: Iterable[tuple[int, Any]]) -> Iterator[Any]:
        """Join what is small; columns in Spark's order."""
        gathered: list[tuple[int, Any]] = []
        rows = size = 0
        for first, batch in found:
            gathered.append((first, batch))
            rows += batch.num_rows
            size += batch.get_total_buffer_size()  # nbytes takes as long as decoding the batch
            if rows >= BATCH_ROWS or size >= BATCH_BYTES:
                yield self._shaped(gathered)
                gathered, rows, size = [], 0, 0
        if gathered:
            yield self._shaped(gathered)

    def _shaped(self, gathered: list[tuple[int, Any]]) -> Any:
        return pa.RecordBatch.from_arrays([make(gathered) for make in self._makers], schema=self._schema)


def spark_arrow_schema(schema: StructType) -> Any:
    """The types that Spark expects of Arrow for this schema."""
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        return to_arrow_schema(schema, timezone="UTC")
    except TypeError:  # before 4.2 it was UTC without a word
        return to_arrow_schema(schema)


def _maker(field: Any, constants: dict[str, Any]) -> Callable[[list[tuple[int, Any]]], Any]:
    name, kind = field.name, field.type
    if name in constants:
        return _constant(pa.scalar(constants[name], kind))
    if name == "offset":
        return lambda gathered: _joined([offsets(first, rows) for first, rows in _runs(gathered)])
    stored = APPENDED_AT if name == "appendedAt" else name
    return lambda gathered: _as(_joined([batch.column(stored) for _, batch in gathered]), kind)


def _constant(value: Any) -> Callable[[list[tuple[int, Any]]], Any]:
    """A column that is the same in every row; kept for the next batch, which is mostly as long."""
    made: list[Any] = [pa.repeat(value, 0)]

    def make(gathered: list[tuple[int, Any]]) -> Any:
        rows = sum(batch.num_rows for _, batch in gathered)
        if len(made[0]) < rows:
            made[0] = pa.repeat(value, rows)
        return made[0].slice(0, rows)

    return make


def _runs(gathered: list[tuple[int, Any]]) -> list[tuple[int, int]]:
    """(first offset, rows) of batches that follow each other; normally all of them do."""
    runs: list[tuple[int, int]] = []
    for first, batch in gathered:
        if runs and sum(runs[-1]) == first:
            runs[-1] = (runs[-1][0], runs[-1][1] + batch.num_rows)
        else:
            runs.append((first, batch.num_rows))
    return runs


def _joined(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def _as(column: Any, kind: Any) -> Any:
    return column if column.type.equals(kind) else column.cast(kind)
