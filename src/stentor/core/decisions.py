"""The two questions that every message asks: may it be taken, and may it be shown?

Each is one function of the machine's state, and is asked in one place: `may_publish` by the replica before it assigns
an offset, `may_read` by the broker before it opens a stream or answers where something is. None of them changes
anything. What they raise or return is what the client hears.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from stentor.core import refusals
from stentor.core.acks import QUORUM
from stentor.core.records import HeldRecord
from stentor.core.reservation import may_assign
from stentor.errors import NotHead, NotReady, OffsetOutOfRange

if TYPE_CHECKING:
    from stentor.core.replica import Replica
    from stentor.errors import StentorError


def may_publish(replica: Replica, ack: int) -> StentorError | None:
    """Why a replica cannot take a publish now; None when it can."""
    standing = replica.standing
    if not standing.confirmed:
        return refusals.without_store() if standing.storeless else refusals.cut_off()
    if replica.failed:
        return refusals.failed(replica.failed)
    record, position = replica.record, replica.position
    if record is None or not position.is_head or replica.wedged:
        return refusals.not_head(next(iter(position.brokers), ""), replica.epoch, replica.revision)
    if not replica.active:
        return refusals.not_active()
    if standing.unheard and not position.is_tail and record.chain[1].broker in standing.unheard:
        return refusals.unconfirmed(record.chain[1].broker)
    if record.is_short or not may_assign(record, replica.end):
        return refusals.too_short(record) if record.is_short else refusals.offsets_used_up()
    if ack == QUORUM and len(record.chain) < record.quorum:
        return refusals.no_quorum(record)
    return None


class Readership(msgspec.Struct, frozen=True, gc=False):
    """What a decision about readers needs beside the machine's own state."""

    name: str  # of the partition, for what is refused
    alone: bool  # the broker is a system of its own: there is no other copy to go to
    head_only: bool  # the topic is active-passive (C26)
    stored: HeldRecord | None  # the record that the coordination store is known to have
    predecessor_heard: bool


def may_read(replica: Replica, of: Readership) -> int:
    """Up to where a reader may be served: the commit point. Raises why it may not be (C24, C25, C26, C27)."""
    standing, position = replica.standing, replica.position
    if standing.storeless and not replica.failed:
        return replica.committed  # what is known to be committed stays so
    if not standing.confirmed:
        raise refusals.without_store() if standing.storeless else refusals.cut_off()
    if position.predecessor is not None and not of.predecessor_heard:
        raise NotReady(f"{of.name} does not hear its predecessor {position.predecessor.broker}.", hint="Try another.")
    if replica.record is not None and position.leaves_out(replica.me.broker):
        own = HeldRecord(replica.record, replica.revision)
        newest = own if of.stored is None else max(own, of.stored, key=lambda held: held.revision)
        raise refusals.elsewhere(of.name, newest.record, newest.revision)
    if of.stored is not None and of.stored.record.epoch < replica.epoch and not replica.serves:
        raise refusals.older_store(of.name)
    if not replica.serves and not (replica.failed and of.alone):
        raise NotReady(f"{of.name} does not know yet what is committed.", hint="Try again in a moment.")
    if of.head_only and not position.is_head:
        raise _stands_by(replica, of.name)
    return replica.committed


def _stands_by(replica: Replica, name: str) -> NotHead:
    head = next(iter(replica.position.brokers), "")
    return NotHead(
        f"{name} is served by {head or 'nobody'} alone; this broker stands by.",
        hint="Clients go there by themselves.",
        head=head,
        epoch=replica.epoch,
        revision=replica.revision,
    )


def check_stream(replica: Replica, name: str, log_start: int, *, start: int, end: int | None, seen: int) -> None:
    """Whether a stream may begin here: its offsets exist, or the reader has seen elsewhere that they do."""
    committed = replica.committed
    if replica.standing.storeless and (end is None or max(start, end) > committed):
        raise refusals.without_store(f"{name} can be read up to {committed}")  # C25: nobody who would wait for more
    if committed < seen < start:  # this member is behind, and cannot know where the messages end (C24)
        raise NotReady(
            f"{name} is known to be committed up to {committed} here; the client has seen {seen}.",
            hint="Ask another member, or again in a moment.",
            object=name,
        )
    if not log_start <= start <= max(committed, seen):
        if replica.begins > start:
            raise refusals.begun_anew(name, start=start, begins=replica.begins, log_start=log_start, end=committed)
        raise OffsetOutOfRange(
            f"{name} holds offsets {log_start} to {committed}; {start} was asked for.",
            hint="Start at 'earliest' or 'latest', or at an offset in that range.",
            object=name,
            start=log_start,
            end=committed,
        )


def check_seen(replica: Replica, name: str, *, seen: int, epoch: int) -> None:
    """C24: no reader is shown less than it has seen; a member that is behind says "not yet".

    Unless it is gone: every member of a chain holds what is committed, so where the head of a later epoch
    lacks it, an operator let a shorter copy lead (C13), or a power cut took what was never brought to disk.
    """
    if seen <= replica.committed:
        return
    if replica.position.is_head and replica.epoch > epoch and seen > replica.end:
        return
    raise NotReady(
        f"{name} is committed up to {replica.committed} as far as this broker knows; {seen} was seen elsewhere.",
        hint="Another member knows more; try again in a moment.",
    )
