"""Which states a broker derives from a partition's log, by the kind of its topic (`core.derived`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stentor.core.cursors import Cursors
from stentor.core.derived import States
from stentor.core.names import CURSORS_TOPIC
from stentor.core.table import TableState
from stentor.wire import cursor_records, table_rows

if TYPE_CHECKING:
    from stentor.broker.catalogue import HeldTopic


def states_of(topic: HeldTopic) -> States:
    """New, empty states for one partition of a topic."""
    if topic.record.name == CURSORS_TOPIC:
        return States(Cursors(cursor_records.read))
    return States(TableState(table_rows.changes)) if topic.record.settings.kind == "table" else States()
