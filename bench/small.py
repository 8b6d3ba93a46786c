"""Small batches as Arrow: ``python -m bench.small``.

A quiet topic is made of batches of one message. This publishes topics whose batches hold one, ten and a thousand
messages of 100 bytes with keys, and reads each through the client as Arrow and as messages. All readings take turns;
the median of the rates counts, and the least processor time of this process, of which the broker's is no part.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.table import Table

import stentor
from bench.programs import console, run
from bench.systems.stentor import start_broker

if TYPE_CHECKING:
    from collections.abc import Callable

SIZE = 100
POOL = 1000
ROWS = 200_000


class Content(NamedTuple):
    """What a topic holds."""

    topic: str
    batch_messages: int
    headers: dict[str, bytes] | None = None
    nulls: bool = False  # every third key and every fifth value


ONES = Content("ones", 1)
CONTENTS = (
    ONES,
    Content("ones-with-headers", 1, {"trace": b"0123456789abcdef"}),
    Content("ones-with-nulls", 1, nulls=True),
    Content("tens", 10),
    Content("thousands", 1000),
)
WAYS: dict[str, Callable[[Any, str], int]] = {
    "Arrow": lambda client, topic: client.read(topic).to_arrow().num_rows,
    "messages": lambda client, topic: sum(1 for _ in client.read(topic)),
}


def publish(client: Any, content: Content, rows: int, partitions: int = 1) -> None:
    """Messages whose keys, and so whose batches, are of several lengths."""
    pool = [random.randbytes(SIZE) for _ in range(POOL)]
    client.create_topic(content.topic, partitions=partitions)
    with client.producer(content.topic, batch_messages=content.batch_messages) as producer:
        for index in range(rows):
            key = None if content.nulls and index % 3 == 0 else b"key-%d" % (index * 7919 % rows)
            value = None if content.nulls and index % 5 == 0 else pool[index % POOL]
            producer.send(value, key=key, headers=content.headers, partition=index % partitions)


def measured(client: Any, rows: int, repetitions: int) -> dict[tuple[str, str], tuple[float, float]]:
    """Rows per second and seconds of processor time per million rows, by topic and way."""
    rates: dict[tuple[str, str], list[float]] = {}
    costs: dict[tuple[str, str], list[float]] = {}
    for _ in range(repetitions):
        for content in CONTENTS:
            for way, read in WAYS.items():
                began, used = time.perf_counter(), time.process_time()
                found = read(client, content.topic)
                if found != rows:
                    raise AssertionError(f"{found} of {rows} rows were read from {content.topic}")
                costs.setdefault((content.topic, way), []).append((time.process_time() - used) / rows * 1e6)
                rates.setdefault((content.topic, way), []).append(rows / (time.perf_counter() - began))
    return {name: (median(found), min(costs[name])) for name, found in rates.items()}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.small", description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--repetitions", type=int, default=5)
    chosen = parser.parse_args()
    with (
        run() as (directory, processes),
        stentor.connect(start_broker(directory / "data", processes).address) as client,
    ):
        for content in CONTENTS:
            publish(client, content, chosen.rows)
        found = measured(client, chosen.rows, chosen.repetitions)
    table = Table("topic", "as", "rows/s", "CPU s per million", title=f"{chosen.rows:,} messages of {SIZE} bytes")
    for (topic, way), (rate, cost) in found.items():
        table.add_row(topic, way, f"{rate:,.0f}", f"{cost:.2f}")
    console().print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
