"""The broker's statistics in Prometheus' text format.

Written by hand: a scrape of ten thousand partitions is a hundred thousand lines, and takes a tenth of the time that
general libraries need for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client.exposition import CONTENT_TYPE_LATEST

from stentor.wire.statistics import StoreRoomStatistics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stentor.wire.statistics import (
        BrokerCounts,
        BrokerStatistics,
        Health,
        LoopStatistics,
        PartitionStatistics,
        QueueStatistics,
        ServiceStatistics,
    )

    Read = Callable[[PartitionStatistics], float]

_BROKER_GAUGES: Final[dict[str, Callable[[BrokerCounts], float]]] = {
    "uptime_s": lambda broker: broker.uptime_s,
    "connections": lambda broker: broker.connections,
    "streams": lambda broker: broker.streams,
    "topics": lambda broker: broker.topics,
    "partitions": lambda broker: broker.partitions,
    "memory_log_bytes": lambda broker: broker.memory_log_bytes,
    "memory_bytes": lambda broker: broker.memory.bytes,
    "memory_bytes_max": lambda broker: broker.memory.bytes_max,
    "tail_cache_bytes": lambda broker: broker.memory.tail_cache_bytes,
    "tail_cache_bytes_max": lambda broker: broker.memory.tail_cache_bytes_max,
}
_LOOP: Final[dict[str, tuple[str, str, Callable[[LoopStatistics], float]]]] = {
    "steps_total": ("Steps of the loop that were measured", "counter", lambda loop: loop.steps),
    "steps_over_50_ms_total": ("Steps longer than 50 ms", "counter", lambda loop: loop.over_50_ms),
    "steps_over_200_ms_total": ("Steps longer than 200 ms", "counter", lambda loop: loop.over_200_ms),
    "longest_step_ms": ("The longest step of the last minute", "gauge", lambda loop: loop.lately_ms),
    "parked_total": ("Slices of connections that ended with frames left", "counter", lambda loop: loop.parked),
}
_SERVICES: Final[dict[str, tuple[str, str, Callable[[ServiceStatistics], float]]]] = {
    "responders": ("Responders of all topics that are served here", "gauge", lambda found: found.responders),
    "requests_queued": ("Requests that wait for a responder", "gauge", lambda found: found.queued),
    "requests_in_work": ("Requests that responders have now", "gauge", lambda found: found.in_work),
    "requests_handed_over_total": ("Requests that responders got", "counter", lambda found: found.handed_over),
    "requests_refused_total": ("Requests answered with an error by the broker", "counter", lambda found: found.refused),
}
_QUEUES: Final[dict[str, tuple[str, str, Callable[[QueueStatistics], float]]]] = {
    "ready": ("Jobs that can be handed out", "gauge", lambda found: found.ready),
    "in_work": ("Jobs that consumers hold", "gauge", lambda found: found.in_work),
    "delayed": ("Jobs that are not due yet", "gauge", lambda found: found.delayed),
    "dying": ("Jobs on their way to the dead-letter topic", "gauge", lambda found: found.dying),
    "consumers": ("Consumers of the partition that has most", "gauge", lambda found: found.consumers),
    "finished_total": ("Jobs that were acknowledged", "counter", lambda found: found.finished),
    "dead_lettered_total": ("Jobs that went to the dead-letter topic", "counter", lambda found: found.dead_lettered),
    "skipped": ("Records of the log that could not be applied", "gauge", lambda found: found.skipped),
}
_HEALTH_GAUGES: Final[dict[str, tuple[str, Callable[[Health], float]]]] = {
    "disk_writable": ("1 while the disk accepts writes", lambda health: health.disk_writable),
    "store_reachable": ("1 while the coordination store answers", lambda health: health.store_reachable),
    "log_failed": ("Logs that accept no more writes", lambda health: health.log_failed),
    "chain_short": ("Chains with fewer members than they should have", lambda health: health.chain_short),
    "chain_refusing": ("Chains with too few members to accept messages", lambda health: health.chain_refusing),
    "retention_overrun": (
        "Partitions whose retention deleted what a cursor had not passed",
        lambda health: health.retention_overrun,
    ),
}
_STORE: Final[dict[str, tuple[str, str, Callable[[StoreRoomStatistics], float]]]] = {
    "bytes": ("Size of etcd's database", "gauge", lambda store: store.bytes),
    "bytes_in_use": ("What of it is not free for other changes", "gauge", lambda store: store.bytes_in_use),
    "bytes_max": ("The quota of etcd", "gauge", lambda store: store.bytes_max),
    "refused_total": ("Changes by clients that were refused for lack of room", "counter", lambda store: store.refused),
}
_PARTITION_COUNTERS: Final[dict[str, Read]] = {
    "messages_in": lambda row: row.messages_in,
    "batches_in": lambda row: row.batches_in,
    "bytes_in": lambda row: row.bytes_in,
}
_PARTITION_GAUGES: Final[dict[str, Read]] = {
    "start": lambda row: row.log.start,
    "end": lambda row: row.log.end,
    "synced_end": lambda row: row.log.synced_end,
    "bytes": lambda row: row.log.bytes,
    "segments": lambda row: row.log.segments,
    "committed": lambda row: row.replica.committed,
    "epoch": lambda row: row.replica.epoch,
    "waiting": lambda row: row.replica.waiting,
    "replicas": lambda row: row.chain.replicas,
    "replicas_wanted": lambda row: row.chain.replicas_wanted,
    "compacted_to": lambda row: row.compaction.compacted_to,
    "compaction_running": lambda row: row.compaction.running,
}
_COMPACTION_COUNTERS: Final[dict[str, Read]] = {
    "compactions": lambda row: row.compaction.runs,
    "compaction_bytes_before": lambda row: row.compaction.bytes_before,
    "compaction_bytes_after": lambda row: row.compaction.bytes_after,
    "compaction_messages_removed": lambda row: row.compaction.messages_removed,
}
_LAG_GAUGES: Final[dict[str, tuple[str, Read]]] = {
    "lag_max": ("Messages that the slowest subscriber is behind", lambda row: row.lag_max),
    "lag_sum": ("Messages that all subscribers together are behind", lambda row: row.lag_sum),
    "lag_max_s": ("Age in seconds of the oldest message that a subscriber has not read", lambda row: row.lag_max_s),
}


def render(statistics: BrokerStatistics) -> tuple[bytes, str]:
    """(body, content type) for a scrape."""
    return "".join(_lines(statistics)).encode(), CONTENT_TYPE_LATEST


def _lines(statistics: BrokerStatistics) -> Iterator[str]:
    for name, count in _BROKER_GAUGES.items():
        yield from _family(f"stentor_broker_{name}", f"Broker: {name}", "gauge")
        yield f"stentor_broker_{name} {float(count(statistics.broker))}\n"
    yield from _family("stentor_broker_refusals_total", "Connections refused", "counter")
    yield f"stentor_broker_refusals_total {float(statistics.broker.refusals)}\n"
    yield from _family("stentor_broker_failures_total", "Pieces of repeated work that failed", "counter")
    yield f"stentor_broker_failures_total {float(statistics.broker.failures)}\n"
    yield from _loop_lines(statistics.broker.loop)
    for name, (meaning, kind, number) in _SERVICES.items():
        yield from _family(f"stentor_{name}", meaning, kind)
        yield f"stentor_{name} {float(number(statistics.services))}\n"
    for name, (meaning, kind, figure) in _QUEUES.items():
        yield from _family(f"stentor_queue_{name}", meaning, kind)
        for queue in statistics.queues:
            yield f'stentor_queue_{name}{{queue="{_escaped(queue.topic)}"}} {float(figure(queue))}\n'
    for name, (meaning, state) in _HEALTH_GAUGES.items():
        yield from _family(f"stentor_{name}", meaning, "gauge")
        yield f"stentor_{name} {float(state(statistics.health))}\n"
    yield from _store(statistics)
    rows = [(f'{{partition="{row.partition}",topic="{_escaped(row.topic)}"}}', row) for row in statistics.partitions]
    for name, read in _PARTITION_COUNTERS.items():
        yield from _samples(f"stentor_partition_{name}_total", f"Published: {name}", "counter", read, rows)
    for name, read in _COMPACTION_COUNTERS.items():
        yield from _samples(f"stentor_partition_{name}_total", f"Compaction: {name}", "counter", read, rows)
    for name, read in _PARTITION_GAUGES.items():
        yield from _samples(f"stentor_partition_{name}", f"Partition: {name}", "gauge", read, rows)
    followed = [(label, row) for label, row in rows if row.streams]
    for name, (meaning, read) in _LAG_GAUGES.items():
        yield from _samples(f"stentor_partition_{name}", meaning, "gauge", read, followed)


def _loop_lines(loop: LoopStatistics) -> Iterator[str]:
    for name, (meaning, kind, number) in _LOOP.items():
        yield from _family(f"stentor_loop_{name}", meaning, kind)
        yield f"stentor_loop_{name} {float(number(loop))}\n"


def _store(statistics: BrokerStatistics) -> Iterator[str]:
    """The room in the coordination store; zeros where it cannot be full."""
    store = StoreRoomStatistics() if statistics.cluster is None else statistics.cluster.store
    for name, (meaning, kind, measure) in _STORE.items():
        yield from _family(f"stentor_store_{name}", meaning, kind)
        yield f"stentor_store_{name} {float(measure(store))}\n"


def _samples(
    family: str, meaning: str, kind: str, read: Read, rows: list[tuple[str, PartitionStatistics]]
) -> Iterator[str]:
    """One number of every partition."""
    yield from _family(family, meaning, kind)
    for label, row in rows:
        yield f"{family}{label} {float(read(row))}\n"


def _family(name: str, meaning: str, kind: str) -> Iterator[str]:
    yield f"# HELP {name} {meaning}\n# TYPE {name} {kind}\n"


def _escaped(text: str) -> str:
    """A label's value."""
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
