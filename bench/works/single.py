"""One publish at a time: each waits for its fsynced acknowledgement before the next starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.measure import percentiles_us
from bench.model import Case, Sample, Spec
from bench.passes import pool_of
from bench.processes import START_S_MAX
from bench.systems import system

if TYPE_CHECKING:
    from bench.model import Options
    from bench.role import Harness
    from bench.runner import Bench

TITLE = "one publish at a time"
GRACE_S = 60.0

WAYS = (
    ("stentor", "publish", "stock"),
    ("stentor", "publish async", "stock"),
    ("redis", "pure", "stock"),
    ("redis", "hiredis", "tuned"),
    ("nats", "publish", "stock"),
    ("nats", "publish", "tuned"),
    ("copier", "each", "limit"),
)


def cases(options: Options) -> list[Case]:
    return [
        Case("single", name, mode, variant, "fsync", size, batch=1)
        for size in options.sizes
        for name, mode, variant in WAYS
    ]


def run(case: Case, bench: Bench) -> Sample:
    with bench.server(case) as (server, processes):
        spec = Spec.of(case, server.address, bench.options)
        cpu = server.cpu_s()
        done = processes.role(f"{__name__}:publish", spec).expect("done", START_S_MAX + spec.seconds + GRACE_S)
        cpu = server.cpu_s() - cpu
    per_million = 1e6 / done["count"]
    return Sample(
        messages=done["count"],
        messages_per_second=done["rate"],
        p50_us=done["p50_us"],
        p99_us=done["p99_us"],
        p999_us=done["p999_us"],
        cpu_s_per_million={"broker": cpu * per_million},
    )


def publish(spec: Spec, harness: Harness) -> None:
    """Role: publishes for the given time and reports the percentiles."""
    pool = pool_of(spec)
    times = system(spec.system).publish_times(spec, pool)
    rate = len(times) / (sum(times) / 1e9)
    harness.say("done", count=len(times), rate=rate, **percentiles_us(times))
