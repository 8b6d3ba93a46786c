"""Consumers of a queue, each a process of its own that writes down what it does; and what that shows.

A line is the time, what happened (begun, done, failed), partition, offset, fence, attempt and key. The clock is the
same for all processes of a machine.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from stentor.testing.cluster import LocalCluster

QUEUE, LEASE_S, ATTEMPTS = "work", 3, 6


class JobLine(NamedTuple):
    """What a consumer did."""

    at: float
    what: str
    place: tuple[int, int]
    fence: int  # grows with each hand-over
    attempt: int
    key: str
    consumer: str


class JobWorker:
    """A consumer in a process of its own."""

    def __init__(self, cluster: LocalCluster, folder: Path, name: str, pause_s: float) -> None:
        self.name, self.file = name, folder / name
        self._errors = (folder / f"{name}.errors").open("wb")
        arguments = [sys.executable, __file__, cluster.url, name, str(self.file), str(pause_s)]
        self.process = subprocess.Popen(arguments, stderr=self._errors)

    def lines(self) -> list[JobLine]:
        if not self.file.exists():
            return []
        rows = [line.split() for line in self.file.read_text(encoding="utf-8").splitlines() if line.count(" ") == 6]
        return [
            JobLine(float(at), what, (int(partition), int(offset)), int(fence), int(attempt), key, self.name)
            for at, what, partition, offset, fence, attempt, key in rows
        ]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._errors.close()

    def end(self) -> None:
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self.process.wait()
        self._errors.close()


def main(url: str, name: str, file: str, most: str) -> None:
    """A consumer: works until it is asked to stop."""
    import stentor
    from stentor.errors import LeaseLost, StentorError

    def stop(*_: object) -> None:
        raise SystemExit

    signal.signal(signal.SIGTERM, stop)
    rng, pause, pause_s = random.Random(name), threading.Event(), float(most)
    with (
        Path(file).open("a", buffering=1, encoding="utf-8") as lines,
        stentor.connect(url, name=name, timeout=60) as client,
        client.queue(QUEUE, prefetch=50) as queue,
    ):

        def tell(what: str, job: stentor.Job) -> None:
            key = (job.key or b"-").decode()
            lines.write(f"{time.monotonic()} {what} {job.partition} {job.offset} {job.fence} {job.attempt} {key}\n")

        while True:
            try:
                job = queue.get(timeout=5)
            except StentorError:
                continue
            tell("begun", job)
            pause.wait(rng.random() * pause_s)  # the work
            try:
                if rng.random() < 0.05:
                    tell("failed", job)
                    queue.nack(job, delay=0, error="by chance", wait=False)
                else:
                    tell("done", job)
                    queue.ack(job, wait=False)
            except LeaseLost:
                tell("lost", job)


if __name__ == "__main__":
    main(*sys.argv[1:])
