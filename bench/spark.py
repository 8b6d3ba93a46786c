"""Topics as tables: ``python -m bench.spark`` (``make bench-spark``).

One run, one Spark session on this machine, the same rows:

    read   stentor    a topic of 100-byte messages, all columns, through the data source
           in memory  batches of the same schema that exist already, through the same interface: what Spark allows
           tuples     the same topic, handed over row by row
           parquet    the same rows in a Parquet file, read by Spark itself
    small  stentor    a topic of one-message batches, through the data source
           client     the same through the client, as one Arrow table
           messages   the same through the client, message by message
    write  stentor    a table into a topic, synced by the broker before Spark goes on
           staged     the same, exactly once (txnAppId)
           rows       the same, row by row
           parquet    the same rows into Parquet
    replay stentor    the recorded topic into another one, as fast as possible: one process, in the order of time
           writer     the same rows through the data source: several tasks, in no order
           feed       the pace at which they happened, by assumption: 100,000 a second
           (select)   Spark's part, before the first message: selecting, ordering, writing down
           (whole)    the two one after the other

Every work is done several times in turn; the median counts. Then a trivial stream, topic to topic: how long a message
takes from its publish to the sink's subscriber.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import threading
import time
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.table import Table

import stentor
from bench import small
from bench.measure import machine_facts
from bench.programs import RESULTS, console, run
from bench.spark_sources import SIZE, InMemory, RowWriter, Tuples
from bench.systems.stentor import start_broker
from stentor.spark import session
from stentor.spark.columns import DEFAULT
from stentor.spark.pipelines import replay
from stentor.spark.pipelines.record import record
from stentor.spark.pipelines.replay import Selection

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rich.console import Console

TOPIC = "numbers"
PARTITIONS = 2
CHUNK = 1000
LATENCY_RATE = 50
WARM_UP_S = 5.0
FEED_RATE = 100_000
SMALL_ROWS = 1_000_000
"""Of the topic of one-message batches: enough that a job's fixed cost does not count."""
TARGETS = {("read", "in memory"): 0.7, ("read", "tuples"): 3.0, ("write", "rows"): 3.0, ("replay", "feed"): 5.0}
"""What Stentor's own rate must be of these."""


@dataclass
class Row:
    work: str
    system: str
    rows_per_second: float
    rows: int
    repetitions: int
    measured_at: str = ""  # of a work that was measured alone, later than the others
    load: float | None = None  # of the machine, before it


