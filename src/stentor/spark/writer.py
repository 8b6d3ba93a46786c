"""Writing: tasks hand Spark's Arrow batches to topics, directly or by way of a stage.

A stream is written exactly once (see ledger.py). A batch write goes directly, as fast as the brokers take it; a task
that Spark repeats then writes its rows again. With txnAppId and txnVersion a batch write is staged, too, and may be
repeated as a whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from stentor.client.tabular import of_version
from stentor.errors import InternalError, InvalidArgument
from stentor.spark import keyed
from stentor.spark.errors import plainly
from stentor.spark.ledger import Chunk, Ledger, Stage
from stentor.spark.rows import Router, TableRouter, check_columns, check_table_columns
from stentor.spark.typed import TypedRows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql.types import StructType

    from stentor.client.options import Compression
    from stentor.client.sync_client import Client
    from stentor.spark.options import WriteOptions


class RowsWritten(WriterCommitMessage):
    """What a task reports to the driver."""

    def __init__(self, rows: int, application: str, query: str, chunks: list[Chunk]) -> None:
        self.rows = rows
        self.application = application
        self.query = query
        self.chunks = chunks


class _Direct:
    """Rows straight to their topics."""

    def __init__(self, client: Client, compression: Compression | None, schema_id: int = 0) -> None:
        self._client = client
        self._compression = compression
        self._schema_id = schema_id
        self._producers: dict[str, Any] = {}

    def add(self, topic: str, partition: int, rows: Any) -> None:
        if topic not in self._producers:
            producer = self._client.producer(topic, compression=self._compression)
            self._producers[topic] = of_version(producer, self._schema_id)
        self._producers[topic].send_batch(rows, partition=partition)

    def finish(self) -> list[Chunk]:
        for producer in self._producers.values():
            producer.close()
        return []


class _TaskWriter:
    """What a task does; pickled to it, so it carries options only."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        self._options = options
        self._typed: TypedRows | None = None
        if options.is_typed:
            self._typed = TypedRows(options.connection.client(), options.topic or "", options.key_column)
            self._typed.check(schema)
        elif options.is_table:
            check_table_columns(schema)
            keyed.check_table(options.connection.client(), options.topic or "")
        else:
            check_columns(schema, options.topic)

    @plainly
    def write(self, iterator: Iterator[Any]) -> RowsWritten:
        """Hand all batches over; where they are is in the report."""
        options = self._options
        client = options.connection.client()
        context = TaskContext.get()
        if context is None:
            raise InternalError("A task of Spark has no context.")
        query = context.getLocalProperty("sql.streaming.queryId") or ""
        application = options.application or query
        sink: Stage | _Direct
        typed = self._typed
        schema_id = 0 if typed is None else typed.version
        if options.exactly_once:
            sink = Stage(client, application, context.partitionId(), schema_id)
        else:
            sink = _Direct(client, options.compression, schema_id)
        kind = TableRouter if options.is_table else Router
        router = kind(options.topic, lambda topic: len(client.find_topic(topic).partitions), context.partitionId())
        rows = 0
        for batch in iterator:
            rows += batch.num_rows
            for topic, partition, part in router.parts(batch if typed is None else typed.messages(batch)):
                sink.add(topic, partition, part)
        return RowsWritten(rows, application, query, sink.finish())

    def _commit(self, messages: list[Any], epoch: int) -> None:
        reports = [report for report in messages if report is not None]
        if reports and self._options.exactly_once:  # also without rows: an interrupted commit may have decided some
            options, done = self._options, reports[0]
            client = options.connection.client()
            ledger = Ledger(
                client,
                done.application,
                done.query,
                drop_repeated=options.drop_repeated,
                checkpoint=options.checkpoint,
            )
            ledger.commit(epoch, [chunk for report in reports for chunk in report.chunks])


class TopicWriter(_TaskWriter, DataSourceArrowWriter):
    """A batch write."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        super().__init__(options, schema)
        if overwrite:
            what = "table" if options.is_table else "topic"
            raise InvalidArgument(f"A {what} cannot be overwritten.", hint="Use mode('append').")
        options.connection.client()  # tasks wait for a broker: an address that is wrong is found out here, at once

    @plainly
    def commit(self, messages: list[Any]) -> None:
        if self._options.version is not None:
            self._commit(messages, self._options.version)

    def abort(self, messages: list[Any]) -> None:
        """What was staged expires by itself; what was written directly stays."""


class TopicStreamWriter(_TaskWriter, DataSourceStreamArrowWriter):
    """A streaming write."""

    @plainly
    def commit(self, messages: list[Any], batchId: int) -> None:
        self._commit(messages, batchId)

    def abort(self, messages: list[Any], batchId: int) -> None:
        """Never undo anything: an epoch may be decided already, and then it will be published."""
