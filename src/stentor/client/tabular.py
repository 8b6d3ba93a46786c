"""Tabular topics: `client.tabular("orders", schema)` sends tables and reads them back, row by row a message.

The schema belongs to the topic (`wire.schemas`) and travels as an id in each batch; the head refuses a batch whose id
is none of the topic's. Rows travel as JSON (`client.tabular_values`).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from stentor.client import tabular_values
from stentor.client.history import AsyncHistory, History
from stentor.client.producer import AsyncProducer, Producer
from stentor.client.subscription import AsyncSubscription, Subscription
from stentor.client.tables import to_pandas, to_polars
from stentor.client.wrapped import AsyncEntered, Entered
from stentor.errors import SchemaRefused
from stentor.wire import messages

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from typing import Unpack

    from stentor.client.async_client import AsyncClient
    from stentor.client.core import ClientCore
    from stentor.client.options import (
        ProducerOptions,
        ProducerStatistics,
        ReadOptions,
        SubscribeOptions,
        SubscriptionStatistics,
    )
    from stentor.client.producer_core import OnDelivery
    from stentor.client.sync_client import Client


_ROWS_AT_ONCE: Final = 65_536
"""Rows are Python objects on their way to JSON: not all of a large table at once."""


class RowSchema(NamedTuple):
    """One version of a topic's schema."""

    topic: str
    version: int  # the id that batches carry
    arrow: Any  # pyarrow.Schema


async def find_schema(core: ClientCore, name: str, schema: Any, timeout: float | None) -> RowSchema:
    """The version of a topic's schema that this is, registered if need be; without one the newest that there is."""
    deadline = core.deadline(timeout)
    if schema is None:
        described = await core.call(messages.DescribeTopic(name=name), deadline)
        known = described.topic.schemas
        if not known:
            raise SchemaRefused(
                f"Topic {name} has no schema.",
                hint="Say one to register it: client.tabular(name, schema).",
                object=name,
            )
        return RowSchema(name, len(known), tabular_values.arrow_schema(known[-1]))
    columns = tabular_values.columns_of(schema, name)
    await core.topic(name, deadline)
    described = await core.call(messages.RegisterSchema(name=name, columns=columns), deadline)
    return RowSchema(name, described.topic.schemas.index(columns) + 1, tabular_values.arrow_schema(columns))


def to_messages(data: Any, schema: RowSchema, key: str | None) -> Any:
    """A user's table as the columns of messages; all of it is checked before any of it is sent."""
    table = tabular_values.conform(tabular_values.as_table(data), schema.arrow, schema.topic)
    now_us = time.time_ns() // 1000
    columns = {
        "timestamp": pa.repeat(pa.scalar(now_us, pa.timestamp("us", tz="UTC")), table.num_rows),
        "value": pa.chunked_array(
            [
                tabular_values.encode_rows(table.slice(start, _ROWS_AT_ONCE), schema.topic)
                for start in range(0, table.num_rows, _ROWS_AT_ONCE)
            ],
            pa.binary(),
        ),
    }
    if key is not None:
        columns["key"] = _keys(table, key, schema.topic)
    return pa.table(columns)


def _keys(table: Any, key: str, topic: str) -> Any:
    if key not in table.column_names:
        raise SchemaRefused(f"The schema of topic {topic} has no column {key!r} to be the key.", object=topic)
    try:
        return table.column(key).combine_chunks().cast(pa.string()).cast(pa.binary())
    except (pa.ArrowException, NotImplementedError) as error:
        raise SchemaRefused(f"Column {key} cannot be the key: {error}.", object=topic) from error


def to_rows(batch: Any, schema: RowSchema) -> Any:
    """A record batch of messages, all of one partition, as rows."""
    if not batch.num_rows:
        return tabular_values.decode_rows(batch.column("value"), schema.arrow, schema.topic, 0, 0)
    partition, first = batch.column(1)[0].as_py(), batch.column(2)[0].as_py()
    return tabular_values.decode_rows(batch.column("value"), schema.arrow, schema.topic, partition, first)


def of_version(producer: Producer, version: int) -> Producer:
    """The same producer, whose batches say that they hold rows of a version of the topic's schema."""
    producer._core.schema_id = version  # noqa: SLF001 - two halves of one thing
    return producer


class _Schemed:
    """What all faces share."""

    def __init__(self, schema: RowSchema) -> None:
        self._schema = schema

    @property
    def name(self) -> str:
        """The topic."""
        return self._schema.topic

    @property
    def schema(self) -> Any:
        """The pyarrow.Schema of its rows."""
        return self._schema.arrow

    @property
    def version(self) -> int:
        """Which version of the topic's schema that is."""
        return self._schema.version


# --- sync ---------------------------------------------------------------------------------------


