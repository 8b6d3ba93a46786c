"""How many jobs the queues have, for statistics: of the partitions that this broker leads, added up by queue.

Each partition is counted by its head alone, so the figures of all brokers together are those of the whole queue. What
is counted is in the head's log, and may be a moment ahead of what is committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stentor.broker.queues.heads import queue_of
from stentor.wire.statistics import QueueStatistics

if TYPE_CHECKING:
    from stentor.broker.partitions.partition import Partition


class QueueFigures:
    """Adds up what partitions say."""

    def __init__(self, now_us: int) -> None:
        self._now_us = now_us
        self._found: dict[str, QueueStatistics] = {}

    def look_at(self, partition: Partition) -> None:
        """Count the jobs of a partition, if it is one of a queue that is led here."""
        replica = partition.replica
        if partition.settings.kind != "queue" or not (replica.position.is_head and replica.active):
            return
        state, now_us = queue_of(partition), self._now_us
        counts, before = state.statistics(), self._found.get(partition.topic, QueueStatistics(topic=partition.topic))
        delayed = sum(1 for job in state.jobs.values() if job.due_us > now_us and not job.holder and not job.dead)
        self._found[partition.topic] = QueueStatistics(
            topic=partition.topic,
            partitions=before.partitions + 1,
            ready=before.ready + counts["waiting"] - delayed,
            in_work=before.in_work + counts["held"],
            delayed=before.delayed + delayed,
            dying=before.dying + counts["dead"],
            consumers=max(before.consumers, counts["holders"]),
            finished=before.finished + counts["finished"],
            dead_lettered=before.dead_lettered + counts["died"],
            skipped=before.skipped + state.skipped,
        )

    def statistics(self) -> list[QueueStatistics]:
        """The queues that were seen, by name."""
        return [self._found[name] for name in sorted(self._found)]
