"""The lone publisher: when one client publishes one small batch at a time, it waits for every switch.

Group commit in a thread serves many publishers well: one sync covers them all. A lone publisher that
waits for each answer gains nothing from it and pays two thread switches. So after a run of such
publishes the sync is done in the loop itself. Anyone else who publishes, two batches in one read, a large
batch, or one slow sync ends that at once: the loop must never wait for a disk while others need it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from stentor.broker.partitions.interfaces import DeferredSync
    from stentor.broker.write_coalescing import WriteCoalescing
    from stentor.ports import Clock

RUN_MIN: Final = 16
"""So many publishes, one at a time, by one client and no other, before it counts as alone."""

SMALL_BYTES: Final = 16 * 1024
"""A larger batch takes the disk too long."""

SYNC_US_MAX: Final = 10_000  # others wait for the loop meanwhile
PENALTY: Final = 200
"""A sync slower than this in the loop sends the publisher back to the threads for so many publishes."""


class InlineSync:
    """Who publishes alone, if anyone."""

    def __init__(self, clock: Clock, coalescing: WriteCoalescing) -> None:
        self.clock = clock
        self.coalescing = coalescing
        self._alone: object = None
        self._run = 0
        self.syncs = 0  # how many were done in the loop

    def note(self, who: object, *, single: bool) -> None:
        """A read of somebody's held publishes: one small batch, or more than that."""
        if who is self._alone and single:
            self._run += 1
        else:
            self._alone = who
            self._run = min(self._run, 0)

    def is_lone(self, who: object) -> bool:
        return who is self._alone and self._run >= RUN_MIN

    def synced(self, took_us: float) -> None:
        """A sync was done in the loop."""
        self.syncs += 1
        if took_us > SYNC_US_MAX:
            self._run = -PENALTY


class ReadSyncs:
    """The publishes of one connection within one read, and the syncs that wait for its end."""

    def __init__(self, inline: InlineSync) -> None:
        self._inline = inline
        self._publishes = 0  # a large batch counts twice
        self._deferred: list[DeferredSync] = []

    def note(self, size: int) -> None:
        """A batch of this size is about to be taken."""
        self._publishes += 1 if size <= SMALL_BYTES else 2

    def defer(self, sync: DeferredSync) -> bool:
        """Whether a sync may wait for the end of the read, to be done in the loop."""
        if self._inline.is_lone(self):
            self._deferred.append(sync)
            return True
        return False

    def finish(self) -> None:
        """The read is over. One small batch in a read, again and again, and nobody else: a lone publisher."""
        if not self._publishes:
            return
        inline = self._inline
        inline.note(self, single=self._publishes == 1)
        self._publishes = 0
        deferred, self._deferred = self._deferred, []
        in_loop = len(deferred) == 1 and inline.is_lone(self)
        for sync in deferred:
            if not in_loop:
                sync.run_deferred(in_loop=False)
            elif sync.is_fed:
                inline.coalescing.wait(partial(self._run, sync))  # the successor's batches leave first
            else:
                self._run(sync)

    def _run(self, sync: DeferredSync) -> None:
        clock = self._inline.clock
        began = clock.monotonic()
        sync.run_deferred(in_loop=True)
        self._inline.synced((clock.monotonic() - began) * 1e6)
