"""Transactions as applications use them: what a member of a group takes, and what it sends out by that, as one.

    with client.group("billing", "orders") as group:
        for order in group:
            with group.transaction() as out:
                out.send("invoices", invoice_of(order), key=order.key)

When the block is left, everything that was handed out counts as done, and everything that was sent is sent: both, or
neither. If it raises, nothing is sent, and what was taken in it is handed out again.
"""

from __future__ import annotations

import secrets
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self
from zlib import crc32

from stentor.client.convert import as_bytes, as_headers, as_timestamp_us
from stentor.client.help import explained
from stentor.core import group_limits
from stentor.core.names import check_topic_name
from stentor.errors import Closed, InvalidArgument, LimitExceeded
from stentor.wire import batch

if TYPE_CHECKING:
    from stentor.client.group_core import GroupCore
    from stentor.client.group_progress import GroupProgress
    from stentor.client.options import HeadersLike, TimestampLike
    from stentor.client.transaction_core import MemberTransactions
    from stentor.wire.messages import TopicRoute
    from stentor.wire.rows import Headers

    _Row = tuple[int, bytes | None, bytes | None, Headers | None]  # time, key, value, headers

_ROW_BYTES = 64  # beside its parts: about what an encoding adds


class _TransactionFace:
    """What the sync and async transactions share."""

    def __init__(self, core: GroupCore, progress: GroupProgress, timeout: float | None) -> None:
        self._core = core
        self._progress = progress
        self._timeout = timeout
        self._entered = False
        self._over = False
        self._rows: dict[tuple[str, int, int], list[_Row]] = {}  # by topic, its id and partition
        self._keyless: dict[str, int] = {}  # by topic: where messages without a key go
        self._bytes = 0

    @property
    def _transactions(self) -> MemberTransactions:
        return self._core.transactions

    def _enter(self) -> None:
        if self._entered:
            raise InvalidArgument("This transaction was used before.", hint="Call `group.transaction()` for each.")
        self._entered = True

    def _check_open(self) -> None:
        if not self._entered or self._over or not self._transactions.is_open:
            raise InvalidArgument("This transaction is not open.", hint="Use it inside its `with` block.")

    def _add(
        self, route: TopicRoute, value: Any, key: Any, headers: Any, timestamp: Any, partition: int | None
    ) -> None:
        self._check_open()  # its block may have ended while the topic was looked for
        value, key = as_bytes(value, "value"), as_bytes(key, "key")
        batch.check_message(key, value)
        named = None if headers is None else as_headers(headers)
        time_us = time.time_ns() // 1000 if timestamp is None else as_timestamp_us(timestamp)
        assert time_us is not None
        size = _ROW_BYTES + len(value or b"") + len(key or b"") + _headers_bytes(named)
        if self._bytes + size > group_limits.TRANSACTION_BYTES_MAX:
            raise LimitExceeded(
                f"A transaction would send more than {group_limits.TRANSACTION_BYTES_MAX} bytes.",
                hint="Take fewer messages in each transaction.",
            )
        where = route.name, route.id, self._partition(route, key, partition)
        if where not in self._rows and len(self._rows) == group_limits.TRANSACTION_PARTITIONS_MAX:
            raise LimitExceeded(
                f"A transaction would send to more than {group_limits.TRANSACTION_PARTITIONS_MAX} partitions."
            )
        self._rows.setdefault(where, []).append((time_us, key, value, named))
        self._bytes += size

    def _partition(self, route: TopicRoute, key: bytes | None, partition: int | None) -> int:
        count = len(route.partitions)
        if partition is not None:
            if partition not in range(count):
                raise InvalidArgument(f"Topic {route.name} has partitions 0 to {count - 1}; {partition!r} was named.")
            return partition
        if key is not None:
            return crc32(key) % count
        return self._keyless.setdefault(route.name, secrets.randbelow(count))

    def _encode(self, producer_id: int, number: int) -> list[tuple[str, bytes]]:
        """What is sent out, as batches."""
        outputs = []
        for (topic, topic_id, partition), rows in self._rows.items():
            times, keys, values, headers = map(list, zip(*rows, strict=True))
            named = headers if any(each is not None for each in headers) else None
            encoded = batch.encode(times, keys, values, named)
            header = batch.address(
                encoded,
                topic_id=topic_id,
                partition=partition,
                producer_id=producer_id,
                generation=number,
                sequence=0,
            )
            outputs.append((topic, bytes(header) + bytes(encoded.body)))
        size = sum(len(output) for _, output in outputs)
        if size > group_limits.TRANSACTION_BYTES_MAX:  # headers take more room than was counted
            raise LimitExceeded(
                f"A transaction sends {size} bytes; the limit is {group_limits.TRANSACTION_BYTES_MAX}.",
                hint="Take fewer messages in each transaction.",
            )
        return outputs

    async def _begin(self) -> None:
        await self._transactions.begin(self._core.core.deadline(self._timeout))

    async def _commit(self) -> None:
        await self._transactions.commit(self._encode, self._core.core.deadline(self._timeout))

    async def _give_up(self) -> None:
        self._transactions.give_up()


@explained("Transaction")
class Transaction(_TransactionFace):
    """What a group's member takes and sends out as one. Use it as a context manager; one thread at a time."""

    def send(
        self,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None = None,
        headers: HeadersLike | None = None,
        timestamp: TimestampLike | None = None,
        partition: int | None = None,
    ) -> None:
        """Send a message to a topic, when the transaction is committed."""
        self._check_open()
        check_topic_name(topic)
        route = self._core.core.routes.get(topic) or self._core.core.wait_for(self._core.core.topic(topic))
        self._add(route, value, key, headers, timestamp, partition)

    def __enter__(self) -> Self:
        self._enter()
        self._core.core.wait_for(self._begin())
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._over = True
        if kind is not None:
            with suppress(Closed):  # what the block raised says more
                self._core.core.wait_for(self._give_up())
            return
        self._progress.finish()
        self._core.core.wait_for(self._commit())


@explained("Transaction", asynchronous=True)
class AsyncTransaction(_TransactionFace):
    """The same for `async` code. One task at a time."""

    async def send(
        self,
        topic: str,
        value: bytes | str | None,
        key: bytes | str | None = None,
        headers: HeadersLike | None = None,
        timestamp: TimestampLike | None = None,
        partition: int | None = None,
    ) -> None:
        """Send a message to a topic, when the transaction is committed."""
        self._check_open()
        check_topic_name(topic)
        route = self._core.core.routes.get(topic) or await self._core.core.topic(topic)
        self._add(route, value, key, headers, timestamp, partition)

    async def __aenter__(self) -> Self:
        self._enter()
        await self._begin()
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        self._over = True
        if kind is not None:
            await self._give_up()
            return
        self._progress.finish()
        await self._commit()


def _headers_bytes(headers: Headers | None) -> int:
    return sum(len(name) + len(value or b"") for name, value in headers or ())
