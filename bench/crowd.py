"""What strangers cost: ``python -m bench.crowd``.

2,000 connections never finish their greeting, and 200 greet and send most of a 16 MiB frame, beside one client that
publishes one message at a time. The broker's memory must stay below 300 MB and come back below 1.2 times what it was
within a minute of their end, and the client's 99th percentile must not be worse than 1.5 times of before. Exits 1
otherwise.
"""

from __future__ import annotations

import argparse
import json
import resource
import socket
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from statistics import quantiles
from typing import TYPE_CHECKING, Final

from rich.table import Table

from bench.measure import machine_facts, resident_bytes
from bench.programs import RESULTS, console, run
from bench.systems.stentor import start_broker
from stentor import connect, limits
from stentor.limits import MIB
from stentor.wire import frames, messages
from stentor.wire.frames import Kind

if TYPE_CHECKING:
    from stentor import Client

MEMORY_BYTES_MAX: Final = 300 * 1000 * 1000
BACK_RATIO_MAX: Final = 1.2
BACK_S_MAX: Final = 60.0
P99_RATIO_MAX: Final = 1.5
PUBLISHES: Final = 3000
SEND_S: Final = 0.05
TOPIC: Final = "crowd"


@dataclass(frozen=True, slots=True)
class Found:
    """What one run found."""

    unfinished: int
    half_sent: int
    memory_before_mb: float
    memory_worst_mb: float
    memory_after_mb: float
    back_after_s: float
    p99_before_ms: float
    p99_during_ms: float

    @property
    def holds(self) -> bool:
        return (
            self.memory_worst_mb * 1e6 < MEMORY_BYTES_MAX
            and self.memory_after_mb < BACK_RATIO_MAX * self.memory_before_mb
            and self.p99_during_ms <= P99_RATIO_MAX * self.p99_before_ms
        )


def stranger(address: tuple[str, int], *, greets: bool) -> socket.socket:
    """Somebody who begins, and does not go on."""
    connection = socket.create_connection(address, timeout=5)
    hello = messages.encode(messages.Hello(version_min=1, version_max=1, name="stranger"))
    if greets:
        connection.sendall(frames.frame(Kind.HELLO, 0, hello))
        connection.recv(4096)
        data = frames.HEADER.pack(16 * MIB, Kind.PUBLISH, 0, 0, 1) + bytes(12 * MIB)
    else:
        data = frames.frame(Kind.HELLO, 0, bytes(limits.UNGREETED_BODY_BYTES_MAX))[:-1]
    connection.settimeout(SEND_S)
    with suppress(OSError):  # the broker reads no further
        connection.sendall(data)
    return connection


def p99_ms(client: Client) -> float:
    """One publish at a time."""
    times = []
    for _ in range(PUBLISHES):
        began = time.perf_counter()
        client.publish(TOPIC, b"x" * 100)
        times.append(time.perf_counter() - began)
    return 1000 * quantiles(times, n=100)[98]


def measure(unfinished: int, half_sent: int) -> Found:
    with run() as (directory, processes):
        broker = start_broker(directory / "stentor", processes)
        assert broker.process is not None
        pid = broker.process.pid
        host, _, port = broker.address.rpartition("//")[2].rpartition(":")
        with connect(broker.address) as client:
            p99_ms(client)  # warm
            before, p99_before = resident_bytes(pid), p99_ms(client)
            crowd = [stranger((host, int(port)), greets=True) for _ in range(half_sent)]
            crowd += [stranger((host, int(port)), greets=False) for _ in range(unfinished)]
            worst = resident_bytes(pid)
            p99_during = p99_ms(client)
            worst = max(worst, resident_bytes(pid))
            for connection in crowd:
                connection.close()
            left = time.monotonic()
            while (after := resident_bytes(pid)) >= BACK_RATIO_MAX * before and time.monotonic() - left < BACK_S_MAX:
                time.sleep(0.5)
            back_s = time.monotonic() - left
    return Found(
        unfinished,
        half_sent,
        round(before / 1e6, 1),
        round(worst / 1e6, 1),
        round(after / 1e6, 1),
        round(back_s, 1),
        round(p99_before, 3),
        round(p99_during, 3),
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.crowd", description=__doc__)
    parser.add_argument("--unfinished", type=int, default=2000)
    parser.add_argument("--half-sent", type=int, default=200)
    chosen = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    found = measure(chosen.unfinished, chosen.half_sent)
    table = Table(title="Strangers beside one client")
    for name in asdict(found):
        table.add_column(name, justify="right")
    table.add_row(*(f"{value}" for value in asdict(found).values()))
    console().print(table)
    content = {"measured_at": datetime.now(UTC).isoformat(timespec="seconds"), "machine": machine_facts(RESULTS)}
    (RESULTS / "crowd.json").write_text(json.dumps(content | asdict(found), indent=1) + "\n", encoding="utf-8")
    return 0 if found.holds else 1


if __name__ == "__main__":
    sys.exit(main())
