"""Tabular topics in Spark: with `columns=typed` the rows of a topic have the columns of its schema.

    spark.read.format("stentor").option("subscribe", "orders").option("columns", "typed").load()

Written with the same option, rows must have columns of the schema: `TypedRows` makes messages of them.

Spark has fewer types than Arrow: numbers without a sign become the next larger ones, and all times count microseconds.
A time that cannot be told in microseconds is an error, not another time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from stentor.client.tabular import RowSchema, to_messages
from stentor.client.tabular_values import arrow_schema, decode_rows
from stentor.errors import DecodeFailed, InvalidArgument, SchemaRefused
from stentor.spark.columns import spark_arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql.types import StructType

    from stentor.client.sync_client import Client
    from stentor.spark.options import SparkReadOptions
    from stentor.wire.schemas import SchemaColumn

_PARTLY: Final = (
    "Nothing of its Arrow batch was sent. Others may have been, unless this is a stream or has txnAppId and txnVersion."
)
_LARGER: Final = {
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.decimal128(20, 0),
}


def find_columns(options: SparkReadOptions) -> list[SchemaColumn]:
    """The newest schema of the one topic that is read."""
    if len(options.topics) != 1 or options.topic_regex is not None or set("*>") & set(options.topics[0]):
        raise InvalidArgument(
            "columns=typed reads exactly one topic, because another may have other columns.",
            hint="Read each topic separately, and union the frames that match.",
        )
    (name,) = options.topics
    return _schemas(options.connection.client(), name)[-1]


def _schemas(client: Client, name: str) -> list[list[SchemaColumn]]:
    known = client.describe_topic(name).schemas
    if not known:
        raise SchemaRefused(f"Topic {name} has no schema.", hint="Leave out columns=typed: the values are bytes.")
    return known


def spark_schema(columns: list[SchemaColumn]) -> StructType:
    """A topic's schema in Spark's types; everything is nullable, as always in what Spark reads from outside."""
    from pyspark.sql.pandas.types import from_arrow_schema

    fields = [pa.field(field.name, _known_to_spark(field.type)) for field in arrow_schema(columns)]
    return from_arrow_schema(pa.schema(fields), prefer_timestamp_ntz=True)


def _known_to_spark(kind: Any) -> Any:
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", tz="UTC" if kind.tz else None)
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(part.name, _known_to_spark(part.type)) for part in kind])
    if pa.types.is_list(kind):
        return pa.list_(_known_to_spark(kind.value_type))
    return _LARGER.get(kind, kind)


def check_schema(schema: StructType, columns: list[SchemaColumn]) -> None:
    """A user's schema may leave columns out; names and types must be those of the topic."""
    known = {field.name: field.dataType.simpleString() for field in spark_schema(columns).fields}
    for field in schema.fields:
        if field.dataType.simpleString() != known.get(field.name):
            raise InvalidArgument(
                f"Column {field.name} {field.dataType.simpleString()} is not a column of the topic's schema.",
                hint=f"It has: {', '.join(f'{name} {kind}' for name, kind in known.items())}.",
            )


class RowShaper:
    """Makes Spark's batches of the rows of one partition."""

    def __init__(self, schema: StructType, columns: list[SchemaColumn], topic: str, partition: int) -> None:
        self._schema = spark_arrow_schema(schema)
        wanted = set(self._schema.names)
        self._rows = arrow_schema(column for column in columns if column.name in wanted)
        self._topic = topic
        self._partition = partition

    def batches(self, found: Iterable[tuple[int, Any]]) -> Iterator[Any]:
        """Columns in Spark's order."""
        for first, batch in found:
            rows = decode_rows(batch.column("value"), self._rows, self._topic, self._partition, first)
            columns = [self._cast(rows.column(field.name), field, first) for field in self._schema]
            yield pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _cast(self, column: Any, field: Any, first: int) -> Any:
        try:
            return column.cast(field.type)
        except pa.ArrowException as error:
            place = f"{self._topic}/{self._partition}@{first}"
            raise DecodeFailed(
                f"Column {field.name} of the rows from {place} on has a value that Spark cannot hold: {error}.",
                hint="Leave the column out with a schema, or read it without Spark.",
                object=place,
            ) from error


class TypedRows:
    """Makes messages of rows with the columns of a topic's newest schema. Pickled to the tasks that do it."""

    def __init__(self, client: Client, topic: str, key: str | None) -> None:
        known = _schemas(client, topic)
        self.version = len(known)
        self._topic = topic
        self._columns = known[-1]
        self._key = key

    def check(self, schema: StructType) -> None:
        """SchemaRefused says which column cannot be written, before any task runs."""
        empty = spark_arrow_schema(schema).empty_table()
        for field in self._arrow:
            if not field.nullable and field.name not in empty.column_names:
                raise SchemaRefused(
                    f"Column {field.name} for topic {self._topic} is missing, and is not nullable.",
                    hint=f"The columns are: {', '.join(empty.column_names)}.",
                    object=self._topic,
                    column=field.name,
                )
        to_messages(empty, self._row_schema, self._key)

    @property
    def _arrow(self) -> Any:
        return arrow_schema(self._columns)

    @property
    def _row_schema(self) -> RowSchema:
        return RowSchema(self._topic, self.version, self._arrow)

    def messages(self, batch: Any) -> Any:
        """A batch of Spark's as the columns of messages; all of it is checked before any of it is sent."""
        try:
            made = to_messages(batch, self._row_schema, self._key).combine_chunks()
        except SchemaRefused as error:
            raise SchemaRefused(error.message, hint=_PARTLY, object=self._topic, **error.detail) from error
        return pa.RecordBatch.from_arrays([column.combine_chunks() for column in made.columns], names=made.column_names)
