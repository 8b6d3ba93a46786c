"""The topics that a broker has something of: files, copies, cursors, outputs of transactions that are not done."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from stentor.core.cursors import Cursors
from stentor.core.transactions import Transactions
from stentor.wire.header import check_header

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stentor.broker.partitions.copies import Copies
    from stentor.broker.partitions.partition import Partition
    from stentor.core.records import Key


async def held_topics(partitions: Mapping[Key, Partition], copies: Copies) -> set[int] | None:
    """Return their ids; None while a copy cannot be opened, which may have cursors of any topic."""
    found = await asyncio.to_thread(copies.topics_on_disk)
    if copies.unopened:
        return None
    for key, partition in partitions.items():
        found.add(key[0])
        for state in partition.replica.states:
            if isinstance(state, Cursors):
                found |= state.topics_held()
            elif isinstance(state, Transactions):
                for transaction in state.all_unfinished():
                    found.update(transaction.positions)
                    found.update(check_header(output).topic_id for _, output in transaction.outputs)
    return found
