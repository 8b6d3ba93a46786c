"""What partitions let go of: segments past their retention, and copies that were put aside. Runs in threads."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from stentor.core.queue import QueueState
from stentor.core.replica_events import Started

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stentor.broker.catalogue import Catalogue
    from stentor.broker.environment import Environment
    from stentor.broker.partitions.compactions import Compactions
    from stentor.broker.partitions.partition import Partition
    from stentor.core.records import Key
    from stentor.storage.directory import DataDirectory

logger = logging.getLogger(__name__)


class Waits(Protocol):
    """Where the cursors are that retention waits for."""

    def position(self, key: Key, name: str) -> int | None: ...
    def look_again(self, key: Key, name: str) -> None: ...


class LettingGo:
    """Retention of the logs that this broker leads, and of old copies."""

    def __init__(
        self,
        environment: Environment,
        catalogue: Catalogue,
        directory: DataDirectory,
        partitions: Mapping[Key, Partition],
        cursors: Waits,
        compactions: Compactions,
    ) -> None:
        self._environment = environment
        self._catalogue = catalogue
        self._directory = directory
        self._partitions = partitions
        self._cursors = cursors
        self.compactions = compactions
        self.on_pinned: Callable[[Partition, int], None] = lambda *_: None  # jobs below an offset keep old segments

    def retain(self) -> None:
        """The head of each chain lets old segments go; its members follow."""
        for partition in list(self._partitions.values()):
            settings = partition.settings
            limited = settings.retention_age_s or settings.retention_bytes is not None
            if partition.deleted or not limited or not partition.replica.position.is_head:
                continue
            before = partition.log.start
            start = self._environment.failures.run(f"{partition.name}: retention", self._retain, partition)
            if start not in (None, before):
                self._environment.loop.call_soon_threadsafe(partition.step, Started(start))

    def _retain(self, partition: Partition) -> int:
        now_us, committed = self._environment.clock.now_us(), self._open_from(partition)
        settings, log = partition.settings, partition.log
        if not settings.waits_for:
            partition.waiting.nothing()
            return log.retain(now_us, committed=committed)
        known = [self._cursors.position(partition.key, name) for name in settings.waits_for]
        passed = min([committed, *(position for position in known if position is not None)])
        if None in known or not partition.replica.standing.confirmed:
            return log.start  # nothing is deleted on a guess
        before, until = log.start, passed
        if settings.retention_wait_bytes is not None:
            wait_bytes = settings.retention_wait_bytes
            until = max(passed, log.retention_end(now_us, committed=committed, passed=passed, wait_bytes=wait_bytes))
        start = log.retain(now_us, committed=until)
        due = log.retention_end(now_us, committed=committed)
        partition.waiting.found(passed=passed, due=due, before=before, start=start)
        if partition.waiting.kept:
            for name in settings.waits_for:
                self._cursors.look_again(partition.key, name)
        return start

    def _open_from(self, partition: Partition) -> int:
        """What may go at most: all that is committed, but a queue's jobs that are not finished stay."""
        queue = next((state for state in partition.replica.states if isinstance(state, QueueState)), None)
        if queue is None:
            return partition.committed
        first = min(partition.committed, queue.committed_first)
        due = partition.log.retention_end(self._environment.clock.now_us(), committed=partition.committed)
        if due > first:
            self._environment.loop.call_soon_threadsafe(self.on_pinned, partition, due)
        return first

    def clear_aside(self) -> None:
        """Copies that were replaced long ago go, where the chain is full without them."""
        age_s, now_s = self._environment.config.aside_age_s, self._environment.clock.now_us() / 1_000_000
        for copy in self._directory.aside() if age_s else ():
            if now_s - copy.since_s >= age_s and self._is_replaced((copy.topic_id, copy.partition)):
                logger.info("%s was set aside %.0f s ago and is removed", copy.path.name, now_s - copy.since_s)
                self._environment.failures.run(f"{copy.path.name}: removing it", self._directory.remove_aside, copy)

    def _is_replaced(self, key: Key) -> bool:
        """Whether others hold all of it; of a topic that nobody knows and nobody deleted, nothing is removed."""
        held = self._catalogue.chains.get(key)
        if held is None:
            return key[0] in self._catalogue.deleted
        return len(held.record.chain) >= held.record.factor
