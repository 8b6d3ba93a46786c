"""Open loop: messages are due at a fixed rate whether or not the system keeps up.

The closed-loop rate of the same clients is measured first; then 50 % and 80 % of it are offered. Message
i is due at t0 + i / rate, and its latency counts from then, not from when the producer got round to it,
so a stall is charged to every message that was due meanwhile (no coordinated omission). The sequence in
the message says which one it is.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np

from bench.measure import percentiles_us
from bench.model import Case, Sample, Spec
from bench.passes import pool_of, read_pass, send_pass
from bench.processes import START_S_MAX
from bench.systems import system

if TYPE_CHECKING:
    from bench.messages import Pool
    from bench.model import Options
    from bench.role import Harness
    from bench.runner import Bench
    from bench.systems.base import Publisher

TITLE = "latency at a fixed rate"
GRACE_S = 60.0
TICK_S = 0.0005
LOADS = (0.5, 0.8)
CALIBRATION_S_MAX = 2.0

WAYS = (
    ("stentor", "send_many", "tuned", "fsync"),
    ("redis", "hiredis", "tuned", "fsync"),
    ("stentor", "send_many", "tuned", "os"),
    ("redis", "hiredis", "tuned", "os"),
    ("nats", "window", "tuned", "os"),
)
WAYS_QUICK = 2


def cases(options: Options) -> list[Case]:
    ways = WAYS[:WAYS_QUICK] if options.quick else WAYS
    return [
        Case("openloop", name, mode, variant, durability, 100, 1000, load=load)
        for name, mode, variant, durability in ways
        for load in LOADS
    ]


def run(case: Case, bench: Bench) -> Sample:
    key = f"{case.label} {case.durability}"
    if key not in bench.closed_loop_rates:
        seconds = min(bench.options.seconds, CALIBRATION_S_MAX)
        bench.closed_loop_rates[key] = _once(case, bench, rate=0.0, seconds=seconds)["rate"]
    rate = bench.closed_loop_rates[key] * case.load
    done = _once(case, bench, rate, bench.options.seconds)
    return Sample(
        messages=int(done["count"]),
        messages_per_second=done["rate"],
        p50_us=done["p50_us"],
        p99_us=done["p99_us"],
        p999_us=done["p999_us"],
        extra={"offered_per_second": rate},
    )


def _once(case: Case, bench: Bench, rate: float, seconds: float) -> dict[str, float]:
    """One run: paced at `rate`, or flat out when it is 0; the consumer stamps every message either way."""
    with bench.server(case) as (server, processes):
        spec = Spec.of(case, server.address, bench.options, rate=rate, seconds=seconds, stamped=True)
        consumer = processes.role(f"{__name__}:consume", spec)
        producer = processes.role(f"{__name__}:produce", spec)
        producer.expect("ready", START_S_MAX + GRACE_S)
        consumer.expect("ready", GRACE_S)
        producer.tell(go=True)
        sent = producer.expect("done", seconds + GRACE_S)
        consumer.tell(origin_ns=sent["start_ns"])
        done = consumer.expect("done", GRACE_S)
    elapsed_s = (max(sent["end_ns"], done["end_ns"]) - sent["start_ns"]) / 1e9
    return {**done, "rate": sent["count"] / elapsed_s}


def produce(spec: Spec, harness: Harness) -> None:
    """Role: sends what is due, tick by tick."""
    pool = pool_of(spec)
    publisher = system(spec.system).publisher(spec)
    send_pass(publisher, pool, spec, units=1)
    harness.say("ready")
    harness.wait()
    if spec.rate:
        harness.say("done", **_send_paced(publisher, pool, spec))
    else:
        harness.say("done", **send_pass(publisher, pool, spec, seconds=spec.seconds))


def _send_paced(publisher: Publisher, pool: Pool, spec: Spec) -> dict[str, float]:
    units = max(1, round(spec.rate * spec.seconds / spec.unit))
    total = units * spec.unit
    start = time.monotonic_ns()
    sent = 0
    while sent < total:
        due = min(total, int((time.monotonic_ns() - start) / 1e9 * spec.rate))
        if due == sent:
            publisher.pause(TICK_S)
            continue
        at = sent % pool.length
        # Up to the end of the pool at most, and not more than a batch before looking at the clock again.
        count = min(due - sent, pool.length - at, spec.batch)
        values = pool.values[at : at + count]
        sent += count
        if sent == total:
            values[-1] = pool.last(total)
        publisher.send(pool.keys[at : at + count], values)
    publisher.flush()
    return {"count": total, "start_ns": start, "end_ns": time.monotonic_ns()}


def consume(spec: Spec, harness: Harness) -> None:
    """Role: stamps each message as it is handed over, and compares with when it was due."""
    pool = pool_of(spec)
    reader = system(spec.system).reader(spec)
    read_pass(reader, pool, spec)
    harness.say("ready")
    reading = read_pass(reader, pool, spec)
    origin_ns = harness.wait()["origin_ns"]
    stamps = np.concatenate(reading.stamps)
    due = origin_ns + np.arange(len(stamps)) * (1e9 / spec.rate if spec.rate else 0.0)
    harness.say("done", **reading.to_event(), **percentiles_us(stamps - due))
