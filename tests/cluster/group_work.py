"""Members of a group, each a process of its own that writes down what it handles; and what that shows.

A line is the time, what happened and to which message. The clock is the same for all processes of a machine.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from bisect import bisect_right
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

import stentor

if TYPE_CHECKING:
    from collections.abc import Callable

    from stentor.testing.cluster import LocalCluster

TOPIC, GROUP, PARTITIONS, OUTPUTS = "jobs", "workers", 8, "outputs"
TRANSACTIONS = -1
"""Instead of a number of workers: a loop that sends something out for each message, in transactions."""


FAILS = 0.05  # of the handlers in transactions
LEAVE_S = 5.0  # that a member has to leave


class Handled(NamedTuple):
    """A message that a member has handled."""

    at: float
    member: str
    partition: int
    offset: int
    since: tuple[int, int] = (0, 0)  # the generation that made it the owner


class Worker:
    """A member in a process of its own."""

    def __init__(
        self, cluster: LocalCluster, folder: Path, name: str, *, silence: float = 45.0, workers: int = 0
    ) -> None:
        self.name, self.file = name, folder / name
        self._errors = (folder / f"{name}.errors").open("wb")
        arguments = [sys.executable, __file__, cluster.url, name, str(self.file), str(silence), str(workers)]
        self.process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=self._errors)

    def handled(self) -> list[Handled]:
        if not self.file.exists():
            return []
        lines = self.file.read_text(encoding="utf-8").splitlines()
        rows = [line.split() for line in lines if line.count(" ") == 4]
        return [
            Handled(float(at), self.name, int(partition), int(offset), (int(epoch), int(count)))
            for at, partition, offset, epoch, count in rows
        ]

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):  # it was killed since, and a timer wakes it
            os.kill(self.process.pid, number)

    def end(self) -> None:
        """Let it leave its group, so that the next one of this name has no dead members."""
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
            self.signal(signal.SIGCONT)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(LEAVE_S)
            self.process.kill()
        self.process.wait()
        self._errors.close()


class Feed(threading.Thread):
    """Publishes to all partitions in turn, at a steady pace, until it is stopped."""

    def __init__(self, cluster: LocalCluster, pause_s: float = 0.02) -> None:
        super().__init__()
        self._cluster, self._pause_s = cluster, pause_s
        self.stopped = threading.Event()
        self.sent: set[tuple[int, int]] = set()  # partition and offset of what was acknowledged,
        self.acknowledged_at: dict[int, list[float]] = {index: [] for index in range(PARTITIONS)}  # and when

    def run(self) -> None:
        def noted(receipt, error) -> None:
            if error is None:
                self.sent.add((receipt.partition, receipt.offset))
                self.acknowledged_at[receipt.partition].append(time.monotonic())

        with self._cluster.client(timeout=60) as client, client.producer(TOPIC) as producer:
            number = 0
            while not self.stopped.wait(self._pause_s):
                producer.send(f"{number}", partition=number % PARTITIONS, on_delivery=noted)
                number += 1
            producer.flush(timeout=60)


class Moved(NamedTuple):
    """A partition that changed hands."""

    at: float  # when the next owner began
    partition: int
    owners: tuple[str, str]
    pause_s: float  # from the last message of one to the first of the next


def moves(handled: list[Handled]) -> list[Moved]:
    """Where partitions changed hands, by what was handled first by each owner of each generation."""
    found, last = [], {}
    for one in sorted(handled):
        before = last.get(one.partition)
        if before is not None and before.since < one.since:
            owners = before.member, one.member
            found.append(Moved(one.at, one.partition, owners, one.at - before.at))
        if before is None or before.since <= one.since:
            last[one.partition] = one
    return found


def owners_by_generation(handled: list[Handled]) -> dict[tuple[int, tuple[int, int]], set[str]]:
    """Who handled something of a partition as its owner since a generation: one each."""
    found: dict[tuple[int, tuple[int, int]], set[str]] = {}
    for one in handled:
        if one.since != (0, 0):
            found.setdefault((one.partition, one.since), set()).add(one.member)
    return found


def longest_pause(handled: list[Handled], fed: list[float], partition: int, begin: float, end: float) -> float:
    """The longest time in which nothing of a partition was handled, within a time, although there was something: it
    counts from the first message that came in that time.
    """
    times = [begin, *sorted(one.at for one in handled if one.partition == partition and begin < one.at < end), end]
    pauses = [0.0]
    for before, after in pairwise(times):
        came = bisect_right(fed, before)
        if came < len(fed) and fed[came] < after:
            pauses.append(after - fed[came])
    return max(pauses)


def main(url: str, name: str, file: str, silence: str, workers: str) -> None:
    """A member: handles messages until it is asked to stop, in a loop or with workers."""

    def stop(*_: object) -> None:
        raise SystemExit

    signal.signal(signal.SIGTERM, stop)
    with (
        Path(file).open("a", buffering=1, encoding="utf-8") as lines,
        stentor.connect(url, name=name, timeout=60) as client,
        client.group(GROUP, TOPIC, silence=float(silence)) as group,
    ):
        tie, lock = group._core.tie, threading.Lock()

        def handle(message: stentor.Message) -> None:
            key = message._block.topic_id, message.partition
            epoch, count = tie.life.holding.get(key, (0, 0))
            with lock:
                lines.write(f"{time.monotonic()} {message.partition} {message.offset} {epoch} {count}\n")

        if int(workers) == TRANSACTIONS:
            send_out(group, handle)
        elif int(workers):
            group.run(handle, workers=int(workers), ordered_by="partition")
        else:
            for message in group:
                handle(message)


def send_out(group: stentor.Group, handle: Callable[[stentor.Message], None]) -> None:
    """For each message something that is never the same again; some handlers fail half-way."""
    while True:
        with suppress(stentor.StentorError, ZeroDivisionError), group.transaction(timeout=10) as out:
            for _ in range(random.choice([1, 1, 3])):
                message = group.get(timeout=1)
                out.send(OUTPUTS, f"{message.partition} {message.offset} {uuid4()}", key=message.key)
                handle(message)
            if random.random() < FAILS:
                raise ZeroDivisionError


if __name__ == "__main__":
    main(*sys.argv[1:])
