"""Which states a broker derives from a partition's log, by the kind of its topic (`core.derived`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stentor.core.cursors import Cursors
from stentor.core.derived import States
from stentor.core.groups import Groups
from stentor.core.horizon import HorizonState
from stentor.core.names import CURSORS_TOPIC
from stentor.core.queue import QueueState
from stentor.core.table import TableState
from stentor.core.transactions import Transactions
from stentor.wire import group_records, queue_rows, table_rows, transaction_records

if TYPE_CHECKING:
    from stentor.broker.catalogue import HeldTopic


def states_of(topic: HeldTopic) -> States:
    """New, empty states for one partition of a topic."""
    if topic.record.name == CURSORS_TOPIC:
        return States(
            Cursors(transaction_records.read_moves),
            Groups(group_records.read),
            Transactions(transaction_records.read),
        )
    if topic.record.settings.kind == "table":
        return States(TableState(table_rows.changes, table_rows.offsets), HorizonState())
    if topic.record.settings.kind == "queue":
        ordered = topic.record.settings.ordered_by == "key"
        return States(QueueState(queue_rows.known_steps, queue_rows.terms, queue_rows.hashes if ordered else None))
    return States(HorizonState()) if topic.record.settings.compacted else States()
