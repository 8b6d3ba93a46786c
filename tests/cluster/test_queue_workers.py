"""`stentor work` on a queue: workers that come later get their share, are killed, and stand still for two leases."""

from __future__ import annotations

import os
import random
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TextIO

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from stentor.testing.cluster import LocalCluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

PAUSE = threading.Event()  # never set: random moments are what these tests are about

HANDLERS = """
import os, time

FILE = os.open(os.environ["NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def note(what, at, job):
    line = f"{at} {what} {os.environ['NAME']} {job.partition} {job.offset} {job.fence}\\n"
    os.write(FILE, line.encode())

def handle(job):
    note("begun", time.clock_gettime(time.CLOCK_BOOTTIME), job)
    time.sleep(0.1)
    note("done", time.clock_gettime(time.CLOCK_BOOTTIME), job)

def deadly(job):
    note("begun", time.clock_gettime(time.CLOCK_BOOTTIME), job)
    if job.value == b"deadly":
        os._exit(7)
    note("done", time.clock_gettime(time.CLOCK_BOOTTIME), job)
"""

GETTER = """
import sys, stentor, handlers

with stentor.connect() as client, client.queue(sys.argv[1]) as queue:
    while True:
        job = queue.get()
        handlers.deadly(job)
        queue.ack(job)
"""


class Note(NamedTuple):
    """What a handler wrote down."""

    at: float
    what: str
    worker: str
    place: tuple[int, int]
    fence: int


class Pool:
    """Processes that work on a queue, each a `stentor work` of its own."""

    def __init__(self, cluster: LocalCluster, folder: Path, queue: str, wait: Callable[..., object]) -> None:
        self.cluster, self.folder, self.queue, self.wait = cluster, folder, queue, wait
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.client = cluster.client(timeout=60)
        self._file: TextIO | None = None
        self._notes: list[Note] = []
        (folder / "handlers.py").write_text(HANDLERS, encoding="utf-8")

    def start(self, name: str, *options: str, handler: str = "handle") -> None:
        self._start(name, ["-m", "stentor", "work", self.queue, f"handlers:{handler}", "--quiet", *options])

    def start_getting(self, name: str) -> None:
        """A program that takes jobs by itself."""
        self._start(name, ["-c", GETTER, self.queue])

    def _start(self, name: str, arguments: list[str]) -> None:
        command = [sys.executable, *arguments]
        environment = os.environ | {"NOTES": str(self.folder / "notes"), "NAME": name, "STENTOR_URL": self.cluster.url}
        with (self.folder / f"{name}.errors").open("ab") as errors:
            self.processes[name] = subprocess.Popen(
                command, cwd=self.folder, env=environment, stderr=errors, start_new_session=True
            )

    def send(self, name: str, number: int) -> None:
        """To a worker and its children."""
        os.killpg(self.processes[name].pid, number)

    def kill(self, name: str) -> None:
        self.send(name, signal.SIGKILL)
        self.processes.pop(name).wait()

    def end(self) -> None:
        for name, process in self.processes.items():
            if process.poll() is None:
                self.send(name, signal.SIGCONT)
                self.send(name, signal.SIGTERM)
        for name, process in self.processes.items():
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                self.send(name, signal.SIGKILL)
                process.wait()
        self.client.close()
        if self._file is not None:
            self._file.close()

    def notes(self) -> list[Note]:
        if self._file is None and (self.folder / "notes").exists():
            self._file = (self.folder / "notes").open(encoding="utf-8")
        for line in self._file or ():  # each is written in one step
            at, what, worker, partition, offset, fence = line.split()
            self._notes.append(Note(float(at), what, worker, (int(partition), int(offset)), int(fence)))
        return self._notes

    def begun_by(self, name: str) -> list[Note]:
        return [note for note in self.notes() if note.what == "begun" and note.worker == name]


@pytest.fixture
def pool(three: LocalCluster, tmp_path: Path, wait_until: Callable[..., object]):
    made = Pool(three, tmp_path, f"work.{secrets.token_hex(4)}", wait_until)
    yield made
    made.end()


def put(
    pool: Pool, count: int, *, value: Callable[[int], bytes] = lambda number: b"%d" % number, **settings: int
) -> None:
    pool.client.create_topic(pool.queue, kind="queue", **settings)
    with pool.client.queue(pool.queue) as queue:
        queue.put_many([value(number) for number in range(count)])


def ended(pool: Pool) -> int:
    found = pool.client.describe_queue(pool.queue)
    return found.finished + sum(each.dead + each.died for each in found.partitions)


