"""Topics with flush=interval are brought to disk here: one timer for all partitions.

A partition that was written to is due an interval later; one that was not costs nothing. Each turn flushes only so
many, so that thousands of partitions with a short interval cannot take the loop: their interval then becomes longer, by
one turn for every FLUSHES_PER_TURN of them.
"""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING

from stentor import limits

if TYPE_CHECKING:
    import asyncio

    from stentor.broker.failures import Failures
    from stentor.broker.partitions.partition import Partition


class Flusher:
    """Knows which partitions are due, and when."""

    def __init__(self, loop: asyncio.AbstractEventLoop, failures: Failures) -> None:
        self._loop = loop
        self._failures = failures
        self._due: list[tuple[float, int, Partition]] = []
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, partition: Partition) -> None:
        """It was written to, and is to be on disk an interval from now."""
        self._push(partition, self._loop.time() + partition.settings.flush_interval_ms / 1000)
        self._arm()

    def _push(self, partition: Partition, when: float) -> None:
        heapq.heappush(self._due, (when, next(self._numbers), partition))

    def _arm(self) -> None:
        if not self._due:
            return
        when = max(self._due[0][0], self._loop.time() + limits.FLUSH_TURN_S)
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._turn)

    def _turn(self) -> None:
        self._timer = None
        now = self._loop.time()
        flushed = 0
        while self._due and self._due[0][0] <= now and flushed < limits.FLUSHES_PER_TURN:
            _, _, partition = heapq.heappop(self._due)
            if partition.sync.dirty and not partition.deleted and not partition.replica.failed:
                flushed += 1
                self._failures.run(f"{partition.name}: bringing it to disk", partition.sync.flush_interval)
                if partition.sync.dirty:  # a sync is under way, and may have begun before the last write
                    self._push(partition, now + limits.FLUSH_TURN_S)
        self._arm()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due.clear()
