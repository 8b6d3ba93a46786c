"""Workers of a group: how many messages go through `run`, and what a second process is worth.

in batches     `run(handler, batch=1000)`, the handler does nothing: the ceiling of one thread
one by one     `run(handler)`, the same
two processes  a handler that computes for 5 ms, in one process and in two, ordered by key: messages a second of each.
               Every process notes what it handled; the order of each key is compared afterwards

The broker is a process of its own; messages have 100 bytes and one of 1,000 keys, in eight partitions.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import stentor
from bench.model import BenchError
from bench.patterns.plan import told
from bench.patterns.rows import Row, add
from bench.programs import run
from bench.systems.stentor import start_broker

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.model import Spec
    from bench.patterns.plan import Plan
    from bench.role import Harness

TOPIC = "work"
PARTITIONS = 8
KEYS = 1_000
COMPUTE_S = 0.005
WAIT_S = 300.0
NOTES = "STENTOR_BENCH_NOTES"


def measure(plan: Plan, say: Callable[[str], None]) -> list[Row]:
    rows: list[Row] = []
    with run() as (directory, processes):
        broker = start_broker(directory / "stentor", processes)
        first = told("stentor", broker.address, messages=plan.work_messages)
        processes.role("bench.patterns.workers:fill", first).expect("filled", WAIT_S)
        for turn in range(plan.repetitions):
            spec = told(
                "stentor",
                broker.address,
                messages=plan.work_messages,
                computed=plan.work_computed,
                turn=turn,
                notes=str(directory),
            )
            found = processes.role("bench.patterns.workers:work", spec).expect("worked", WAIT_S)
            add(rows, "workers", "stentor", "messages/s", in_batches=found["batches"], one_by_one=found["singles"])
            one, two = found["one"], found["two"]
            add(rows, "workers", "stentor", "messages/s", computed_by_one_process=one, computed_by_two_processes=two)
            add(rows, "workers", "stentor", "times", gain_of_a_second_process=two / one)
        say("workers: done")
    return rows


def fill(spec: Spec, harness: Harness) -> None:
    """Role: publishes what the workers will handle."""
    keys = [b"%d" % number for number in range(KEYS)]
    with stentor.connect(spec.address) as client:
        client.create_topic(TOPIC, partitions=PARTITIONS)
        with client.producer(TOPIC) as producer:
            for number in range(spec.extra["messages"]):
                producer.send(b"x" * 100, key=keys[number % KEYS])
    harness.say("filled")


def work(spec: Spec, harness: Harness) -> None:
    """Role: works, in every way."""
    many, few, turn = spec.extra["messages"], spec.extra["computed"], spec.extra["turn"]
    with stentor.connect(spec.address) as client:
        rate(client, f"warm{turn}", many // 4, nothing, batch=1000)  # cold code and cold files do not count
        batches = rate(client, f"batches{turn}", many, nothing, batch=1000)
        singles = rate(client, f"singles{turn}", many, nothing)
        found = {}
        for workers in (1, 2):
            folder = Path(spec.extra["notes"]) / f"notes{turn}-{workers}"
            folder.mkdir()
            os.environ[NOTES] = str(folder)
            options: Any = {"workers": workers, "mode": "process", "ordered_by": "key"}
            found[workers] = rate(
                client, f"processes{turn}-{workers}", few, "bench.patterns.workers:compute", **options
            )
            check_order(folder)
    harness.say("worked", batches=batches, singles=singles, one=found[1], two=found[2])


def rate(client: Any, group: str, messages: int, handler: Any, **options: Any) -> float:
    """Messages a second, from the first that is done until enough are."""
    with client.group(group, TOPIC) as member:
        marks: list[tuple[float, int]] = []

        def watch() -> None:
            pause, done = threading.Event(), 0
            while done < messages:
                pause.wait(0.005)
                done = member.statistics()["done"]
                if done:
                    marks.append((time.perf_counter(), done))
            member.stop()

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        member.run(handler, **options)
        thread.join()
    (began, before), (ended, after) = marks[0], marks[-1]
    return (after - before) / max(ended - began, 1e-9)


def nothing(_: Any) -> None:
    """A handler that does nothing."""


def compute(message: Any) -> None:
    """A handler that needs a processor for a while, and notes what it had."""
    with (Path(os.environ[NOTES]) / str(os.getpid())).open("a", encoding="ascii") as notes:
        notes.write(f"{time.monotonic_ns()} {message.partition} {message.key.decode()} {message.offset}\n")
    until = time.thread_time() + COMPUTE_S
    while time.thread_time() < until:
        pass


def check_order(folder: Path) -> None:
    """Messages of a key were handled in their order, whichever process had them."""
    lines = [line.split() for file in folder.iterdir() for line in file.read_text(encoding="ascii").splitlines()]
    last: dict[tuple[str, str], int] = defaultdict(lambda: -1)
    for _, partition, key, offset in sorted(lines, key=lambda line: int(line[0])):
        if int(offset) <= last[partition, key]:
            raise BenchError(f"key {key} was handled out of order")
        last[partition, key] = int(offset)
