"""Reads of a table that must be exact at their end: compactions may not have taken what counts there.

Below a horizon the log keeps only the last row of each key (`core.horizon`). Whoever wants the table as it was at an
earlier offset would miss keys that changed since. A read of this kind says so to the broker, which refuses it or ends
it with `Compacted`, and never lets it end as if it were whole.
"""

from __future__ import annotations

import asyncio
import queue
from typing import TYPE_CHECKING, Any

from stentor.client.history import History
from stentor.client.subscription import Subscription
from stentor.client.subscription_core import SubscriptionCore
from stentor.errors import StentorError

if TYPE_CHECKING:
    from collections.abc import Callable

    from stentor.client.core import ClientCore
    from stentor.client.sync_client import Client
    from stentor.client.table_copy import TableSequence


def read_exactly(client: Client, table: str, partition: int, start: int, end: int) -> History:
    """A range of one partition; Compacted, also while it is read, if the table cannot be known at its end."""
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    core = client._async._core  # noqa: SLF001 - a part of the client
    opened = client._call(_open(core, table, partition, start, end, inbox.put))  # noqa: SLF001
    return History(Subscription(opened, inbox), None)


async def check_known(core: ClientCore, table: str, sequence: TableSequence, now: TableSequence) -> None:
    """Compacted if the log no longer has every change between two sequences."""
    for partition, (offset, have) in enumerate(zip(sequence, now, strict=True)):
        if offset < have:
            await _check_partition(core, table, partition, max(1, offset))


async def _check_partition(core: ClientCore, table: str, partition: int, end: int) -> None:
    """A broker says at once whether the table can be known at an end; what it sends is not wanted."""
    said: asyncio.Future[Any] = core.loop.create_future()

    def hear(item: Any) -> None:
        if not said.done():
            said.set_result(item)

    opened = await _open(core, table, partition, 0, end, hear)
    try:
        async with core.deadline(None).bound():
            item = await said
    finally:
        await opened.close()
    if isinstance(item, StentorError):
        raise item


async def _open(
    core: ClientCore, table: str, partition: int, start: int, end: int, put: Callable[[Any], None]
) -> SubscriptionCore:
    opened = SubscriptionCore(core, table, start=start, end=end, partition=partition, put=put, copies=True)
    await opened.open(core.deadline(None))
    return opened
