"""History of one-message batches: a topic written one message at a time, then read by a fresh consumer.

The filling is not timed. The reading is, from the moment the consumer connects until its last message is
verified.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from bench.model import Case, Sample, Spec
from bench.passes import pool_of, read_pass
from bench.processes import START_S_MAX
from bench.systems import system
from bench.works import throughput

if TYPE_CHECKING:
    from bench.model import Options
    from bench.role import Harness
    from bench.runner import Bench

TITLE = "one-message batches, read by a fresh consumer"
MESSAGES_QUICK = 20_000
MESSAGES_FULL = 200_000
FILL_S_MAX = 240.0
READ_S_MAX = 120.0

# system, mode, variant, messages in flight while filling (Stentor: messages per batch, which must be one)
WAYS = (
    ("stentor", "send", "stock", 1),
    ("redis", "pure", "stock", 1000),
    ("redis", "hiredis", "tuned", 1000),
    ("redis", "bare", "tuned", 1000),
    ("nats", "gather", "stock", 1000),
    ("nats", "window", "tuned", 1000),
    ("nats", "fetch", "tuned", 1000),
)


def cases(options: Options) -> list[Case]:
    # Filling JetStream takes the longest; in a quick run only its fastest reader is worth it.
    slow = {"gather", "fetch"} if options.quick else set()
    return [
        Case("history", name, mode, variant, "os", size, batch)
        for size in options.sizes[:1]
        for name, mode, variant, batch in WAYS
        if mode not in slow
    ]


def run(case: Case, bench: Bench) -> Sample:
    messages = MESSAGES_QUICK if bench.options.quick else MESSAGES_FULL
    with bench.server(case) as (server, processes):
        # Chunks of the same size for all, whatever was in flight while filling.
        spec = Spec.of(case, server.address, bench.options, chunk=1000, unit=1000, units=messages // 1000)
        filler = processes.role(f"{throughput.__name__}:produce", spec.with_(seconds=0.0))
        filler.expect("ready", START_S_MAX + FILL_S_MAX)
        filler.tell(units=spec.units)
        filler.expect("done", FILL_S_MAX)
        disk = server.disk_bytes()
        cpu = server.cpu_s()
        done = processes.role(f"{__name__}:read", spec).expect("done", START_S_MAX + READ_S_MAX)
        cpu = server.cpu_s() - cpu
    count = done["count"]
    return Sample(
        messages=count,
        messages_per_second=count / done["elapsed_s"],
        cpu_s_per_million={"broker": cpu * 1e6 / count, "consumer": done["cpu_s"] * 1e6 / count},
        disk_bytes_per_message=disk / (count + spec.unit),
    )


def read(spec: Spec, harness: Harness) -> None:
    """Role: a first consumer warms up the process; then a fresh one reads everything."""
    pool = pool_of(spec)
    driver = system(spec.system)
    read_pass(driver.reader(spec), pool, spec)
    start = time.monotonic_ns()
    reader = driver.reader(spec)
    read_pass(reader, pool, spec)
    reading = read_pass(reader, pool, spec)
    elapsed_s = (reading.end_ns - start) / 1e9
    harness.say("done", count=reading.count, elapsed_s=elapsed_s, cpu_s=reading.cpu_s)
