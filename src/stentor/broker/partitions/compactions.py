"""Compaction of the logs on this broker: heads log horizons, every member compacts by itself (C23).

    look ──► head: enough was written ──► logs a horizon ── committed ──► every member begins a new segment
         └─► any member: what is below its horizon is sealed ──► a compaction, slice by slice, one log at a time

A slice runs in a read thread; the next one waits until the bytes of this one are within the limit of a second.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from stentor.broker.partitions.interfaces import Request
from stentor.core.acks import ALL
from stentor.core.horizon import HORIZON
from stentor.limits import MIB
from stentor.storage.memory_log import on_disk
from stentor.wire import sparse
from stentor.wire.header import unpack

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from stentor.broker.environment import Environment
    from stentor.broker.partitions.interfaces import DeferredSync
    from stentor.broker.partitions.partition import Partition
    from stentor.core.records import Key
    from stentor.core.replica_events import Answer
    from stentor.errors import StentorError
    from stentor.storage.compaction import Compaction

logger = logging.getLogger(__name__)

COMPACTION_CHECK_S: Final = 5.0
"""How often a head looks whether compaction is worth it, and members whether they may go on."""

COMPACTION_BYTES_PER_S: Final = 16 * MIB
"""What one broker reads for compactions, at most: they must not take the disk or the processor from producers."""

HORIZON_BYTES_MAX: Final = 4 * MIB
"""A horizon carries what is known of producers. A log whose producers need more is not compacted."""


class Compactions:
    """All compactions of a broker."""

    def __init__(
        self, environment: Environment, partitions: Mapping[Key, Partition], enabled: Callable[[], bool]
    ) -> None:
        self._environment = environment
        self._partitions = partitions
        self._enabled = enabled  # whether all brokers of the cluster know what a horizon is (C27)
        self._job: tuple[Partition, Compaction] | None = None
        self._last: Key | None = None  # the partition whose turn it was last
        self._proposing: set[Key] = set()

    def look(self) -> None:
        """Log horizons where they are due, and begin a compaction if none is under way."""
        for partition in list(self._partitions.values()):
            self._environment.failures.run(f"{partition.name}: looking whether to compact", self._look_at, partition)
        if self._job is None:
            self._begin()

    def _look_at(self, partition: Partition) -> None:
        partition.compaction.committed()
        if self._enabled() and partition.settings.compacted:
            self._consider(partition)

    # --- horizons -------------------------------------------------------------------------------

    def _leads(self, partition: Partition) -> bool:
        replica = partition.replica
        return replica.position.is_head and replica.active and not replica.failed and not partition.deleted

    def _consider(self, partition: Partition) -> None:
        compaction, now_s = partition.compaction, self._environment.clock.monotonic()
        if partition.key in self._proposing or not self._leads(partition) or not compaction.is_settled:
            return
        if not compaction.is_worth_it(now_s):
            return
        compaction.proposed(now_s)
        self._proposing.add(partition.key)
        until_us = self._environment.clock.now_us() - int(partition.settings.deletions_kept_s * 1_000_000)
        find = partial(on_disk(partition.log).end_of_older, until_us)
        self._environment.reads.submit(find, partial(self._propose, partition))

    def _propose(self, partition: Partition, older_end: int | None, error: StentorError | None) -> None:
        """Back in the loop: below which offset deletions are old enough is known."""
        self._proposing.discard(partition.key)
        if error is not None:
            logger.warning("partition %s cannot be compacted: %s", partition.name, error)
            return
        if older_end is None or not self._leads(partition) or not partition.compaction.is_settled:
            return
        topic_id, index = partition.key
        until = max(partition.compaction.horizon.deletions_until, min(older_end, partition.committed))
        producers = partition.replica.dedupe.snapshot()
        if len(producers) > HORIZON_BYTES_MAX:
            logger.warning(
                "partition %s is not compacted: what is remembered of its producers takes %d bytes",
                partition.name,
                len(producers),
            )
            return
        batch = sparse.control(HORIZON, producers, topic_id=topic_id, partition=index, value=until)
        partition.publish(memoryview(batch), unpack(batch), Request(_NOBODY, 0), ALL)

    # --- compactions ----------------------------------------------------------------------------

    def _begin(self) -> None:
        """Begin the next one that is due and possible. All get their turn: one may be due again at once."""
        everyone = list(self._partitions.values())
        behind = next((place for place, each in enumerate(everyone, 1) if each.key == self._last), 0)
        for partition in (*everyone[behind:], *everyone[:behind]):
            if partition.deleted or partition.replica.failed or partition.sync.is_cutting:
                continue
            job = partition.compaction.begin() if partition.compaction.is_due else None
            if job is not None:
                self._job, self._last = (partition, job), partition.key
                self._go_on()
                return

    def _go_on(self) -> None:
        assert self._job is not None
        self._environment.reads.submit(self._job[1].go_on, self._went_on)

    def _went_on(self, size: int | None, error: StentorError | None) -> None:
        assert self._job is not None
        partition, job = self._job
        partition.compaction.replaced()
        if size is not None and error is None:
            if job.replaces:
                partition.compaction.before_replacing()
                self._go_on()
                return
            self._environment.loop.call_later(size / COMPACTION_BYTES_PER_S, self._go_on)
            return
        self._job = None
        partition.compaction.ended(job.report, self._environment.clock.now_us())
        if error is not None:
            logger.warning("partition %s: a compaction has failed: %s", partition.name, error)
            return
        report = job.report
        logger.info(
            "partition %s compacted below %d: %d of %d messages removed, %d bytes are %d now",
            partition.name,
            partition.compaction.horizon.offset,
            report.rows_dropped,
            report.rows_before,
            report.bytes_before,
            report.bytes_after,
        )
        self._begin()


class _Nobody:
    """Who publishes a horizon: nobody waits for it."""

    def published(self, correlation: int, answer: Answer) -> None: ...
    def fail(self, correlation: int, error: StentorError, operation: str, what: str = "") -> None: ...
    def flush(self) -> None: ...
    def hold(self) -> None: ...
    def release(self) -> None: ...

    def defer_sync(self, sync: DeferredSync) -> bool:  # noqa: ARG002
        return False


_NOBODY = _Nobody()
