"""Metrics: what the brokers say about themselves in `_metrics`, summed up per topic and window in `_metrics.windows`.

Every broker publishes its counters every few seconds. Counters only grow, so what happened in a window is the highest
minus the lowest; a broker that started anew begins at zero, and is counted as another one. A window is published once,
when the watermark has passed it: records that come later than `late_s` are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from stentor.client.sync_client import Client

SOURCE: Final = "_metrics"
TARGET: Final = "_metrics.windows"
_RECORD: Final = """
    broker string, published_at_us bigint, publish_to_deliver_us array<bigint>,
    statistics struct<
        broker: struct<uptime_s: double, connections: bigint, bytes_in: bigint, bytes_out: bigint>,
        partitions: array<struct<
            topic: string, partition: int, messages_in: bigint, bytes_in: bigint, messages_out: bigint,
            streams: bigint, lag_max: bigint, replica: struct<position: int>, log: struct<bytes: bigint>>>>
"""


class TopicWindow(msgspec.Struct, frozen=True):
    """What happened to a topic in a window of time."""

    start: str
    end: str
    topic: str
    messages: int
    bytes: int
    messages_per_second: float
    bytes_per_message: float
    delivered: int
    delivered_per_second: float
    subscriptions: int
    lag: int
    log_bytes: int
    latency_us_p50: float | None = None
    latency_us_p99: float | None = None


def windows(records: DataFrame, *, window_s: int = 60, late_s: int = 30) -> DataFrame:
    """Rows of `_metrics` (value, timestamp) as one row per topic and window."""
    from pyspark.sql import functions as f

    parsed = records.select(f.from_json(f.col("value").cast("string"), _RECORD).alias("r"))
    timed = parsed.where("r is not null").select("r.*", f.timestamp_micros("r.published_at_us").alias("at"))
    marked = timed.withWatermark("at", f"{late_s} seconds")
    started = f.round(f.col("published_at_us") / 1e6 - f.col("statistics.broker.uptime_s"))
    rows = marked.select(
        "at", "broker", started.alias("life"), "publish_to_deliver_us", f.explode("statistics.partitions").alias("p")
    )
    per_partition = rows.groupBy(
        f.window("at", f"{window_s} seconds").alias("window"), "broker", "life", "p.topic", "p.partition"
    ).agg(*_per_partition())
    return per_partition.groupBy("window", "topic").agg(*_per_topic(window_s)).select(*_columns())


def _per_partition() -> list[Any]:
    """The head counts what comes in; every member counts what it delivers."""
    from pyspark.sql import functions as f

    def grown(name: str) -> Any:
        return f.max(f"p.{name}") - f.min(f"p.{name}")

    return [
        f.max(f.col("p.replica.position") == 0).alias("head"),
        grown("messages_in").alias("messages"),
        grown("bytes_in").alias("bytes"),
        grown("messages_out").alias("delivered"),
        f.max("p.streams").alias("streams"),
        f.max("p.lag_max").alias("lag"),
        f.max("p.log.bytes").alias("log_bytes"),
        f.max(f.expr("array_sort(publish_to_deliver_us)")).alias("latencies"),
    ]


def _per_topic(window_s: int) -> list[Any]:
    from pyspark.sql import functions as f

    head = f.col("head")
    messages, size = f.sum(f.when(head, f.col("messages"))), f.sum(f.when(head, f.col("bytes")))
    latencies = f.flatten(f.collect_list("latencies"))
    return [
        f.coalesce(messages, f.lit(0)).alias("messages"),
        f.coalesce(size, f.lit(0)).alias("bytes"),
        (f.coalesce(messages, f.lit(0)) / window_s).alias("messages_per_second"),
        f.coalesce(size / messages, f.lit(0.0)).alias("bytes_per_message"),
        f.coalesce(f.sum("delivered"), f.lit(0)).alias("delivered"),
        (f.coalesce(f.sum("delivered"), f.lit(0)) / window_s).alias("delivered_per_second"),
        f.coalesce(f.sum("streams"), f.lit(0)).alias("subscriptions"),
        f.coalesce(f.max("lag"), f.lit(0)).alias("lag"),
        f.coalesce(f.sum(f.when(head, f.col("log_bytes"))), f.lit(0)).alias("log_bytes"),
        f.array_sort(latencies).alias("latencies"),
    ]


def _columns() -> list[Any]:
    from pyspark.sql import functions as f

    def percentile(share: float) -> Any:
        place = f.greatest(f.ceil(f.size("latencies") * share).cast("int"), f.lit(1))
        return f.try_element_at("latencies", place).cast("double")

    plain = [
        "topic",
        "messages",
        "bytes",
        "messages_per_second",
        "bytes_per_message",
        "delivered",
        "delivered_per_second",
        "subscriptions",
        "lag",
        "log_bytes",
    ]
    return [
        f.date_format("window.start", "yyyy-MM-dd'T'HH:mm:ss'Z'").alias("start"),
        f.date_format("window.end", "yyyy-MM-dd'T'HH:mm:ss'Z'").alias("end"),
        *plain,
        percentile(0.5).alias("latency_us_p50"),
        percentile(0.99).alias("latency_us_p99"),
    ]


def run(
    spark: SparkSession,
    checkpoint: str | Path,
    *,
    url: str | None = None,
    window_s: int = 60,
    late_s: int = 30,
    once: bool = False,
) -> StreamingQuery:
    """Start the query from `_metrics` to `_metrics.windows`."""
    from stentor.spark.values import to_json_value

    where = {} if url is None else {"url": url}
    source = spark.readStream.format("stentor").options(
        subscribe=SOURCE, startingOffsets="earliest", columns="value", **where
    )
    found = to_json_value(windows(source.load(), window_s=window_s, late_s=late_s), key="topic")
    writer = found.writeStream.format("stentor").outputMode("append").options(topic=TARGET, **where)
    writer = writer.option("checkpointLocation", str(checkpoint))
    return (writer.trigger(availableNow=True) if once else writer.trigger(processingTime="5 seconds")).start()


def last_windows(client: Client) -> list[TopicWindow]:
    """The newest window of every topic."""
    newest: dict[str, TopicWindow] = {}
    for message in client.read(TARGET):
        if message.value is not None:
            window = msgspec.json.decode(message.value, type=TopicWindow)
            if window.topic not in newest or newest[window.topic].start <= window.start:
                newest[window.topic] = window
    return [newest[topic] for topic in sorted(newest)]
