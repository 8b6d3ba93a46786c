"""Data sources to compare with: what Spark's interface allows at best, and the same work done row by row."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter, InputPartition, WriterCommitMessage

from stentor.spark.columns import BATCH_ROWS, Shaper, schema_of
from stentor.spark.options import read_columns, read_options, write_options
from stentor.spark.reader import TopicReader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.types import StructType

SIZE = 100
_batches: dict[str, Any] = {}


class Rows(InputPartition):
    def __init__(self, count: int) -> None:
        super().__init__(None)
        self.count = count


class InMemory(DataSource):
    """Batches that exist already: no broker, no disk. Nothing in Python can be faster."""

    @classmethod
    def name(cls) -> str:
        return "in_memory"

    def schema(self) -> str:
        return schema_of(self.options["columns"].split(","))

    def reader(self, schema: StructType) -> DataSourceReader:
        return InMemoryReader(schema, int(self.options["rows"]), int(self.options["tasks"]))


class InMemoryReader(DataSourceReader):
    def __init__(self, schema: StructType, rows: int, tasks: int) -> None:
        self._schema, self._rows, self._tasks = schema, rows, tasks

    def partitions(self) -> list[Rows]:
        return [Rows(self._rows // self._tasks)] * self._tasks

    def read(self, partition: Any) -> Iterator[Any]:
        names = ",".join(self._schema.names)
        if names not in _batches:
            _batches[names] = next(Shaper(self._schema, "numbers", 1, 0).batches([(0, _messages())]))
        batch, left = _batches[names], partition.count
        while left > 0:
            yield batch if left >= batch.num_rows else batch.slice(0, left)
            left -= batch.num_rows


def _messages() -> Any:
    """As a broker stores them."""
    values = pa.array([bytes(SIZE)] * BATCH_ROWS, pa.binary())
    times = pa.array([0] * BATCH_ROWS, pa.int64()).cast(pa.timestamp("us", "UTC"))
    keys = pa.nulls(BATCH_ROWS, pa.binary())
    return pa.RecordBatch.from_arrays([times, keys, values], names=["timestamp", "key", "value"])


class Tuples(DataSource):
    """The same topic through the same client, handed to Spark row by row."""

    @classmethod
    def name(cls) -> str:
        return "stentor_tuples"

    def schema(self) -> str:
        return schema_of(read_columns(self.options))

    def reader(self, schema: StructType) -> DataSourceReader:
        return TupleReader(read_options(self.options, streaming=False), schema)


class TupleReader(TopicReader):
    def read(self, partition: Any) -> Iterator[Any]:
        for batch in super().read(partition):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


class RowWriter(DataSource):
    """The same topic through the same client, taken from Spark row by row."""

    @classmethod
    def name(cls) -> str:
        return "stentor_rows"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return RowTaskWriter(self.options)


class RowTaskWriter(DataSourceWriter):
    def __init__(self, given: Any) -> None:
        self._options = write_options(given, streaming=False)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        client = self._options.connection.client()
        with client.producer(self._options.topic or "") as producer:
            for row in iterator:
                producer.send(bytes(row.value))
        return WriterCommitMessage()


class ManyWriter(RowTaskWriter):
    """Rows again, but handed over a thousand at a time."""

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        client = self._options.connection.client()
        with client.producer(self._options.topic or "") as producer:
            while values := [bytes(row.value) for row in islice(iterator, 1000)]:
                producer.send_many(values)
        return WriterCommitMessage()
