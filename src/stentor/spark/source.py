"""The data source `stentor`: every topic is a table.

    spark.read.format("stentor").option("subscribe", "orders.eu").load()
    spark.readStream.format("stentor").option("subscribe", "orders.*").load()
    frame.write.format("stentor").option("topic", "totals").mode("append").save()
    frame.writeStream.format("stentor").option("topic", "totals").option("checkpointLocation", …).start()

With the option `table` instead, it is a table by key: its snapshot, the stream of its changes, and writing to it.

Spark calls these methods by the names and keywords of its API, in processes of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from stentor.spark import columns, keyed, typed
from stentor.spark.errors import plainly
from stentor.spark.options import (
    is_table,
    names_topics,
    read_columns,
    read_options,
    table_options,
    to_read,
    topic_options,
    write_options,
)
from stentor.spark.reader import TopicReader, TopicStreamReader

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from stentor.spark.options import SparkReadOptions
    from stentor.wire.schemas import SchemaColumn


class StentorDataSource(DataSource):
    """Topics as tables, Arrow from end to end."""

    @classmethod
    def name(cls) -> str:
        return "stentor"

    @plainly
    def schema(self) -> str | StructType:
        if not is_table(self.options):
            names = read_columns(self.options)
            types = keyed.types_of(self.options)
            return self._typed_schema(self.options) if names == (columns.TYPED,) else columns.schema_of(names, types)
        options = table_options(self.options)
        names = read_columns(to_read(options))
        if names == (columns.TYPED,):
            return columns.with_options(self._typed_schema(to_read(options)), options)
        return columns.table_schema(names, options, keyed.types_of(options))

    @plainly
    def reader(self, schema: StructType) -> DataSourceReader:
        options = read_options(self._to_read(schema), streaming=False)
        return TopicReader(options, schema, self._checked(options, schema))

    @plainly
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = read_options(self._to_read(schema), streaming=True)
        return TopicStreamReader(options, schema, self._checked(options, schema))

    @plainly
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from stentor.spark.writer import TopicWriter

        return TopicWriter(write_options(self.options, streaming=False), schema, overwrite=overwrite)

    @plainly
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002
        from stentor.spark.writer import TopicStreamWriter

        return TopicStreamWriter(write_options(self.options, streaming=True), schema)

    def _typed_schema(self, given: Mapping[str, str]) -> StructType:
        return typed.spark_schema(typed.find_columns(topic_options(given)))

    def _checked(self, options: SparkReadOptions, schema: StructType) -> list[SchemaColumn] | None:
        """The topic's own schema, where its columns are read; else the columns must be those of messages or tables."""
        if options.table is not None:
            columns.check_schema(schema, columns.TABLE_TYPES)
            keyed.check_table(options.connection.client(), options.table)
            return None
        if options.columns != (columns.TYPED,):
            columns.check_schema(schema)
            return None
        found = typed.find_columns(options)
        typed.check_schema(schema, found)
        return found

    def _to_read(self, schema: StructType) -> Mapping[str, str]:
        """Those of this query; where it names no topic, those of the table, too. Writers get no table's columns."""
        if names_topics(self.options):
            return self.options
        return to_read(columns.options_in(schema)) | {name.lower(): value for name, value in self.options.items()}
