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

Spark takes an Arrow batch only if its types and their nullability are exactly its own, and it looks at the first
batch alone; so they are built from Spark's own schema.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from stentor.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

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
}
DEFAULT: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
_ON_THE_WIRE: Final = {"timestamp": 3, "key": 4, "value": 5, "headers": 6}
"""Where a column is in the batches that a subscription yields."""

BATCH_ROWS: Final = 65_536
BATCH_BYTES: Final = 8 << 20
"""Small batches are joined until they are this large: each costs Spark about a tenth of a millisecond."""


def schema_of(names: Iterable[str]) -> str:
    """Column names as a schema in Spark's words."""
    return ", ".join(f"{name} {TYPES[name]}" for name in names)


def check_schema(schema: StructType) -> list[str]:
    """A user's schema may leave columns out; names and types must be those of a topic."""
    names = []
    for field in schema.fields:
        if field.dataType.simpleString() != TYPES.get(field.name):
            raise InvalidArgument(
                f"Column {field.name} {field.dataType.simpleString()} is not a column of a topic.",
                hint=f"A topic has: {schema_of(TYPES)}. Cast or parse after load().",
            )
        names.append(field.name)
    return names


class Shaper:
    """Makes Spark's batches of one partition's rows."""

    def __init__(self, schema: StructType, topic: str, topic_id: int, partition: int) -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        self._schema = to_arrow_schema(schema, timezone="UTC")
        constants = {"topic": topic, "partition": partition, "timestampType": 0, "topicId": topic_id}
        self._makers = [_maker(field, constants) for field in self._schema]

    def batches(self, found: Iterable[Any]) -> Iterator[Any]:
        """Join what is small; columns in Spark's order."""
        gathered: list[Any] = []
        rows = size = 0
        for batch in found:
            gathered.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
            if rows >= BATCH_ROWS or size >= BATCH_BYTES:
                yield self._shaped(gathered)
                gathered, rows, size = [], 0, 0
        if gathered:
            yield self._shaped(gathered)

    def _shaped(self, gathered: list[Any]) -> Any:
        joined = gathered[0] if len(gathered) == 1 else pa.concat_batches(gathered)
        return pa.RecordBatch.from_arrays([make(joined) for make in self._makers], schema=self._schema)


def _maker(field: Any, constants: dict[str, Any]) -> Callable[[Any], Any]:
    name, kind = field.name, field.type
    if name in constants:
        return lambda batch: pa.repeat(pa.scalar(constants[name], kind), batch.num_rows)
    if name == "offset":
        return lambda batch: batch.column(2)
    place = _ON_THE_WIRE[name]
    return lambda batch: _as(batch.column(place), kind)


def _as(column: Any, kind: Any) -> Any:
    return column if column.type.equals(kind) else column.cast(kind)
