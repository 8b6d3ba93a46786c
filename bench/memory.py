"""Broker memory while subscribers stand still: ``python -m bench.memory --gigabytes 5``.

One subscriber is stopped (SIGSTOP: subscribed, connected, reading nothing), another is kept about ten
seconds behind. A producer writes gigabytes past both. The broker's resident memory must stay flat: after
the warm-up every sample must lie within 20 % of their median. Exits 1 when it does not.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from rich.table import Table

from bench.measure import resident_bytes
from bench.messages import Pool
from bench.model import BenchError
from bench.processes import START_S_MAX
from bench.programs import RESULTS, console, run, spec
from bench.systems.stentor import ManyPublisher, connect, start_broker

if TYPE_CHECKING:
    from rich.console import Console

    from bench.model import Spec
    from bench.processes import Role
    from bench.role import Harness

SAMPLE_S = 0.25
WARM_UP_SHARE = 0.2
TOLERANCE = 0.2
TABLE_ROWS = 12
SIZE = 1000
BEHIND_S = 10.0
QUIET_S_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Point:
    """The broker at one moment."""

    at_s: float
    behind_s: float
    """The age of the message that the throttled subscriber is at."""
    written_bytes: int
    resident_bytes: int


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.memory", description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=5.0)
    parser.add_argument("--rate", type=float, default=100.0, help="MB/s that the producer is held to; 0: no limit")
    parser.add_argument("--durability", choices=("fsync", "os"), default="fsync")
    chosen = parser.parse_args()
    points = measure(chosen.gigabytes, chosen.rate, chosen.durability)
    return show(points, console())


def measure(gigabytes: float, rate_mb: float, durability: str) -> list[Point]:
    with run() as (directory, processes):
        broker = start_broker(directory / "stentor", processes)
        assert broker.process is not None
        told = spec(broker.address, SIZE, durability, gigabytes=gigabytes, rate_mb=rate_mb)
        stopped = processes.role("bench.memory:follow", told)
        throttled = processes.role("bench.memory:follow_behind", told)
        writer = processes.role("bench.memory:write", told)
        for role in (stopped, throttled, writer):
            role.expect("ready", START_S_MAX)
        os.kill(stopped.process.pid, signal.SIGSTOP)
        writer.tell(go=True)
        return sample(broker.process.pid, writer, throttled, gigabytes)


def sample(pid: int, writer: Role, throttled: Role, gigabytes: float) -> list[Point]:
    """Samples until the writer has written everything; it reports its progress as it goes."""
    points: list[Point] = []
    start = time.monotonic()
    written, behind_s = 0, 0.0
    while written < gigabytes * 1e9:
        written = int(writer.expect("written", QUIET_S_MAX)["bytes"])
        for said in throttled.drain():
            behind_s = said["behind_s"]
        points.append(Point(time.monotonic() - start, behind_s, written, resident_bytes(pid)))
    return points


def show(points: list[Point], out: Console) -> int:
    settled = [point for point in points if point.at_s >= points[-1].at_s * WARM_UP_SHARE]
    middle = median(point.resident_bytes for point in settled)
    low = min(point.resident_bytes for point in settled) / middle - 1
    high = max(point.resident_bytes for point in settled) / middle - 1
    table = Table(title="Broker memory, one subscriber stopped, one 10 s behind")
    for name in ("time s", "behind s", "written GB", "resident MB", "of median"):
        table.add_column(name, justify="right")
    for point in points[:: max(1, len(points) // TABLE_ROWS)]:
        share = point.resident_bytes / middle - 1
        cells = (point.at_s, point.behind_s, point.written_bytes / 1e9, point.resident_bytes / 1e6)
        table.add_row(*[f"{cell:,.1f}" for cell in cells], f"{share:+.0%}")
    out.print(table)
    flat = low >= -TOLERANCE and high <= TOLERANCE
    verdict = "[green]flat[/]" if flat else "[red]not flat[/]"
    out.print(
        f"{verdict}: after the warm-up {middle / 1e6:,.0f} MB, {low:+.0%} to {high:+.0%} (allowed ±{TOLERANCE:.0%})"
    )
    plot(points, middle)
    return 0 if flat else 1


def plot(points: list[Point], middle: float) -> None:
    try:
        import matplotlib as mpl
    except ImportError:
        return
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    RESULTS.mkdir(parents=True, exist_ok=True)
    figure, axes = plt.subplots(figsize=(8, 4))
    axes.plot([point.written_bytes / 1e9 for point in points], [point.resident_bytes / 1e6 for point in points])
    axes.axhspan(middle * (1 - TOLERANCE) / 1e6, middle * (1 + TOLERANCE) / 1e6, alpha=0.15)
    axes.set_xlabel("written, GB")
    axes.set_ylabel("broker resident memory, MB")
    axes.set_ylim(bottom=0)
    figure.tight_layout()
    figure.savefig(RESULTS / "memory.png", dpi=110)


def write(told: Spec, harness: Harness) -> None:
    """Role: writes at the given rate and reports how far it is."""
    pool = Pool(told.size, told.unit, told.seed)
    publisher = ManyPublisher(told)
    total, rate = told.extra["gigabytes"] * 1e9, told.extra["rate_mb"] * 1e6
    harness.say("ready")
    harness.wait()
    start = reported = time.monotonic()
    written = 0
    for keys, values in pool.units(told.unit):
        publisher.send(keys, values)
        written += sum(map(len, values))
        now = time.monotonic()
        if rate and (early := written / rate - (now - start)) > 0:
            time.sleep(early)
        if written >= total:
            break
        if now - reported >= SAMPLE_S:
            reported = now
            harness.say("written", bytes=written)
    publisher.flush()
    harness.say("written", bytes=written)


def follow(told: Spec, harness: Harness) -> None:
    """Role: a subscriber that would read everything, if it were not stopped."""
    subscription = connect(told).subscribe(told.topic, start="latest")
    harness.say("ready")
    for _ in subscription:
        pass
    raise BenchError("the subscription ended by itself")


def follow_behind(told: Spec, harness: Harness) -> None:
    """Role: a subscriber that takes a message only when it is ten seconds old."""
    subscription = connect(told).subscribe(told.topic, start="latest")
    harness.say("ready")
    reported = 0.0
    for number, message in enumerate(subscription):
        if number % 100 == 0:
            age = time.time() - message.timestamp_us / 1e6
            if time.monotonic() - reported >= SAMPLE_S:
                reported = time.monotonic()
                harness.say("behind", behind_s=age)
            if age < BEHIND_S:
                time.sleep(BEHIND_S - age)
    raise BenchError("the subscription ended by itself")


if __name__ == "__main__":
    sys.exit(main())
