"""Bounded reads: what a topic held between two positions, as messages, Arrow, pandas or polars."""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Self

from stentor.client.tables import to_pandas, to_polars, to_table

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from stentor.client.message import Message
    from stentor.client.subscription import AsyncSubscription, Subscription


class History:
    """Everything between `start` and `end`. Iterate it once, or take it as a table."""

    def __init__(self, subscription: Subscription, limit: int | None) -> None:
        self._subscription = subscription
        self._limit = limit

    def __iter__(self) -> Iterator[Message]:
        messages: Iterator[Message] = iter(self._subscription)
        if self._limit is not None:
            messages = islice(messages, self._limit)
        return chain(messages, self._finish())

    def _finish(self) -> Iterator[Message]:
        """Runs after the last message: yields none, lets go of the streams."""
        self._subscription.close()
        yield from ()

    def batches(self) -> Iterator[Any]:
        """As pyarrow.RecordBatch."""
        with self._subscription:
            left = self._limit
            for batch in self._subscription.batches():
                if left is None:
                    yield batch
                    continue
                if left <= 0:
                    return
                yield batch.slice(0, left)
                left -= batch.num_rows

    def offset_batches(self) -> Iterator[tuple[int, Any]]:
        """Of one partition, as they were stored: the first offset, and timestamp, key, value, headers. No limit."""
        with self._subscription:
            yield from self._subscription.offset_batches()

    def to_arrow(self) -> Any:
        """A pyarrow.Table."""
        return to_table(self.batches())

    def to_pandas(self) -> Any:
        """A pandas.DataFrame."""
        return to_pandas(self.to_arrow())

    def to_polars(self) -> Any:
        """A polars.DataFrame."""
        return to_polars(self.to_arrow())

    def close(self) -> None:
        self._subscription.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncHistory:
    """The same for `async` code."""

    def __init__(self, subscription: AsyncSubscription, limit: int | None) -> None:
        self._subscription = subscription
        self._limit = limit

    async def __aiter__(self) -> AsyncIterator[Message]:
        async with self._subscription:
            left = self._limit
            async for message in self._subscription:
                if left is not None:
                    if left <= 0:
                        return
                    left -= 1
                yield message

    async def batches(self) -> AsyncIterator[Any]:
        """As pyarrow.RecordBatch."""
        async with self._subscription:
            left = self._limit
            async for batch in self._subscription.batches():
                if left is None:
                    yield batch
                    continue
                if left <= 0:
                    return
                yield batch.slice(0, left)
                left -= batch.num_rows

    async def offset_batches(self) -> AsyncIterator[tuple[int, Any]]:
        """Of one partition, as they were stored; see History.offset_batches."""
        async with self._subscription:
            async for found in self._subscription.offset_batches():
                yield found

    async def to_arrow(self) -> Any:
        """A pyarrow.Table."""
        return to_table([batch async for batch in self.batches()])

    async def to_pandas(self) -> Any:
        """A pandas.DataFrame."""
        return to_pandas(await self.to_arrow())

    async def to_polars(self) -> Any:
        """A polars.DataFrame."""
        return to_polars(await self.to_arrow())

    async def close(self) -> None:
        await self._subscription.close()
