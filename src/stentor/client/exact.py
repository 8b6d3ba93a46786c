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
from stentor.client.position import Position
from stentor.client.subscription import Subscription
from stentor.client.subscription_core import SubscriptionCore
from stentor.errors import Closed, StentorError

if TYPE_CHECKING:
    from collections.abc import Callable

    from stentor.client.core import ClientCore
    from stentor.client.sync_client import Client
    from stentor.client.table_copy import TableCopy, TableSequence


def read_exactly(client: Client, table: str, partition: int, start: int, end: int) -> History:
    """A range of one partition; Compacted, also while it is read, if the table cannot be known at its end."""
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    core = client._async._core  # noqa: SLF001 - a part of the client
    opened = client._call(_open(core, table, partition, start, end, inbox.put))  # noqa: SLF001
    return History(Subscription(opened, inbox), None)


async def missing_since(copy: TableCopy, start: TableSequence, until: TableSequence) -> int:
    """Count the changes between two sequences that compactions have removed, at most. Compacted if deletions may be
    among them: then what is left does not lead from one sequence to the other. OffsetOutOfRange if the log begins
    later.
    """
    missing = 0
    for partition, (offset, have) in enumerate(zip(start, until, strict=True)):
        if offset < have:
            missing += await _missing_in(copy, partition, offset, have)
    return missing


async def _missing_in(copy: TableCopy, partition: int, start: int, until: int) -> int:
    """Brokers count what is lacking in what they send. It is read once for that, and not decoded."""
    inbox: asyncio.Queue[Any] = asyncio.Queue()
    position = Position(copy.name, partition, start, copy.topic_id)
    opened = SubscriptionCore(
        copy.core, copy.name, start=position, partition=partition, put=inbox.put_nowait, copies=True
    )
    missing, reached = 0, start
    try:
        await opened.open(copy.core.deadline(None))
        while reached < until:
            async with copy.core.deadline(None).bound():
                item = await inbox.get()
            if isinstance(item, StentorError):
                raise item
            if item is None:
                raise Closed(f"Reading table {copy.name} ended.", hint="Watch the table again.")
            missing, reached = missing + item.removed, item.next_offset
            opened.streams.grant(item.reader, len(item.body))
    finally:
        await opened.close()
    return missing


async def _open(
    core: ClientCore, table: str, partition: int, start: int, end: int, put: Callable[[Any], None]
) -> SubscriptionCore:
    opened = SubscriptionCore(core, table, start=start, end=end, partition=partition, put=put, copies=True)
    await opened.open(core.deadline(None))
    return opened
