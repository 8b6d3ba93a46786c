"""What replaces rules of memory topics when they are switched off."""

import msgspec

from stentor.broker.partitions.replicas import Replicas
from stentor.core import reservation
from stentor.core.records import Reservation

_is_lost = reservation._is_lost
_begun_anew = reservation.begun_anew
_open_all = Replicas.open_all


def silent_is_lost(key, member, reports, alive, registered):
    """Who is not heard has lost its copy."""
    return member.broker not in alive or _is_lost(key, member, reports, alive, registered)


def begun_where_it_ended(record, leader):
    """A log that was lost goes on where its record last knew it to be."""
    after = _begun_anew(record, leader)
    if after is None:
        return None
    reserved = Reservation(after.reserved.end, record.committed, after.epoch)
    return msgspec.structs.replace(after, committed=record.committed, reserved=reserved)


async def open_empty(self, topics, named):
    """A restarted broker has the copy that its journal knows, without what was in it."""
    topics = list(topics)
    for topic in topics:
        for key in topic.keys if topic.in_memory else ():
            if (known := self._journal.get(*key)) is not None:
                self._add(self._copies.begin(topic, key, known.log_id, self._desk))
    await _open_all(self, topics, named)
