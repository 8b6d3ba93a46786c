"""Metrics: what the brokers say about themselves in `_metrics`, summed up per topic and window in `_metrics.windows`.

Every broker publishes its counters every few seconds. Counters only grow, so what happened in a window is the growth
from the last record before it to the last record in it: the windows of a day add up to what happened in the day. A
broker that started anew begins at zero. A window is published once, when the watermark has passed it: records that
come later than `late_s` are left out.

A record leaves out what has not changed, but a full one every few minutes. So what a partition was before a window is
looked for as far back, and stands for the window if the broker was heard in it and did not leave the partition out of a
later full record. Brokers of older versions say everything in every record: their records have no `full`, and count as
the past of the next window alone.

Into a table instead, the pipeline puts the newest window of each topic, with the topic as the key. A window never
replaces a later one, so it may be repeated, with its checkpoint or with a new one.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

import stentor
from stentor import limits
from stentor.errors import TopicNotFound

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from stentor.client.sync_client import Client

SOURCE: Final = "_metrics"
TARGET: Final = "_metrics.windows"
_COUNTERS: Final = ("messages_in", "bytes_in", "messages_out")
_BACK_S: Final = limits.METRICS_FULL_S + 60
"""How far back the last full record of a broker may be, if it was a little late."""

_HEARD_S: Final = limits.METRICS_QUIET_S + 15
"""How long a broker that has nothing to say may be silent."""

_RECORD: Final = """
    full boolean, broker string, published_at_us bigint, publish_to_deliver_us array<bigint>,
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
    """Rows of `_metrics` (value) as one row per topic and window."""
    from pyspark.sql import functions as f

    parsed = records.select(f.from_json(f.col("value").cast("string"), _RECORD).alias("r"))
    # A record also counts as the past of later windows. Shifting it there moves the watermark, too, by as much as is
    # added to what may be late. So every record is shifted, and what is too far from an older one is left out after it.
    window_us, back = window_s * 1_000_000, math.ceil(_BACK_S / window_s)
    shifts_us = f.array(*(f.lit(windows * window_us) for windows in range(back + 1)))
    timed = parsed.select("r.*", f.explode(shifts_us).alias("shift_us")).withColumn(
        "at", f.timestamp_micros(f.col("published_at_us") + f.col("shift_us"))
    )
    marked = timed.withWatermark("at", f"{late_s + back * window_s} seconds")
    counting = marked.where(f"full is not null or at <= timestamp_micros(published_at_us + {window_us})")
    rows = counting.select(
        f.window("at", f"{window_s} seconds").alias("window"),
        "broker",
        f.struct(
            (f.col("published_at_us") / 1e6).alias("time_s"),
            (f.col("shift_us") == 0).alias("inside"),
            f.col("full"),
            f.col("statistics.broker.uptime_s").alias("uptime_s"),
            # The others were in earlier records.
            f.try_element_at("publish_to_deliver_us", f.lit(-1)).alias("latency"),
            f.col("statistics.partitions").alias("partitions"),
        ).alias("row"),
    )
    points = _heard(rows, window_s).groupBy("window", "broker", "p.topic", "p.partition").agg(*_points())
    there = points.where("size(points) > 0 or (stays and past.full is not null)")
    per_partition = there.withColumn("points", f.expr("array_sort(array_compact(array_append(points, past)))"))
    return per_partition.select(*_grown()).groupBy("window", "topic").agg(*_per_topic(window_s)).select(*_columns())


def _heard(rows: DataFrame, window_s: int) -> DataFrame:
    """What brokers said of partitions, in windows in which they were there; `full_s` is when they said everything."""
    from pyspark.sql import functions as f

    said = rows.groupBy("window", "broker").agg(f.collect_list("row").alias("said"))
    grace_s = max(0, _HEARD_S - window_s)
    is_there = f"row -> row.inside or row.full is not null and row.time_s >= unix_seconds(window.start) - {grace_s}"
    full_s = f.expr("array_max(transform(filter(said, row -> row.full), row -> row.time_s))").alias("full_s")
    heard = said.where(f"exists(said, {is_there})").select("window", "broker", full_s, f.explode("said").alias("row"))
    return heard.select("window", "broker", "full_s", "row.*", f.explode("row.partitions").alias("p"))


def _points() -> list[Any]:
    """What a broker said of a partition within a window, and the last of what it said before."""
    from pyspark.sql import functions as f

    inside = f.col("inside")
    gauges = {
        "head": f.col("p.replica.position") == 0,
        "streams": f.col("p.streams"),
        "lag": f.col("p.lag_max"),
        "log_bytes": f.col("p.log.bytes"),
    }
    counters = [f.col(f"p.{name}").alias(name) for name in _COUNTERS]
    point = f.struct("time_s", "uptime_s", *counters, "full", *(gauge.alias(name) for name, gauge in gauges.items()))
    past = f.max(f.when(~inside, point))
    # What a later full record leaves out is gone. What was not told in the window is as it was.
    stays = f.max("full_s").isNull() | (f.max("time_s") >= f.max("full_s")) | f.max(f.col("full").isNull())
    told = f.max(inside)
    return [
        f.collect_list(f.when(inside, point)).alias("points"),
        past.alias("past"),
        *(
            f.when(told, f.max(f.when(inside, gauge))).when(stays, past[name]).alias(name)
            for name, gauge in gauges.items()
        ),
        stays.alias("stays"),
        f.collect_list(f.when(inside, f.col("latency"))).alias("latencies"),
    ]


