"""Which states a broker derives from a partition's log, by the kind of its topic (`core.derived`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stentor.core.cursors import Cursors
from stentor.core.derived import States
from stentor.core.names import CURSORS_TOPIC
from stentor.wire import cursor_records

if TYPE_CHECKING:
    from stentor.broker.catalogue import HeldTopic


def states_of(topic: HeldTopic) -> States:
    """New, empty states for one partition of a topic."""
    return States(Cursors(cursor_records.read)) if topic.record.name == CURSORS_TOPIC else States()
