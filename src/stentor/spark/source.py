"""The data source `stentor`: every topic is a table.

    spark.read.format("stentor").option("subscribe", "orders.eu").load()
    spark.readStream.format("stentor").option("subscribe", "orders.*").load()
    frame.write.format("stentor").option("topic", "totals").mode("append").save()
    frame.writeStream.format("stentor").option("topic", "totals").option("checkpointLocation", …).start()

Spark calls these methods by the names and keywords of its API, in processes of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from stentor.spark import columns
from stentor.spark.options import (
    is_table,
    names_topics,
    read_columns,
    read_options,
    table_options,
    to_read,
    write_options,
)
from stentor.spark.plainly import plainly
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


class StentorDataSource(DataSource):
    """Topics as tables, Arrow from end to end."""

    @classmethod
    def name(cls) -> str:
        return "stentor"

    @plainly
    def schema(self) -> str | StructType:
        if not is_table(self.options):
            return columns.schema_of(read_columns(self.options))
        options = table_options(self.options)
        return columns.table_schema(read_columns(to_read(options)), options)

    @plainly
    def reader(self, schema: StructType) -> DataSourceReader:
        columns.check_schema(schema)
        return TopicReader(read_options(self._to_read(schema), streaming=False), schema)

    @plainly
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        columns.check_schema(schema)
        return TopicStreamReader(read_options(self._to_read(schema), streaming=True), schema)

    @plainly
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from stentor.spark.writer import TopicWriter

        return TopicWriter(write_options(self.options, streaming=False), schema, overwrite=overwrite)

    @plainly
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: ARG002
        from stentor.spark.writer import TopicStreamWriter

        return TopicStreamWriter(write_options(self.options, streaming=True), schema)

    def _to_read(self, schema: StructType) -> Mapping[str, str]:
        """Those of this query; where it names no topic, those of the table, too. Writers get no table's columns."""
        if names_topics(self.options):
            return self.options
        return to_read(columns.options_in(schema)) | {name.lower(): value for name, value in self.options.items()}
