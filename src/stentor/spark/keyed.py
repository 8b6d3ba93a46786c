"""Tables in Spark: with the option `table` a table is read by key.

    spark.read.format("stentor").option("table", "shop.config").load()           one row per key: a snapshot
    spark.readStream.format("stentor").option("table", "shop.config").load()     one row per change: the change feed

    key         string
    value       binary         null in the change feed: the key was deleted
    version     bigint         grows with every change of the key
    timestamp   timestamp      when the change was made, by the clock of who made it
    change      string         put or delete; in a snapshot always put
    partition   int            only in `columns`

Both have the same columns, because Spark asks for them before it says whether this is a stream. Changes that were
refused are in the log, and are passed over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from stentor.client import latest_rows
from stentor.errors import InvalidArgument, TopicNotFound
from stentor.spark import columns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql.types import StructType

    from stentor.client.sync_client import Client
    from stentor.spark.offsets import TopicPlace
    from stentor.spark.options import Given
    from stentor.wire.messages import TopicInfo

PUT: Final = "put"
DELETE: Final = "delete"


def types_of(given: Mapping[str, str]) -> Mapping[str, str]:
    """Which columns there are: those of a table, if the options name one."""
    return columns.TABLE_TYPES if any(name.lower() == "table" for name in given) else columns.TYPES


def check_table(client: Client, name: str) -> TopicInfo:
    """The table of this name; InvalidArgument for a topic that is none."""
    try:
        found = client.describe_topic(name)
    except TopicNotFound as error:
        raise TopicNotFound(
            f"There is no table {name}.", hint=f"Make it with `stentor table create {name}`.", object=name
        ) from error
    if found.settings.kind != "table":
        raise InvalidArgument(
            f"Topic {name} is no table.",
            hint="Use the option subscribe to read it, and topic to write to it. Make tables with"
            " `stentor table create`.",
            object=name,
        )
    return found


def sequence_end(name: str, sequence: tuple[int, ...], latest: TopicPlace) -> Given:
    """A sequence as offsets; InvalidArgument if it is of a table with another number of partitions."""
    if len(sequence) != len(latest.offsets):
        raise InvalidArgument(
            f"Table {name} has {len(latest.offsets)} partitions; the sequence has {len(sequence)}.",
            hint="Use the sequence of a copy of the same table.",
            object=name,
        )
    return {name: dict(enumerate(sequence))}


class TableShaper:
    """Makes Spark's batches of one partition of a table: all changes, or the latest row of each key."""

    def __init__(self, schema: StructType, partition: int, subtree: str, *, snapshot: bool) -> None:
        self._schema = columns.spark_arrow_schema(schema)
        self._partition = partition
        self._subtree = subtree
        self._snapshot = snapshot

    def batches(self, found: Iterable[tuple[int, Any]]) -> Iterator[Any]:
        """Columns in Spark's order."""
        rows = latest_rows.changes(found, subtree=self._subtree, values="value" in self._schema.names)
        if not self._snapshot:
            yield from map(self._shaped, rows)
            return
        latest = latest_rows.LatestRows()
        for batch in rows:
            latest.add(batch)
        yield from map(self._shaped, latest.batches())

    def _shaped(self, rows: Any) -> Any:
        made = [self._column(field, rows) for field in self._schema]
        return pa.RecordBatch.from_arrays(made, schema=self._schema)

    def _column(self, field: Any, rows: Any) -> Any:
        if field.name == "partition":
            return pa.repeat(pa.scalar(self._partition, field.type), rows.num_rows)
        if field.name == "change":
            return pc.if_else(rows.column(latest_rows.THERE), PUT, DELETE).cast(field.type)
        return rows.column(field.name).cast(field.type)
