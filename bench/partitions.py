"""Thousands of partitions: ``python -m bench.partitions`` on one broker, ``--brokers 3`` with a failover.

For each number of partitions a new broker (or cluster) makes the topics, lists them, is scraped, rests and is started
again; of a cluster one broker is killed, every partition must take a message, and when it is back all chains must be
whole. All the time somebody pings the broker every few milliseconds: the longest answer is how long its loop stood
still, which counts as silence from 0.7 s. On a busy machine the CPU time of the broker says more than the clock.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

import stentor
from bench.measure import resident_bytes
from bench.processes import environment_with_root
from bench.programs import console, run
from bench.systems.stentor import start_broker
from stentor.testing import cluster
from stentor.wire import frames, messages
from stentor.wire.frames import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PING_S = 0.005
REST_S = 5.0
ASK_S = 0.5
WAIT_S = 300.0


@dataclass
class Row:
    """What was measured with one number of partitions."""

    partitions: int
    seconds: dict[str, float] = field(default_factory=dict)
    stalls: dict[str, float] = field(default_factory=dict)


class Pulse:
    """Pings a broker all the time, and knows the longest answer."""

    def __init__(self, address: str) -> None:
        host, _, port = address.removeprefix("stentor://").rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=WAIT_S)
        hello = messages.Hello(version_min=1, version_max=frames.PROTOCOL_VERSION, name="pulse")
        self._socket.sendall(frames.frame(Kind.HELLO, 0, messages.encode(hello)))
        self._socket.recv(65_536)
        self.longest_s = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        ping = frames.frame(Kind.PING, 1)
        while not self._stop.wait(PING_S):
            began = time.perf_counter()
            try:
                self._socket.sendall(ping)
                if not self._socket.recv(65_536):
                    return
            except OSError:
                return
            self.longest_s = max(self.longest_s, time.perf_counter() - began)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._socket.close()


@contextmanager
def phase(row: Row, name: str, address: str) -> Iterator[None]:
    """Times what happens inside, and how long the broker's loop stood still in it."""
    pulse = Pulse(address)
    began = time.monotonic()
    try:
        yield
    finally:
        row.seconds[name] = time.monotonic() - began
        pulse.close()
        row.stalls[name] = pulse.longest_s


def make_topics(client: Any, partitions: int, per_topic: int, **settings: Any) -> list[str]:
    names = [f"t{number:05d}" for number in range(partitions // per_topic)]
    for name in names:
        client.create_topic(name, partitions=per_topic, **settings)
    return names


def scrape(address: str) -> int:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=WAIT_S) as answer:
        return len(answer.read())


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def one_broker(partitions: int, per_topic: int) -> Row:
    row = Row(partitions)
    with run() as (directory, processes):
        broker = start_broker(directory / "stentor", processes)
        assert broker.process is not None
        with stentor.connect(broker.address, timeout=WAIT_S) as client:
            before = cpu_s(broker.process.pid)
            with phase(row, "create", broker.address):
                make_topics(client, partitions, per_topic)
            row.seconds["create CPU"] = cpu_s(broker.process.pid) - before
            with phase(row, "list", broker.address):
                list_topics(broker.address)
            with phase(row, "scrape", broker.address):
                scrape(client.broker().http_address)
            before = cpu_s(broker.process.pid)
            with phase(row, "rest", broker.address):
                time.sleep(REST_S)
            row.seconds["idle share of a core"] = (cpu_s(broker.process.pid) - before) / REST_S
            row.seconds["resident MB"] = resident_bytes(broker.process.pid) / 1e6
        began = time.monotonic()
        broker.process.send_signal(signal.SIGTERM)
        broker.process.wait(WAIT_S)
        row.seconds["stop"] = time.monotonic() - began
        began = time.monotonic()
        again = start_broker(directory / "stentor", processes)
        row.seconds["start"] = time.monotonic() - began
        assert again.process is not None
        row.seconds["start CPU"] = cpu_s(again.process.pid)
    return row


def list_topics(address: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "stentor", "topic", "list", "--url", address],
        check=True,
        stdout=subprocess.DEVNULL,
        env=environment_with_root(),
    )


def several_brokers(partitions: int, per_topic: int, brokers: int) -> Row:
    row = Row(partitions)
    replicas = min(3, brokers)
    with cluster(brokers=brokers) as running, running.client(timeout=WAIT_S) as client:
        controller = running.controller()
        survivor = "stentor://" + running.brokers[controller].address
        pids = [broker.pid for broker in running.brokers.values()]
        before = sum(map(cpu_s, pids))
        with phase(row, "create", survivor):
            names = make_topics(client, partitions, per_topic, replicas=replicas)
        row.seconds["create CPU"] = sum(map(cpu_s, pids)) - before
        before = sum(map(cpu_s, pids))
        with phase(row, "rest", survivor):
            time.sleep(REST_S)
        row.seconds["idle share of a core"] = (sum(map(cpu_s, pids)) - before) / REST_S / brokers
        row.seconds["resident MB"] = max(map(resident_bytes, pids)) / 1e6
        with phase(row, "publish to all", survivor):
            publish_to_all(client, names, per_topic)
        killed = next(name for name in running.brokers if name != controller)
        with phase(row, "killed: publish to all", survivor):
            running.kill(killed)
            publish_to_all(client, names, per_topic)
        with phase(row, "back: all chains whole", survivor):
            running.brokers[killed].launch()
            with stentor.connect(survivor, timeout=WAIT_S) as asking:
                running.wait_for(lambda: are_whole(asking, replicas), WAIT_S, "all chains")
    return row


def are_whole(client: Any, replicas: int) -> bool:
    time.sleep(ASK_S)  # the answer costs the broker something, too
    return all(len(route.chain) == replicas for topic in client.topics() for route in topic.partitions)


def publish_to_all(client: Any, names: list[str], per_topic: int) -> None:
    for name in names:
        with client.producer(name) as producer:
            for partition in range(per_topic):
                producer.send(b"x", partition=partition)


def show(rows: list[Row], title: str) -> None:
    table = Table(title=title)
    table.add_column("partitions", justify="right")
    for name in rows[0].seconds:
        unit = "" if name.startswith(("idle", "resident")) else " s (longest stall)" if name in rows[0].stalls else " s"
        table.add_column(name + unit, justify="right")
    for row in rows:
        cells = [
            f"{value:,.2f}" + (f" ({row.stalls[name]:.2f})" if name in row.stalls else "")
            for name, value in row.seconds.items()
        ]
        table.add_row(f"{row.partitions:,}", *cells)
    console().print(table)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.partitions", description=__doc__)
    parser.add_argument("--partitions", type=int, nargs="+", default=[1_000, 2_500, 5_000, 10_000])
    parser.add_argument("--per-topic", type=int, default=10)
    parser.add_argument("--brokers", type=int, default=1)
    chosen = parser.parse_args()
    measure: Callable[[int], Row]
    if chosen.brokers == 1:
        measure = lambda count: one_broker(count, chosen.per_topic)  # noqa: E731
    else:
        measure = lambda count: several_brokers(count, chosen.per_topic, chosen.brokers)  # noqa: E731
    rows: list[Row] = []
    for count in chosen.partitions:
        rows.append(measure(count))
        show(
            rows, f"{chosen.brokers} broker{'s' if chosen.brokers > 1 else ''}, topics of {chosen.per_topic} partitions"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
