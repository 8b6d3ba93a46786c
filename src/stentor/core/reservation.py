"""A memory topic whose copies are all lost begins anew, by itself, and no offset is ever given out twice.

A copy in memory ends with its broker's process. It is lost for certain when its broker is heard in a later life, or
when an operator has said that the broker does not come back. A broker that is merely not heard may still hold its copy:
nobody begins anew without it (C12, C15). As long as one copy of the chain, or an eligible one (C8), may be there, only
that one may lead.

When all of them are lost, nobody knows any more how far readers have come. So the record itself says what may have
been given out at most:

    a head assigns offsets only below `reserved.end` of the record that it has adopted (C2)
    `reserved.end` never falls from one record to the next
    a chain that begins anew begins at `reserved.end` of the record before it

Every offset that was given out under any earlier record is therefore below the new log, whoever gave it out. That holds
for a head that was cut off, too: its epoch is an older one, and so is its `reserved.end`. The controller sets more
aside long before a head has used up what it has; that is a change of the epoch like any other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from stentor import limits
from stentor.core.memory_limits import OFFSETS_RENEWED, OFFSETS_RESERVED
from stentor.core.records import Reservation

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from stentor.core.records import ChainRecord, Key, Member
    from stentor.core.reports import ReportBook

_replace = msgspec.structs.replace


def first_reservation() -> Reservation:
    """Of a topic that is being made."""
    return Reservation(OFFSETS_RESERVED)


def may_assign(record: ChainRecord, end: int) -> bool:
    """Whether the head of this record may put one more batch at the end of its log, however many messages it has."""
    return record.reserved is None or end + limits.BATCH_MESSAGES_MAX <= record.reserved.end


def runs_low(record: ChainRecord | None, end: int) -> bool:
    """Whether more offsets should be set aside for a log that ends here."""
    return record is not None and record.reserved is not None and record.reserved.end - end < OFFSETS_RENEWED


def extended(key: Key, record: ChainRecord, reports: ReportBook) -> ChainRecord | None:
    """More offsets, if the head has not many left; None if it has."""
    found = (reports.of(key, member.broker) for member in record.chain)
    end = max((report.end for report in found if report is not None and report.member in record.chain), default=0)
    if record.reserved is None or not runs_low(record, end):
        return None
    reserved = _replace(record.reserved, end=max(record.reserved.end, end + OFFSETS_RESERVED))
    return _replace(record, epoch=record.epoch + 1, reserved=reserved)


def all_lost(
    key: Key, record: ChainRecord, reports: ReportBook, alive: Mapping[str, int], registered: Collection[str]
) -> bool:
    """Whether no copy can be left that may lead: each was in the memory of a process that has ended."""
    return all(_is_lost(key, member, reports, alive, registered) for member in (*record.chain, *record.eligible))


def _is_lost(
    key: Key, member: Member, reports: ReportBook, alive: Mapping[str, int], registered: Collection[str]
) -> bool:
    if member.broker not in registered:
        return True  # an operator has forgotten it
    life = alive.get(member.broker)
    if life is None or life == member.incarnation or reports.lives.get(member.broker) != life:
        return False  # it may be there, or has not said yet what it holds
    report = reports.of(key, member.broker)
    return report is None or not report.member.same_log(member)


def begun_anew(record: ChainRecord, leader: Member) -> ChainRecord | None:
    """A new log, behind everything that may have been given out. The others join it, as they join any chain."""
    if record.reserved is None:
        return None
    epoch, begins = record.epoch + 1, record.reserved.end
    return _replace(
        record,
        epoch=epoch,
        chain=(leader,),
        joining=None,
        eligible=(),
        committed=begins,
        reserved=Reservation(begins + OFFSETS_RESERVED, begins, epoch),
    )
