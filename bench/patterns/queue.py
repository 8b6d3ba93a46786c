"""Work queues: one consumer takes jobs and acknowledges each by itself; jobs and acknowledgements are on disk.

stentor     `queue.get()`, `queue.ack(job, wait=False)`, prefetch 500
redis       XREADGROUP COUNT 500, then one XACK for each entry, in a pipeline; appendfsync always
nats        a work-queue stream: a pull consumer fetches 500, `ack()` for each; sync_interval always
rabbitmq    a quorum queue of one node: prefetch 500, `basic_ack` for each; its log is synced before it confirms
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from bench.model import Case, NotAvailableError
from bench.patterns import queue_rabbitmq
from bench.patterns.plan import told
from bench.patterns.rows import Row, add
from bench.programs import run
from bench.systems import nats, rabbitmq, redis, stentor

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bench.model import Spec
    from bench.patterns.plan import Plan
    from bench.processes import Processes, Server
    from bench.role import Harness

FILL_S_MAX = 300.0
WORK_S_MAX = 600.0
PREFETCH = 500
VALUE = b"v" * 100
DURABILITY = "fsync"


def measure(plan: Plan, say: Callable[[str], None]) -> list[Row]:
    rows: list[Row] = []
    for turn in range(plan.repetitions):
        for system in ("stentor", "redis", "nats", "rabbitmq"):
            if not plan.wants(system):
                continue
            with run() as (directory, processes):
                try:
                    server = started(system, directory, processes)
                    spec = told(system, server.address, jobs=plan.queue_jobs)
                    processes.role("bench.patterns.queue:fill", spec).expect("filled", FILL_S_MAX)
                    role = processes.role("bench.patterns.queue:work", spec)
                    spent = role.expect("worked", WORK_S_MAX)["nanoseconds"]
                except NotAvailableError as reason:
                    rows.append(Row("queue", system, "time of a job", "ns", note=f"not available: {reason}"))
                    continue
                add(rows, "queue", system, "ns", time_of_a_job=spent)
        say(f"queue: turn {turn + 1} done")
    return rows


def started(system: str, directory: Path, processes: Processes) -> Server:
    case = Case("queue", system, "", "tuned", DURABILITY)
    known: dict[str, Any] = {"redis": redis.SYSTEM, "nats": nats.SYSTEM}
    if system == "stentor":
        return stentor.start_broker(directory / "stentor", processes)
    if system == "rabbitmq":
        _need_pika()
        return rabbitmq.start(directory, processes)
    server: Server = known[system].start(case, directory, processes)
    return server


def _need_pika() -> None:
    try:
        import pika  # noqa: F401 - whether it is there
    except ImportError:
        raise NotAvailableError("the pika package is not installed") from None


def fill(spec: Spec, harness: Harness) -> None:
    """Role: puts all jobs."""
    jobs = spec.extra["jobs"]
    if spec.system == "stentor":
        with connected(spec) as client, client.queue("jobs") as queue:
            queue.put_many([VALUE] * jobs, timeout=FILL_S_MAX)
    elif spec.system == "redis":
        client = redis.connect(spec)
        client.xgroup_create("jobs", "workers", id="0", mkstream=True)
        for start in range(0, jobs, 1_000):
            pipeline = client.pipeline(transaction=False)
            for _ in range(min(1_000, jobs - start)):
                pipeline.xadd("jobs", {"v": VALUE})
            pipeline.execute()
    elif spec.system == "rabbitmq":
        queue_rabbitmq.fill(spec.address, jobs, VALUE)
    else:
        asyncio.run(_fill_nats(spec, jobs))
    harness.say("filled")


def work(spec: Spec, harness: Harness) -> None:
    """Role: works off all jobs, one by one."""
    jobs = spec.extra["jobs"]
    if spec.system == "stentor":
        spent = _work_stentor(spec, jobs)
    elif spec.system == "redis":
        spent = _work_redis(spec, jobs)
    elif spec.system == "rabbitmq":
        spent = queue_rabbitmq.work(spec.address, jobs, len(VALUE), PREFETCH)
    else:
        spent = asyncio.run(_work_nats(spec, jobs))
    harness.say("worked", nanoseconds=spent / jobs)


def connected(spec: Spec) -> Any:
    import stentor as product

    return product.connect(spec.address, timeout=60)


def _work_stentor(spec: Spec, jobs: int) -> int:
    with connected(spec) as client, client.queue("jobs", prefetch=PREFETCH) as queue:
        began = time.perf_counter_ns()
        for _ in range(jobs):
            job = queue.get(timeout=30)
            assert len(job.value) == len(VALUE)
            queue.ack(job, wait=False)
        while queue.statistics()["held"]:
            time.sleep(0.0005)
        spent = time.perf_counter_ns() - began
        assert queue.describe().finished == jobs
    return spent


def _work_redis(spec: Spec, jobs: int) -> int:
    client = redis.connect(spec)
    began, done = time.perf_counter_ns(), 0
    while done < jobs:
        ((_, entries),) = client.xreadgroup("workers", "one", {"jobs": ">"}, count=PREFETCH, block=10_000)
        pipeline = client.pipeline(transaction=False)
        for entry, fields in entries:
            assert len(fields[b"v"]) == len(VALUE)
            pipeline.xack("jobs", "workers", entry)
        done += sum(pipeline.execute())
    return time.perf_counter_ns() - began


async def _fill_nats(spec: Spec, jobs: int) -> None:
    import nats as library
    from nats.js.api import RetentionPolicy, StreamConfig

    client = await library.connect(spec.address)
    stream = client.jetstream(publish_async_max_pending=2_000)
    await stream.add_stream(StreamConfig(name="jobs", subjects=["jobs"], retention=RetentionPolicy.WORK_QUEUE))
    for start in range(0, jobs, 1_000):
        await asyncio.gather(*(stream.publish("jobs", VALUE) for _ in range(min(1_000, jobs - start))))
    await client.close()


async def _work_nats(spec: Spec, jobs: int) -> int:
    import nats as library

    client = await library.connect(spec.address)
    consumer = await client.jetstream().pull_subscribe("jobs", durable="workers")
    began, done = time.perf_counter_ns(), 0
    while done < jobs:
        for message in await consumer.fetch(min(PREFETCH, jobs - done), timeout=10):
            assert len(message.data) == len(VALUE)
            await message.ack()
            done += 1
    await client.flush()
    spent = time.perf_counter_ns() - began
    await client.close()
    return spent
