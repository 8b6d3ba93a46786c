"""What a member complains about to the controller: its successor, or its own disk (C14, C15, C31).

Blame must reach the member that stands still. Every member says now and then what it has on disk itself (`Held`), so
that nobody is blamed for those after it; a successor gets more time only by getting further; and a head, which has
nobody above it, reports itself when its own disk does not finish a sync. Complaints are repeated with every tick for as
long as they hold. They say when to act; what is true is decided by epochs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stentor import limits
from stentor.core import replica as r
from stentor.core.below import NEVER
from stentor.core.peers import Complaint, Held

if TYPE_CHECKING:
    from stentor.core.chain import Replica
    from stentor.core.replica import ReplicaEffect as Effect

_LAG_US = int(5 * limits.PEER_HEARTBEAT_S * 1_000_000)
_STALL_TICKS = int(limits.REPLICA_STALL_S / limits.PEER_HEARTBEAT_S)


class Complaints:
    """What one replica has to say about itself and its successor."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._ticked_us = 0
        self._told_held = NEVER
        self._syncing_ticks = 0  # for how long the same sync has been under way

    def forget(self) -> None:
        """A new epoch begins."""
        self._told_held = NEVER

    def synced(self) -> None:
        """The disk has finished something."""
        self._syncing_ticks = 0

    def excuse(self, now_us: int) -> None:
        """An observer that stood still itself knows nothing about what others did meanwhile (C15)."""
        if now_us - self._ticked_us > _LAG_US:
            self._replica.below.excuse(now_us)
        self._ticked_us = now_us

    def tick(self, tick: r.Tick, now_us: int) -> list[Effect]:
        return [*self._held(), *self.of_successor(tick, now_us), *self.of_own_disk()]

    def _held(self) -> list[Effect]:
        """What this member has, for who would blame it for those after it."""
        replica = self._replica
        predecessor = replica.place.predecessor
        if predecessor is None or not replica.linked or self._told_held == replica.durable or replica.place.joins:
            return []
        self._told_held = replica.durable
        return [r.Send(predecessor.broker, Held(replica.epoch, replica.durable))]

    def of_successor(self, tick: r.Tick, now_us: int) -> list[Effect]:
        """One that cannot be linked, is not heard, or stands still while there is something to do."""
        replica = self._replica
        successor = replica.place.successor
        if successor is None or not replica.linked:
            return []
        me = replica.me.broker
        unheard, joins = successor.broker in tick.unheard, replica.place.is_tail
        why = replica.below.complaint(now_us, replica.durable_here(), unheard=unheard, joins=joins)
        return [r.Report(Complaint(replica.epoch, successor, f"{successor.broker} {why}", me))] if why else []

    def of_own_disk(self) -> list[Effect]:
        """A sync that does not come back. Ticks are counted, not time: that a process was paused says nothing."""
        replica = self._replica
        self._syncing_ticks = self._syncing_ticks + 1 if replica.syncing else 0
        if self._syncing_ticks <= _STALL_TICKS:
            return []
        why = f"the disk of {replica.me.broker} has not finished a sync for {limits.REPLICA_STALL_S:g} s"
        return [r.Report(Complaint(replica.epoch, replica.me, why, replica.me.broker))]
