"""The broker's statistics in Prometheus' text format."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST

_BROKER_GAUGES = ("uptime_s", "connections", "streams", "topics", "partitions")
_PARTITION_COUNTERS = ("messages_in", "batches_in", "bytes_in")
_LABELS = ("topic", "partition")


class _Collector:
    def __init__(self, statistics: dict[str, Any]) -> None:
        self._statistics = statistics

    def collect(self) -> Any:
        broker, partitions = self._statistics["broker"], self._statistics["partitions"]
        for name in _BROKER_GAUGES:
            yield GaugeMetricFamily(f"stentor_broker_{name}", f"Broker: {name}", value=broker[name])
        yield CounterMetricFamily("stentor_broker_refusals", "Connections refused", value=broker["refusals"])
        for name in _PARTITION_COUNTERS:
            family = CounterMetricFamily(f"stentor_partition_{name}", f"Published: {name}", labels=_LABELS)
            for row in partitions:
                family.add_metric([row["topic"], str(row["partition"])], row[name])
            yield family
        yield from _gauges(partitions, "log", ("start", "end", "synced_end", "bytes", "segments"))
        yield from _gauges(partitions, "replica", ("committed", "epoch", "waiting"))
        yield from _gauges(partitions, "chain", ("replicas", "replicas_wanted"))


def _gauges(partitions: list[dict[str, Any]], part: str, names: tuple[str, ...]) -> Any:
    for name in names:
        family = GaugeMetricFamily(f"stentor_partition_{name}", f"Partition: {name}", labels=_LABELS)
        for row in partitions:
            family.add_metric([row["topic"], str(row["partition"])], row[part][name])
        yield family


def render(statistics: dict[str, Any]) -> tuple[bytes, str]:
    """(body, content type) for a scrape."""
    registry = CollectorRegistry()
    registry.register(_Collector(statistics))
    return generate_latest(registry), CONTENT_TYPE_LATEST
