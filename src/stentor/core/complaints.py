"""What a member complains about to the controller: its successor, or its own disk (C14, C15, C31).

Blame must reach the member that stands still. Every member says now and then what it has on disk itself (`Held`), so
that nobody is blamed for those after it; a successor gets more time only by getting further; and a head, which has
nobody above it, reports itself when its own disk does not finish a sync. Complaints are repeated with every tick for as
long as they hold. They say when to act; what is true is decided by epochs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stentor import limits
from stentor.core import replica_events as r
from stentor.core.chain_messages import Complaint, Held
from stentor.core.downstream import NEVER

if TYPE_CHECKING:
    from stentor.core.replica import Replica
    from stentor.core.replica_events import ReplicaEffect as Effect

_STALL_US = int(limits.REPLICA_STALL_S * 1_000_000)


class Complaints:
    """What one replica has to say about itself and its successor."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._told_held = NEVER

    def forget(self) -> None:
        """A new epoch begins."""
        self._told_held = NEVER

    def tick(self, tick: r.Tick, now_us: int) -> list[Effect]:
        self._replica.downstream.excuse(tick.awake_since_us)
        return [*self._held(), *self.of_successor(tick, now_us), *self.of_own_disk(tick, now_us)]

    @property
    def has_told(self) -> bool:
        """Whether the predecessor knows what this member has."""
        replica = self._replica
        position = replica.position
        if position.predecessor is None or position.joins or (position.is_tail and not replica.downstream.joint):
            return True  # there is nobody to know it, or `Up` has said it
        return self._told_held == replica.durable

    def are_over(self, unheard: frozenset[str]) -> bool:
        """Whether ticks find nothing to look at: all is linked, on disk, and known to those above."""
        replica = self._replica
        position, below, record = replica.position, replica.downstream, replica.record
        if record is None or replica.failed or (position.index is None and not position.joins):
            return True  # until it is told to take part again
        if replica.wedged or replica.syncing or not replica.linked or replica.confirmations.under_way:
            return False
        successor = position.successor
        if successor is None:
            return self.has_told
        fed = successor.broker not in unheard and below.has_all(replica.durable_here())
        return fed and successor != record.joining and self.has_told

    def _held(self) -> list[Effect]:
        """What this member has, for who would blame it for those after it."""
        replica = self._replica
        predecessor = replica.position.predecessor
        if predecessor is None or not replica.linked or self.has_told:
            return []
        self._told_held = replica.durable
        return [r.Send(predecessor.broker, Held(replica.epoch, replica.durable))]

    def of_successor(self, tick: r.Tick, now_us: int) -> list[Effect]:
        """One that cannot be linked, is not heard, or stands still while there is something to do."""
        replica = self._replica
        successor = replica.position.successor
        if successor is None or not replica.linked:
            return []
        me = replica.me.broker
        unheard, joins = successor.broker in tick.unheard, replica.position.is_tail
        why = replica.downstream.complaint(now_us, replica.durable_here(), unheard=unheard, joins=joins)
        if not why:
            return []
        stalls = replica.downstream.fed is not None and not unheard
        return [r.Report(Complaint(replica.epoch, successor, f"{successor.broker} {why}", me, stalls))]

    def of_own_disk(self, tick: r.Tick, now_us: int) -> list[Effect]:
        """A sync that does not come back, while this broker itself has not stood still."""
        replica = self._replica
        began_us = tick.sync_began_us
        if began_us is None or not replica.syncing or now_us - max(began_us, tick.awake_since_us) <= _STALL_US:
            return []
        why = f"the disk of {replica.me.broker} has not finished a sync for {limits.REPLICA_STALL_S:g} s"
        return [r.Report(Complaint(replica.epoch, replica.me, why, replica.me.broker, stalls=True))]
