"""Closed loop: acknowledged publish and live consumption at full speed.

Producer, broker and consumer are three processes. The rate is messages over the time from the first send
until both the last acknowledgement is at the producer and the last message is verified at the consumer.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from bench.model import Case, Sample, Spec
from bench.passes import pool_of, read_pass, send_pass
from bench.processes import START_S_MAX
from bench.systems import system

if TYPE_CHECKING:
    from bench.model import Options
    from bench.role import Harness
    from bench.runner import Bench

TITLE = "acked publish + live consume"
GRACE_S = 90.0

# system, mode, variant, durabilities
SWEPT = (
    ("stentor", "send", "stock", ("fsync", "os")),
    ("redis", "pure", "stock", ("fsync", "os")),
    ("nats", "gather", "stock", ("fsync", "os")),
    ("stentor", "send_many", "tuned", ("fsync", "os")),
    ("redis", "hiredis", "tuned", ("fsync", "os")),
    ("redis", "bare", "tuned", ("fsync", "os")),
    ("nats", "window", "tuned", ("fsync", "os")),
)
FIXED = (
    ("stentor", "send_many", "tuned", ("none",)),
    ("redis", "packed", "tuned", ("fsync", "os")),
    ("kafka", "mock", "tuned", ("none",)),
    ("copier", "group", "limit", ("fsync",)),
    ("copier", "write", "limit", ("os",)),
    ("zeromq", "frames", "limit", ("none",)),
    ("zeromq", "packed", "limit", ("none",)),
)
NOTES = {"kafka": "produce only", "copier": "bytes only", "zeromq": "no broker"}
PARTITIONED = (("send", "stock"), ("send_many", "tuned"))
MANY_PARTITIONS = 8
FULL_BATCH = 1000
#: Entries of 10 MB are slower than entries of 1 MB: big messages are packed by the hundred.
PACKED_BATCH_BIG = 100


def cases(options: Options) -> list[Case]:
    found = []
    for size in options.sizes:
        for batch in options.batches:
            found += [_case(entry, durability, size, batch) for entry in SWEPT for durability in entry[3]]
        found += [
            _case(entry, durability, size, PACKED_BATCH_BIG if entry[1] == "packed" and size > 1000 else FULL_BATCH)
            for entry in FIXED
            for durability in entry[3]
        ]
        for mode, variant in PARTITIONED:
            found += [
                Case("throughput", "stentor", mode, variant, durability, size, FULL_BATCH, MANY_PARTITIONS)
                for durability in (("fsync",) if options.quick else ("fsync", "os"))
            ]
    return found


def _case(entry: tuple[str, str, str, tuple[str, ...]], durability: str, size: int, batch: int) -> Case:
    name, mode, variant, _ = entry
    return Case("throughput", name, mode, variant, durability, size, batch, note=NOTES.get(name, ""))


def run(case: Case, bench: Bench) -> Sample:
    with bench.server(case) as (server, processes):
        spec = Spec.of(case, server.address, bench.options)
        consumer = processes.role(f"{__name__}:consume", spec) if system(case.system).has_reader else None
        producer = processes.role(f"{__name__}:produce", spec)
        producer.expect("ready", START_S_MAX + GRACE_S)
        if consumer:
            consumer.expect("ready", GRACE_S)
        broker_cpu_s, disk = server.cpu_s(), server.disk_bytes()
        producer.tell(go=True)
        sent = producer.expect("done", spec.seconds + GRACE_S)
        ends = {"producer": sent}
        if consumer:
            ends["consumer"] = consumer.expect("done", GRACE_S)
        broker_cpu_s, disk = server.cpu_s() - broker_cpu_s, server.disk_bytes() - disk
    return sample_of(ends, broker_cpu_s if server.process else None, disk if server.data else None)


def sample_of(ends: dict[str, dict[str, Any]], broker_cpu_s: float | None, disk: int | None) -> Sample:
    count, start = ends["producer"]["count"], ends["producer"]["start_ns"]
    elapsed_s = (max(end["end_ns"] for end in ends.values()) - start) / 1e9
    cpu = {role: end["cpu_s"] for role, end in ends.items()}
    if broker_cpu_s is not None:
        cpu["broker"] = broker_cpu_s
    return Sample(
        messages=count,
        messages_per_second=count / elapsed_s,
        cpu_s_per_million={role: spent / count * 1e6 for role, spent in cpu.items()},
        disk_bytes_per_message=disk / count if disk is not None else None,
    )


def produce(spec: Spec, harness: Harness) -> None:
    """Role: warms up with one unit, then sends as many units as it is told, or for the given time."""
    pool = pool_of(spec)
    publisher = system(spec.system).publisher(spec)
    send_pass(publisher, pool, spec, units=1)
    harness.say("ready")
    units = harness.wait().get("units", 0)
    harness.say("done", **send_pass(publisher, pool, spec, units=units, seconds=spec.seconds))


def consume(spec: Spec, harness: Harness) -> None:
    """Role: verifies the warm-up, then the pass."""
    pool = pool_of(spec)
    reader = system(spec.system).reader(spec)
    if spec.system == "copier":
        skim(reader, harness)
        return
    read_pass(reader, pool, spec)
    harness.say("ready")
    harness.say("done", **read_pass(reader, pool, spec).to_event())


def skim(reader: Any, harness: Harness) -> None:
    """The copier's consumer counts bytes: there are no messages to verify in it."""
    reader.skim()
    harness.say("ready")
    cpu = time.process_time()
    count = reader.skim()
    end = time.monotonic_ns()
    harness.say("done", count=count, end_ns=end, cpu_s=time.process_time() - cpu)
