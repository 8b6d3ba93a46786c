"""Tasks in worker processes: `stentor work` on a queue, and Celery on Redis; the task does next to nothing.

stentor    `stentor work jobs … --workers 2 --mode process --prefetch 500`; jobs and acknowledgements are on disk
celery     `celery worker --pool prefork --concurrency 2`, prefetch 250 for each process, acknowledged when done, no
           results, without gossip, mingle and heartbeats; Redis keeps everything in memory, which is its fastest

All tasks are there before the workers start. The clock runs from the first that was handled to the last.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from bench.model import BenchError, Case, NotAvailableError
from bench.patterns import celery_tasks
from bench.patterns.plan import told
from bench.patterns.rows import Row, add
from bench.processes import environment_with_root
from bench.programs import run
from bench.systems import redis, stentor

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    from bench.model import Spec
    from bench.patterns.plan import Plan
    from bench.processes import Processes
    from bench.role import Harness

FILL_S_MAX = 300.0
WORK_S_MAX = 300.0
PREFETCH = 500
PROCESSES = 2
VALUE = b"v" * 100
LOOK_S = 0.001


def measure(plan: Plan, say: Callable[[str], None]) -> list[Row]:
    rows: list[Row] = []
    for turn in range(plan.repetitions):
        for system in ("stentor", "celery"):
            if not plan.wants(system):
                continue
            with run() as (directory, processes):
                try:
                    spent = _measured(system, plan.tasks, directory, processes)
                except NotAvailableError as reason:
                    rows.append(Row("tasks", system, "time of a task", "ns", note=f"not available: {reason}"))
                    continue
                add(rows, "tasks", system, "ns", time_of_a_task=spent)
        say(f"tasks: turn {turn + 1} done")
    return rows


def _measured(system: str, tasks: int, directory: Path, processes: Processes) -> float:
    """Nanoseconds for each task."""
    notes = directory / "notes"
    notes.touch()
    if system == "stentor":
        address = stentor.start_broker(directory / "stentor", processes).address
        command = [sys.executable, "-m", "stentor", "work", "jobs", "bench.patterns.celery_tasks:handle"]
        command += ["--workers", str(PROCESSES), "--prefetch", str(PREFETCH), "--url", address, "--quiet"]
    else:
        _need_celery()
        server = redis.SYSTEM.start(Case("tasks", "redis", "", "tuned", "none"), directory, processes)
        address = f"redis://{server.address}/0"
        command = [sys.executable, "-m", "celery", "-A", "bench.patterns.celery_tasks", "worker", "-c", str(PROCESSES)]
        command += ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "ERROR"]
    processes.role("bench.patterns.tasks:fill", told(system, address, tasks=tasks)).expect("filled", FILL_S_MAX)
    environment = environment_with_root() | {celery_tasks.NOTES: str(notes)}
    if system == "celery":
        environment |= _settings(address)
    return _watched(notes, tasks, processes.start(f"{system}-work", command, env=environment))


def _settings(address: str) -> dict[str, str]:
    return {celery_tasks.BROKER: address, celery_tasks.PREFETCH: str(PREFETCH // PROCESSES)}


def _need_celery() -> None:
    try:
        import celery  # noqa: F401 - whether it is there
    except ImportError:
        raise NotAvailableError("the celery package is not installed") from None


def _watched(notes: Path, tasks: int, worker: subprocess.Popen[bytes]) -> float:
    """From the first to the last."""
    deadline = time.monotonic() + WORK_S_MAX
    first = (0, 0)
    while (done := notes.stat().st_size) < tasks:
        if worker.poll() is not None:
            raise BenchError(f"the workers ended with {worker.returncode}")
        if time.monotonic() > deadline:
            raise BenchError(f"{done} of {tasks} tasks were handled within {WORK_S_MAX:g} s")
        if done and not first[1]:
            first = time.perf_counter_ns(), done
        time.sleep(LOOK_S)
    if done != tasks:
        raise BenchError(f"{tasks} tasks were handled {done} times")
    if not first[1]:
        raise BenchError(f"{tasks} tasks are too few to be timed")
    return (time.perf_counter_ns() - first[0]) / (done - first[1])


def fill(spec: Spec, harness: Harness) -> None:
    """Role: sends all tasks."""
    tasks = spec.extra["tasks"]
    if spec.system == "stentor":
        import stentor as product

        with product.connect(spec.address, timeout=60) as client, client.queue("jobs") as queue:
            queue.put_many([VALUE] * tasks, timeout=FILL_S_MAX)
    else:
        os.environ |= _settings(spec.address)
        app, value = celery_tasks.celery_app(), VALUE.decode()
        with app.producer_pool.acquire(block=True) as producer:
            for _ in range(tasks):
                app.send_task("handle", (value,), producer=producer)
    harness.say("filled")