def publish(url: str, rows: int) -> None:
    """Messages as an application would publish them."""
    pool = [random.randbytes(SIZE) for _ in range(CHUNK)]
    with stentor.connect(url) as client:
        client.create_topic(TOPIC, partitions=PARTITIONS)
        with client.producer(TOPIC) as producer:
            for index in range(rows // CHUNK):
                producer.send_many(pool, partition=index % PARTITIONS)


class Works:
    """What is measured; each returns how many rows it moved."""

    def __init__(self, spark: Any, url: str, directory: Path, rows: int) -> None:
        self._spark, self._url, self._rows = spark, url, rows
        self._parquet = str(directory / "rows.parquet")
        self._copy = str(directory / "copy.parquet")
        self._lake, self._replay = directory / "lake", directory / "replay"
        self._turn = 0

    def prepare(self) -> None:
        """The same rows as Parquet, and recorded."""
        self._topic("stentor").write.mode("overwrite").parquet(self._parquet)
        record(self._spark, [TOPIC], self._lake, url=self._url)

    def _topic(self, source: str, topic: str = TOPIC, **options: Any) -> Any:
        return self._spark.read.format(source).options(url=self._url, **options).load(topic)

    def read(self, source: str, columns: str) -> int:
        self._swallow(self._topic(source, columns=columns))
        return self._rows

    def read_small(self, columns: str) -> int:
        self._swallow(self._topic("stentor", small.ONES.topic, columns=columns))
        return SMALL_ROWS

    def read_small_by_client(self, way: str) -> int:
        with stentor.connect(self._url) as client:
            return small.WAYS[way](client, small.ONES.topic)

    def read_memory(self, columns: str) -> int:
        tasks = max(1, self._rows // 1_000_000)
        frame = self._spark.read.format("in_memory").options(columns=columns, rows=self._rows, tasks=tasks).load()
        self._swallow(frame)
        return self._rows

    def read_parquet(self, columns: str) -> int:
        self._swallow(self._spark.read.parquet(self._parquet).select(*columns.split(",")))
        return self._rows

    @staticmethod
    def _swallow(frame: Any) -> None:
        frame.write.format("noop").mode("overwrite").save()

    def _values(self, rows: int) -> Any:
        return (
            self._spark.read.parquet(self._parquet).select("value").limit(rows)
            if rows < self._rows
            else (self._spark.read.parquet(self._parquet).select("value"))
        )

    def write(self, source: str, rows: int, **options: Any) -> int:
        self._turn += 1
        topic = f"copy{self._turn}"
        writer = self._values(rows).write.format(source).options(url=self._url, topic=topic, **options)
        writer.mode("append").save()
        self._drop(topic, rows)
        return rows

    def write_staged(self, rows: int) -> int:
        return self.write("stentor", rows, txnAppId=f"bench{self._turn}", txnVersion=0)

    def select(self) -> int:
        """What Spark does of a replay."""
        shutil.rmtree(self._replay, ignore_errors=True)
        return replay.select(self._spark, self._lake, self._replay, Selection(into="again"), speed=0).rows

    def replay(self) -> int:
        rows = replay.publish(self._replay, url=self._url)
        self._drop("again", rows)
        return rows

    def replay_by_writer(self) -> int:
        self._turn += 1
        topic = f"written{self._turn}"
        # Without headers, of which there are none: an empty column of them alone makes Spark eight times as slow.
        recorded = self._spark.read.parquet(str(self._replay / "rows"))
        recorded = recorded.drop("topic", "topic_id", "headers", "appended_at")
        with stentor.connect(self._url) as client:
            client.create_topic(topic, partitions=PARTITIONS)
        writer = recorded.write.format("stentor").options(url=self._url, topic=topic)
        writer.mode("append").save()
        self._drop(topic, self._rows)
        return self._rows

    def _drop(self, topic: str, rows: int) -> None:
        with stentor.connect(self._url) as client:
            found = sum(client.offsets(topic).values())
            client.delete_topic(topic)
        if found != rows:
            raise AssertionError(f"{found} of {rows} rows are in {topic}")

    def write_parquet(self, rows: int) -> int:
        self._values(rows).write.mode("overwrite").parquet(self._copy)
        return rows


def measured(works: list[tuple[str, str, Callable[[], int]]], repetitions: int, out: Console) -> list[Row]:
    """All works in turn, again and again, so that a busy moment does not hit one alone."""
    rates: dict[tuple[str, str], list[float]] = {}
    counts: dict[tuple[str, str], int] = {}
    for turn in range(repetitions):
        for work, system, do in works:
            began = time.perf_counter()
            rows = do()
            rate = rows / (time.perf_counter() - began)
            rates.setdefault((work, system), []).append(rate)
            counts[work, system] = rows
            out.print(f"turn {turn + 1}: {work} {system}: {rate:,.0f} rows/s")
    return [Row(*name, median(found), counts[name], repetitions) for name, found in rates.items()]


def whole_replay(found: list[Row]) -> Row:
    """Selecting and then publishing, from what each takes."""
    select, publishing = (row for row in found if row.work == "replay" and row.system in {"(select)", "stentor"})
    rate = 1 / (1 / select.rows_per_second + 1 / publishing.rows_per_second)
    return Row("replay", "(whole)", rate, select.rows, select.repetitions)


def latencies(spark: Any, url: str, directory: Path, seconds: float) -> list[float]:
    """Milliseconds from a publish to the subscriber of a stream's target."""
    found: list[float] = []
    with stentor.connect(url) as client:
        client.create_topic("in")
        client.create_topic("out")
        source = spark.readStream.format("stentor").options(url=url, subscribe="in", columns="value").load()
        writer = source.writeStream.format("stentor").options(url=url, topic="out")
        query = writer.option("checkpointLocation", str(directory / "stream")).start()
        subscription = client.subscribe("out")
        stop = threading.Event()

        def publish_steadily() -> None:
            while not stop.wait(1 / LATENCY_RATE):
                client.publish("in", b"%d" % time.time_ns())

        thread = threading.Thread(target=publish_steadily)
        thread.start()
        subscription.get(timeout=120)  # what comes first waited for Spark to be warm
        warm = time.monotonic() + WARM_UP_S
        while time.monotonic() < warm + seconds:
            sent = int(subscription.get(timeout=60).value)
            if time.monotonic() > warm:
                found.append((time.time_ns() - sent) / 1e6)
        stop.set()
        thread.join()
        query.stop()
    return found


def show(rows: list[Row], delays: list[float], out: Console) -> bool:
    """The tables; whether every target is met."""
    rates = {(row.work, row.system): row.rows_per_second for row in rows}
    table = Table(title="Topics as tables, rows per second")
    for heading in ("work", "system", "rows/s", "stentor is", "wanted"):
        table.add_column(heading, justify="left" if heading in ("work", "system") else "right")
    met = True
    for row in rows:
        own = rates.get((row.work, "stentor"))
        ratio = own / row.rows_per_second if own else 0.0
        wanted = TARGETS.get((row.work, row.system))
        good = wanted is None or ratio >= wanted
        met = met and good
        table.add_row(
            row.work,
            row.system,
            f"{row.rows_per_second:,.0f}",
            "" if row.system == "stentor" else f"{ratio:.2f} ×",
            "" if wanted is None else f"≥ {wanted:g} {'met' if good else 'missed'}",
        )
    out.print(table)
    if delays:
        ordered = sorted(delays)
        out.print(
            f"publish to sink, topic to topic, exactly once: p50 {median(ordered):,.0f} ms,"
            f" p99 {ordered[int(len(ordered) * 0.99)]:,.0f} ms ({len(ordered)} messages)"
        )
    return met


def write_beside(found: list[Row], facts: dict[str, Any]) -> None:
    """Put the rows of one work into the report, in the place of those it has; each says when it was measured."""
    path = RESULTS / "spark.json"
    report = json.loads(path.read_text())
    now = datetime.now(UTC).isoformat(timespec="seconds")
    others = [row for row in report["rows"] if row["work"] not in {new.work for new in found}]
    rows = [asdict(replace(row, measured_at=now, load=facts["load_before"])) for row in found]
    report["rows"] = others + rows
    path.write_text(json.dumps(report, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.spark", description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0, help="of the stream whose latency is measured")
    parser.add_argument(
        "--only", metavar="WORK", help="measure one work, such as 'read small batches', beside the rest"
    )
    chosen = parser.parse_args()
    out = console()
    rows = chosen.rows // (CHUNK * PARTITIONS) * CHUNK * PARTITIONS
    with run() as (directory, processes):
        facts = machine_facts(directory)
        url = start_broker(directory / "data", processes).address
        publish(url, rows)
        with stentor.connect(url) as client:
            small.publish(client, small.ONES, SMALL_ROWS, PARTITIONS)
        out.print(f"{rows:,} messages of {SIZE} bytes are published")
        spark = session("local[2]", app="bench", ui=False)
        for source in (InMemory, Tuples, RowWriter):
            spark.dataSource.register(source)
        works = Works(spark, url, directory, rows)
        works.prepare()
        everything, few = ",".join(DEFAULT), min(rows, 1_000_000)
        found = measured(
            [
                work
                for work in (
                    ("read", "stentor", lambda: works.read("stentor", everything)),
                    ("read", "in memory", lambda: works.read_memory(everything)),
                    ("read", "tuples", lambda: works.read("stentor_tuples", everything)),
                    ("read", "parquet", lambda: works.read_parquet(everything)),
                    ("read values", "stentor", lambda: works.read("stentor", "value")),
                    ("read values", "in memory", lambda: works.read_memory("value")),
                    ("read values", "parquet", lambda: works.read_parquet("value")),
                    ("read small batches", "stentor", lambda: works.read_small(everything)),
                    ("read small batches", "client", lambda: works.read_small_by_client("Arrow")),
                    ("read small batches", "messages", lambda: works.read_small_by_client("messages")),
                    ("write", "stentor", lambda: works.write("stentor", rows)),
                    ("write", "staged", lambda: works.write_staged(rows)),
                    ("write", "rows", lambda: works.write("stentor_rows", few)),
                    ("write", "parquet", lambda: works.write_parquet(rows)),
                    ("replay", "(select)", works.select),
                    ("replay", "stentor", works.replay),
                    ("replay", "writer", works.replay_by_writer),
                )
                if chosen.only in (None, work[0])
            ],
            chosen.repetitions,
            out,
        )
        if chosen.only is None:
            found += [whole_replay(found), Row("replay", "feed", FEED_RATE, rows, 0)]
        delays = latencies(spark, url, directory, chosen.seconds) if chosen.seconds and chosen.only is None else []
        spark.stop()
    met = show(found, delays, out)
    if chosen.only is not None:
        write_beside(found, facts)
        return 0 if met else 1
    ordered = sorted(delays)
    latency = {"p50_ms": median(ordered), "p99_ms": ordered[int(len(ordered) * 0.99)]} if ordered else {}
    report = {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": facts,
        "rows": [asdict(row) for row in found],
        "stream_latency": latency | {"messages": len(delays), "publishes_per_second": LATENCY_RATE},
    }
    (RESULTS / "spark.json").write_text(json.dumps(report, indent=1) + "\n")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
