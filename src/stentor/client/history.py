"""Bounded reads: what a topic held between two positions, as messages, Arrow, pandas or polars.

A `for` loop over a History may be left and begun again. Everything else lets go of its streams when it is left, and
whoever comes back to it is told.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

from stentor.client.arrow import tables
from stentor.client.help import explained
from stentor.errors import Closed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from stentor.client.message import Message
    from stentor.client.subscription import AsyncSubscription, Subscription
    from stentor.client.subscription_core import SubscriptionCore


class _Bounded:
    """What both faces share: where it ends, and how much may still be handed out."""

    def __init__(self, core: SubscriptionCore, limit: int | None) -> None:
        self._core = core
        self.ends = core.ends()
        """The offset before which it ends, by topic and partition."""
        self.sure = core.sure
        """Whether that was all that was committed when the read began. False only with `stale="allow"`."""
        self._left = limit  # messages until the limit; None without one
        self._abandoned = False  # it was left before its end, and its streams were let go

    @property
    def compacted(self) -> int:
        """How many messages, at most, compactions had removed from what was read so far."""
        return self._core.removed

    def _check(self) -> None:
        if self._abandoned:
            raise Closed("This read was left before its end.", hint="Read again, from the offset where you were.")

    def _within_limit(self, batch: Any) -> Any:
        """As much of a batch as the limit allows."""
        if self._left is None:
            return batch
        allowed = batch.slice(0, self._left)
        self._left -= allowed.num_rows
        return allowed

    def _at_limit(self) -> bool:
        return self._left is not None and self._left <= 0


@explained("History")
class History(_Bounded):
    """Everything between `start` and `end`. Iterate it once, or take it as a table."""

    def __init__(self, subscription: Subscription, limit: int | None) -> None:
        super().__init__(subscription._core, limit)  # noqa: SLF001 - two halves of one thing
        self._subscription = subscription

    def __iter__(self) -> Iterator[Message]:
        self._check()
        return chain(self._subscription if self._left is None else self._limited(), self._finish())

    def _limited(self) -> Iterator[Message]:
        assert self._left is not None
        messages = iter(self._subscription)
        while self._left > 0 and (message := next(messages, None)) is not None:
            self._left -= 1
            yield message

    @contextmanager
    def _streams(self) -> Iterator[None]:
        """Lets go of them at the end, also of a reader that does not come back."""
        self._check()
        self._abandoned = True
        with self._subscription:
            yield
        self._abandoned = False

    def _finish(self) -> Iterator[Message]:
        """Runs after the last message: yields none, lets go of the streams."""
        self._subscription.close()
        yield from ()

    def batches(self) -> Iterator[Any]:
        """As pyarrow.RecordBatch."""
        with self._streams():
            batches = self._subscription.batches()
            while not self._at_limit() and (batch := next(batches, None)) is not None:
                yield self._within_limit(batch)

    def offset_batches(self, *, appended_at: bool = False) -> Iterator[tuple[int, Any]]:
        """Of one partition: first offset, and timestamp, key, value, headers. Small batches are joined. No limit.

        With `appended_at` a further column says when each message was appended, by the clock of the partition's head.
        """
        with self._streams():
            yield from self._subscription.offset_batches(appended_at=appended_at)

    def to_arrow(self) -> Any:
        """A pyarrow.Table."""
        return tables().to_table(self.batches())

    def to_pandas(self) -> Any:
        """A pandas.DataFrame."""
        return tables().to_pandas(self.to_arrow())

    def to_polars(self) -> Any:
        """A polars.DataFrame."""
        return tables().to_polars(self.to_arrow())

    def close(self) -> None:
        """End it before its end; a read that was read to its end is closed."""
        self._subscription.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@explained("History", asynchronous=True)
class AsyncHistory(_Bounded):
    """The same for `async` code."""

    def __init__(self, subscription: AsyncSubscription, limit: int | None) -> None:
        super().__init__(subscription._core, limit)  # noqa: SLF001 - two halves of one thing
        self._subscription = subscription

    @asynccontextmanager
    async def _streams(self) -> AsyncIterator[None]:
        """Lets go of them at the end, also of a reader that does not come back."""
        self._check()
        self._abandoned = True
        async with self._subscription:
            yield
        self._abandoned = False

    async def __aiter__(self) -> AsyncIterator[Message]:
        async with self._streams():
            if self._at_limit():
                return
            async for message in self._subscription:
                yield message
                if self._left is not None:
                    self._left -= 1
                    if self._left <= 0:
                        return

    async def batches(self) -> AsyncIterator[Any]:
        """As pyarrow.RecordBatch."""
        async with self._streams():
            batches = self._subscription.batches()
            while not self._at_limit() and (batch := await anext(batches, None)) is not None:
                yield self._within_limit(batch)

    async def offset_batches(self, *, appended_at: bool = False) -> AsyncIterator[tuple[int, Any]]:
        """Of one partition: first offset, and timestamp, key, value, headers. Small batches are joined. No limit.

        With `appended_at` a further column says when each message was appended, by the clock of the partition's head.
        """
        async with self._streams():
            async for found in self._subscription.offset_batches(appended_at=appended_at):
                yield found

    async def to_arrow(self) -> Any:
        """A pyarrow.Table."""
        return tables().to_table([batch async for batch in self.batches()])

    async def to_pandas(self) -> Any:
        """A pandas.DataFrame."""
        return tables().to_pandas(await self.to_arrow())

    async def to_polars(self) -> Any:
        """A polars.DataFrame."""
        return tables().to_polars(await self.to_arrow())

    async def close(self) -> None:
        """End it before its end; a read that was read to its end is closed."""
        await self._subscription.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
