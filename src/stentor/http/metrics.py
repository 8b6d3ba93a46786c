"""The broker's statistics in Prometheus' text format.

Written by hand: a scrape of ten thousand partitions is a hundred thousand lines, and takes a tenth of the time that
general libraries need for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from prometheus_client.exposition import CONTENT_TYPE_LATEST

if TYPE_CHECKING:
    from collections.abc import Iterator

_BROKER_GAUGES: Final = ("uptime_s", "connections", "streams", "topics", "partitions")
_HEALTH_GAUGES: Final = {
    "disk_writable": "1 while the disk accepts writes",
    "store_reachable": "1 while the coordination store answers",
    "log_failed": "Logs that accept no more writes",
    "chain_short": "Chains with fewer members than they should have",
    "chain_refusing": "Chains with too few members to accept messages",
    "retention_overrun": "Partitions whose retention deleted what a cursor had not passed",
}
_PARTITION_COUNTERS: Final = ("messages_in", "batches_in", "bytes_in")
_PARTITION_GAUGES: Final = {
    "log": ("start", "end", "synced_end", "bytes", "segments"),
    "replica": ("committed", "epoch", "waiting"),
    "chain": ("replicas", "replicas_wanted"),
}

_LAG_GAUGES: Final = {
    "lag_max": "Messages that the slowest subscriber is behind",
    "lag_sum": "Messages that all subscribers together are behind",
    "lag_max_s": "Age in seconds of the oldest message that a subscriber has not read",
}


def render(statistics: dict[str, Any]) -> tuple[bytes, str]:
    """(body, content type) for a scrape."""
    return "".join(_lines(statistics)).encode(), CONTENT_TYPE_LATEST


def _lines(statistics: dict[str, Any]) -> Iterator[str]:
    broker, partitions = statistics["broker"], statistics["partitions"]
    for name in _BROKER_GAUGES:
        yield from _family(f"stentor_broker_{name}", f"Broker: {name}", "gauge")
        yield f"stentor_broker_{name} {float(broker[name])}\n"
    yield from _family("stentor_broker_refusals_total", "Connections refused", "counter")
    yield f"stentor_broker_refusals_total {float(broker['refusals'])}\n"
    for name, meaning in _HEALTH_GAUGES.items():
        yield from _family(f"stentor_{name}", meaning, "gauge")
        yield f"stentor_{name} {float(statistics['health'][name])}\n"
    labels = [f'{{partition="{row["partition"]}",topic="{_escaped(row["topic"])}"}}' for row in partitions]
    for name in _PARTITION_COUNTERS:
        family = f"stentor_partition_{name}_total"
        yield from _family(family, f"Published: {name}", "counter")
        for label, row in zip(labels, partitions, strict=True):
            yield f"{family}{label} {float(row[name])}\n"
    for part, names in _PARTITION_GAUGES.items():
        for name in names:
            family = f"stentor_partition_{name}"
            yield from _family(family, f"Partition: {name}", "gauge")
            for label, row in zip(labels, partitions, strict=True):
                yield f"{family}{label} {float(row[part][name])}\n"
    followed = [(label, row) for label, row in zip(labels, partitions, strict=True) if row["streams"]]
    for name, meaning in _LAG_GAUGES.items():
        yield from _family(f"stentor_partition_{name}", meaning, "gauge")
        for label, row in followed:
            yield f"stentor_partition_{name}{label} {float(row[name])}\n"


def _family(name: str, meaning: str, kind: str) -> Iterator[str]:
    yield f"# HELP {name} {meaning}\n# TYPE {name} {kind}\n"


def _escaped(text: str) -> str:
    """A label's value."""
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