class TableProducer(_Schemed, Entered[Producer]):
    """A producer of rows. What does not fit the schema is refused at once, and nothing of it is sent."""

    def __init__(self, producer: Producer, schema: RowSchema) -> None:
        super().__init__(schema)
        self._inner = of_version(producer, schema.version)

    def send_batch(
        self,
        data: Any,
        *,
        key: str | None = None,
        partition: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """Hand a pyarrow Table, a pandas or a polars DataFrame over: each row is a message.

        `key` names the column whose values are the messages' keys, and so choose their partitions.
        """
        rows = to_messages(data, self._schema, key)
        self._inner.send_batch(rows, partition=partition, on_delivery=on_delivery)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent is acknowledged; PublishError (.failed) for what was not."""
        self._inner.flush(timeout)

    def statistics(self) -> ProducerStatistics:
        """Counts since the producer was made."""
        return self._inner.statistics()


class TableHistory(_Schemed, Entered[History]):
    """A bounded read of rows. Take it once."""

    def __init__(self, history: History, schema: RowSchema) -> None:
        super().__init__(schema)
        self._inner = history

    def batches(self) -> Iterator[Any]:
        """As pyarrow.RecordBatch of the schema."""
        for batch in self._inner.batches():
            yield to_rows(batch, self._schema)

    def to_arrow(self) -> Any:
        """A pyarrow.Table."""
        return pa.Table.from_batches(list(self.batches()), schema=self.schema)

    def to_pandas(self) -> Any:
        """A pandas.DataFrame."""
        return to_pandas(self.to_arrow())

    def to_polars(self) -> Any:
        """A polars.DataFrame."""
        return to_polars(self.to_arrow())


class TableSubscription(_Schemed, Entered[Subscription]):
    """Rows as they come. Use as a context manager."""

    def __init__(self, subscription: Subscription, schema: RowSchema) -> None:
        super().__init__(schema)
        self._inner = subscription

    def batches(self) -> Iterator[Any]:
        """As pyarrow.RecordBatch of the schema."""
        for batch in self._inner.batches():
            yield to_rows(batch, self._schema)

    def statistics(self) -> SubscriptionStatistics:
        """Lag and position of each partition."""
        return self._inner.statistics()


class TabularTopic(_Schemed):
    """A topic whose messages are rows of a schema."""

    def __init__(self, client: Client, schema: RowSchema) -> None:
        super().__init__(schema)
        self._client = client

    def producer(self, **options: Unpack[ProducerOptions]) -> TableProducer:
        """A producer of rows; see Client.producer."""
        return TableProducer(self._client.producer(self.name, **options), self._schema)

    def read(self, **options: Unpack[ReadOptions]) -> TableHistory:
        """A bounded read of rows; see Client.read."""
        return TableHistory(self._client.read(self.name, **options), self._schema)

    def subscribe(self, **options: Unpack[SubscribeOptions]) -> TableSubscription:
        """Rows from a position on; see Client.subscribe."""
        return TableSubscription(self._client.subscribe(self.name, **options), self._schema)


# --- async --------------------------------------------------------------------------------------


class AsyncTableProducer(_Schemed, AsyncEntered[AsyncProducer]):
    """The same for `async` code."""

    def __init__(self, producer: AsyncProducer, schema: RowSchema) -> None:
        super().__init__(schema)
        self._inner = producer
        producer._core.schema_id = schema.version  # noqa: SLF001 - two halves of one thing

    async def send_batch(
        self,
        data: Any,
        *,
        key: str | None = None,
        partition: int | None = None,
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """Hand a pyarrow Table, a pandas or a polars DataFrame over: each row is a message.

        `key` names the column whose values are the messages' keys, and so choose their partitions.
        """
        rows = to_messages(data, self._schema, key)
        await self._inner.send_batch(rows, partition=partition, on_delivery=on_delivery)

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent is acknowledged; PublishError (.failed) for what was not."""
        await self._inner.flush(timeout)

    def statistics(self) -> ProducerStatistics:
        """Counts since the producer was made."""
        return self._inner.statistics()


class AsyncTableHistory(_Schemed, AsyncEntered[AsyncHistory]):
    """The same for `async` code."""

    def __init__(self, history: AsyncHistory, schema: RowSchema) -> None:
        super().__init__(schema)
        self._inner = history

    async def batches(self) -> AsyncIterator[Any]:
        """As pyarrow.RecordBatch of the schema."""
        async for batch in self._inner.batches():
            yield to_rows(batch, self._schema)

    async def to_arrow(self) -> Any:
        """A pyarrow.Table."""
        return pa.Table.from_batches([batch async for batch in self.batches()], schema=self.schema)

    async def to_pandas(self) -> Any:
        """A pandas.DataFrame."""
        return to_pandas(await self.to_arrow())

    async def to_polars(self) -> Any:
        """A polars.DataFrame."""
        return to_polars(await self.to_arrow())


class AsyncTableSubscription(_Schemed, AsyncEntered[AsyncSubscription]):
    """The same for `async` code."""

    def __init__(self, subscription: AsyncSubscription, schema: RowSchema) -> None:
        super().__init__(schema)
        self._inner = subscription

    async def batches(self) -> AsyncIterator[Any]:
        """As pyarrow.RecordBatch of the schema."""
        async for batch in self._inner.batches():
            yield to_rows(batch, self._schema)

    def statistics(self) -> SubscriptionStatistics:
        """Lag and position of each partition."""
        return self._inner.statistics()


class AsyncTabularTopic(_Schemed):
    """A topic whose messages are rows of a schema, for `async` code."""

    def __init__(self, client: AsyncClient, schema: RowSchema) -> None:
        super().__init__(schema)
        self._client = client

    async def producer(self, **options: Unpack[ProducerOptions]) -> AsyncTableProducer:
        """A producer of rows; see Client.producer."""
        return AsyncTableProducer(await self._client.producer(self.name, **options), self._schema)

    async def read(self, **options: Unpack[ReadOptions]) -> AsyncTableHistory:
        """A bounded read of rows; see Client.read."""
        return AsyncTableHistory(await self._client.read(self.name, **options), self._schema)

    async def subscribe(self, **options: Unpack[SubscribeOptions]) -> AsyncTableSubscription:
        """Rows from a position on; see Client.subscribe."""
        return AsyncTableSubscription(await self._client.subscribe(self.name, **options), self._schema)