def _grown() -> list[Any]:
    """By how much counters grew; a broker that started in between counted from zero."""
    from pyspark.sql import functions as f

    def grown(name: str) -> Any:
        steps = f"""zip_with(points, concat(array(null), points), (now, past) -> case
            when now is null then 0
            when past is null then if(now.uptime_s < now.time_s - unix_seconds(window.start), now.{name}, 0)
            when now.uptime_s < now.time_s - past.time_s or now.{name} < past.{name} then now.{name}
            else now.{name} - past.{name} end)"""
        return f.expr(f"aggregate({steps}, 0L, (sum, step) -> sum + coalesce(step, 0L))").alias(name)

    return ["window", "topic", "head", "streams", "lag", "log_bytes", "latencies", *map(grown, _COUNTERS)]


def _per_topic(window_s: int) -> list[Any]:
    """The head counts what comes in; every member counts what it delivers."""
    from pyspark.sql import functions as f

    head = f.col("head")
    messages, size = f.sum(f.when(head, f.col("messages_in"))), f.sum(f.when(head, f.col("bytes_in")))
    latencies = f.flatten(f.collect_list("latencies"))
    return [
        f.coalesce(messages, f.lit(0)).alias("messages"),
        f.coalesce(size, f.lit(0)).alias("bytes"),
        (f.coalesce(messages, f.lit(0)) / window_s).alias("messages_per_second"),
        f.coalesce(f.try_divide(size, messages), f.lit(0.0)).alias("bytes_per_message"),
        f.coalesce(f.sum("messages_out"), f.lit(0)).alias("delivered"),
        (f.coalesce(f.sum("messages_out"), f.lit(0)) / window_s).alias("delivered_per_second"),
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
    into_table: str | None = None,
) -> StreamingQuery:
    """Start the query from `_metrics` to `_metrics.windows`, or into a table, which is made if there is none."""
    from stentor.spark.session import activate
    from stentor.spark.values import to_json_value

    activate(spark)

    where = {} if url is None else {"url": url}
    source = spark.readStream.format("stentor").options(
        subscribe=SOURCE, startingOffsets="earliest", columns="value", **where
    )
    found = windows(source.load(), window_s=window_s, late_s=late_s)
    if into_table is None:
        records = to_json_value(found, key="topic")
        writer = records.writeStream.format("stentor").options(topic=TARGET, **where)
    else:
        _make_table(into_table, url)
        keep = partial(_keep_newest, options={"table": into_table, **where})
        writer = found.writeStream.foreachBatch(keep)
    writer = writer.outputMode("append").option("checkpointLocation", str(checkpoint))
    return (writer.trigger(availableNow=True) if once else writer.trigger(processingTime="5 seconds")).start()


def _make_table(name: str, url: str | None) -> None:
    from stentor.spark.keyed import check_table

    with stentor.connect(url, name="metrics pipeline") as client:
        client.create_topic(name, kind="table", exist_ok=True)
        check_table(client, name)


def _keep_newest(found: DataFrame, _: int, *, options: dict[str, str]) -> None:
    """Put the newest window of each topic into a table, unless the table has that one or a later one."""
    from pyspark.sql import functions as f

    from stentor.spark.session import activate
    from stentor.spark.values import to_json_value

    if found.isEmpty():
        return
    spark = found.sparkSession
    activate(spark)  # Spark calls this in a thread of its own
    newest = found.groupBy("topic").agg(f.max_by(f.struct(*found.columns), "start").alias("row")).select("row.*")
    there = spark.read.format("stentor").options(columns="key,value", **options).load()
    # Times of this form are in order as text.
    known = there.select("key", f.get_json_object(f.col("value").cast("string"), "$.start").alias("known"))
    fresh = newest.join(known, newest.topic == known.key, "left").where("known is null or known < start")
    rows = to_json_value(fresh.select(*found.columns), key="topic")
    rows.write.format("stentor").mode("append").options(**options).save()


def last_windows(client: Client, table: str | None = None) -> list[TopicWindow]:
    """The newest window of every topic; of the table into which they were put, if one is named."""
    if not client.topics(table or TARGET):
        how = "`stentor pipeline metrics`" if table is None else f"`stentor pipeline metrics --into-table {table}`"
        raise TopicNotFound("There are no windows yet.", hint=f"Compute them with {how}.", object=table or TARGET)
    newest: dict[str, TopicWindow] = {}
    for value in _values(client, table):
        window = _window(value)
        if window is not None and (window.topic not in newest or newest[window.topic].start <= window.start):
            newest[window.topic] = window
    return [newest[topic] for topic in sorted(newest)]


def _values(client: Client, table: str | None) -> Iterator[bytes | None]:
    if table is None:
        yield from (message.value for message in client.read(TARGET))
        return
    with client.table(table) as opened:
        yield from opened.values()


def _window(value: bytes | None) -> TopicWindow | None:
    """What somebody else published there is left out."""
    try:
        return None if value is None else msgspec.json.decode(value, type=TopicWindow)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