def letters(pool: Pool) -> set[tuple[int, int]]:
    if not any(topic.name == f"{pool.queue}.dead" for topic in pool.client.topics()):
        return set()
    told = [dict(letter.headers) for letter in pool.client.read(f"{pool.queue}.dead")]
    return {(int(each["stentor-dead-partition"]), int(each["stentor-dead-offset"])) for each in told}


@pytest.mark.parametrize("mode", ["thread", "process"])
@pytest.mark.parametrize("workers", [2, 4])
def test_workers_that_come_one_after_the_other_share_a_backlog(pool, workers, mode):
    count = 200
    put(pool, count)
    for number in range(workers):
        pool.start(f"w{number}", "--mode", mode)
        pool.wait(lambda: pool.begun_by("w0"), seconds=60)  # the first one has begun before the others start
    pool.wait(lambda: ended(pool) == count, seconds=120)
    since = pool.begun_by(f"w{workers - 1}")[0].at
    shares = Counter(note.worker for note in pool.notes() if note.what == "begun" and note.at >= since)
    fair = sum(shares.values()) / workers
    assert fair >= 10, "the backlog was gone before the last one came"
    assert all(abs(shares[f"w{number}"] - fair) <= max(1, 0.1 * fair) for number in range(workers)), shares


@pytest.mark.parametrize("mode", ["thread", "process"])
def test_no_job_is_dead_that_no_handler_began_when_each_worker_is_killed(pool, mode):
    count = 100
    put(pool, count, lease_s=2, max_attempts=2, retry_delay_ms=100)
    for number in range(4):
        pool.start(f"w{number}", "--mode", mode)
    for number in range(4):
        pool.wait(lambda number=number: pool.begun_by(f"w{number}"), seconds=60)
        pool.kill(f"w{number}")
    pool.start("last", "--mode", mode, "--workers", "4")
    pool.wait(lambda: ended(pool) == count, seconds=240)
    pool.wait(lambda: len(letters(pool)) == count - len(done(pool)), seconds=60)
    begun = {note.place for note in pool.notes() if note.what == "begun"}
    assert letters(pool) <= begun
    assert len(done(pool)) >= count - 4  # one was in work at each


def done(pool: Pool) -> set[tuple[int, int]]:
    return {note.place for note in pool.notes() if note.what == "done"}


@pytest.mark.parametrize("mode", ["thread", "process", "get"])
def test_a_job_that_kills_its_worker_at_once_dies_and_others_are_done(pool, mode):
    put(pool, 20, value=lambda number: b"deadly" if number == 7 else b"%d" % number, lease_s=1, max_attempts=2)
    deadline = time.monotonic() + 240
    lives = 0
    while ended(pool) < 20:
        assert time.monotonic() < deadline
        if "w" not in pool.processes or pool.processes["w"].poll() is not None:
            lives += 1
            if mode == "get":
                pool.start_getting("w")
            else:
                pool.start("w", "--mode", mode, handler="deadly")
        PAUSE.wait(0.05)
    pool.wait(lambda: len(letters(pool)) == 1, seconds=60)
    assert len(done(pool)) == 19
    assert letters(pool).isdisjoint(done(pool))
    assert lives <= 8


@pytest.mark.parametrize("mode", ["thread", "process"])
def test_a_woken_worker_begins_no_job_that_was_done_elsewhere(pool, mode):
    lease_s, stops = 1, 50
    put(pool, 8_000, lease_s=lease_s, max_attempts=100)
    names = [f"w{number}" for number in range(4)]
    for name in names:
        pool.start(name, "--mode", mode, "--workers", "2")
    for name in names:
        pool.wait(lambda name=name: pool.begun_by(name), seconds=90)
    rng = random.Random(mode)
    for _ in range(stops // 2):
        stopped = rng.sample(names, 2)
        for name in stopped:
            PAUSE.wait(rng.uniform(0, 0.2))  # a random moment is what this is about
            pool.send(name, signal.SIGSTOP)
        PAUSE.wait(2 * lease_s)
        for name in stopped:
            pool.send(name, signal.SIGCONT)
        woken = {name: len(pool.begun_by(name)) for name in stopped}
        pool.wait(lambda woken=woken: all(len(pool.begun_by(each)) > had for each, had in woken.items()), seconds=60)
    assert ended(pool) < 8_000, "the backlog was gone before the last stop"
    notes = sorted(pool.notes())
    finished: dict[tuple[int, int], int] = {}  # the fence of who was done with it last
    stale = []
    for note in notes:
        if note.what == "done":
            finished[note.place] = max(note.fence, finished.get(note.place, 0))
        elif finished.get(note.place, 0) > note.fence:
            stale.append(note)  # another had it since, and was done
    assert stale == []
