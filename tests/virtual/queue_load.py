"""A work queue on a simulated cluster: workers that come, go, are killed and paused, and what must hold of their jobs.

Workers are the product's own clients, each a process of its own. A job is a worker's from when it is handed out until
it is settled, or its lease ends by the worker's own clock.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from tests.virtual.world import SECOND

from stentor.broker.queues.heads import queue_of
from stentor.errors import InvalidArgument, LeaseLost, StentorError
from stentor.wire import sparse
from stentor.wire.header import HEADER_BYTES, extents, unpack

if TYPE_CHECKING:
    from tests.virtual.cluster import Cluster
    from tests.virtual.world import Process

    from stentor.client.job import Job
    from stentor.client.queue import AsyncQueue

QUEUE = "q"
DEAD = "q.dead"
WORKERS = 3
LEASE_S = 3
ATTEMPTS = 4
SETTINGS: dict[str, Any] = {"kind": "queue", "lease_s": LEASE_S, "max_attempts": ATTEMPTS, "retry_delay_ms": 100}

Place = tuple[int, int]


class QueueWorker:
    """One process that works on jobs."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.queue: AsyncQueue | None = None
        self.job: Job | None = None

    @property
    def holds(self) -> Job | None:
        """The job in work, if it is this worker's as far as that knows."""
        return self.job if self.job is not None and not self.process.dead and self.job.is_held else None


class QueueLoad:
    """Who puts jobs, and who works on them, until they are told to stop."""

    def __init__(self, cluster: Cluster, *, ordered: bool) -> None:
        self.cluster, self.world, self.require = cluster, cluster.world, cluster.world.require
        self.ordered = ordered
        self.stopping = self.put_all = False
        self.workers: list[QueueWorker] = []
        self.acknowledged: dict[Place, bytes] = {}
        self.begun: dict[Place, list[int]] = {}  # the fences of those that began it
        self.done: dict[Place, int] = {}  # by which attempt
        self._numbers = 0

    @property
    def settings(self) -> dict[str, Any]:
        return {**SETTINGS, "ordered_by": "key"} if self.ordered else SETTINGS

    # --- work -----------------------------------------------------------------------------------

    def begin(self) -> None:
        self.cluster.process("putter").run(self._put())
        for _ in range(WORKERS):
            self.add()

    def add(self) -> None:
        name = f"worker{self._numbers}"
        self._numbers += 1
        worker = QueueWorker(self.cluster.process(name))
        self.workers.append(worker)
        worker.process.run(self._work(name, worker))

    async def _open(self, name: str, limit: float | None = None) -> AsyncQueue:
        while True:
            try:
                client = await self.cluster.client(name)
                return await client.queue(QUEUE, prefetch=4, limit=limit, timeout=20)
            except StentorError:
                await asyncio.sleep(0.1)

    async def _put(self) -> None:
        rng, queue = self.world.rng, await self._open("putter")
        number = 0
        while not self.stopping:
            number += 1
            terms: dict[str, Any] = rng.choice([{}, {}, {}, {"delay": 0.5}, {"priority": 3}, {"unique": f"{number}"}])
            value = b"%d" % number
            try:
                receipt = await queue.put(value, key=f"k{rng.randrange(4)}", timeout=20, **terms)
                self.acknowledged[receipt.partition, receipt.offset] = value
            except StentorError as error:
                self.require(not isinstance(error, InvalidArgument), "a job is refused", str(error))
            await asyncio.sleep(rng.choice([0, 0.02, 0.1]))
        self.put_all = True

    async def _work(self, name: str, worker: QueueWorker) -> None:
        rng = self.world.rng
        queue = worker.queue = await self._open(name, rng.choice([None, 0.3]))
        while worker.queue is queue:
            try:
                worker.job = await queue.get(timeout=1)
            except StentorError:
                continue
            self._check_begun(worker, worker.job)
            await asyncio.sleep(rng.choice([0, 0.01, 0.1, 0.5]))
            await self._settle(queue, worker.job, rng.random())
            worker.job = None

    async def _settle(self, queue: AsyncQueue, job: Job, what: float) -> None:
        place = job.partition, job.offset
        try:
            if what < 0.8:
                await queue.ack(job, timeout=30)
                self.require(place not in self.done, "a job was finished twice", place, self.done.get(place))
                self.done[place] = job.attempt
            else:
                await queue.nack(job, delay=None if what < 0.9 else 0, error="by chance", timeout=30)
        except LeaseLost:
            return  # somebody else has it
        except StentorError:
            return  # it may be settled, or not

    def _check_begun(self, mine: QueueWorker, job: Job) -> None:
        place = job.partition, job.offset
        self.require(place not in self.done, "a job that was finished is handed out", place, self.done.get(place))
        before = self.begun.setdefault(place, [])
        self.require(all(job.fence > each for each in before), "a fence does not grow", place, job.fence, before)
        self.require(job.attempt <= ATTEMPTS, "a job has more attempts than it may", place, job.attempt)
        before.append(job.fence)
        for other in self.workers:
            held = other.holds
            if other is mine or held is None:
                continue
            same = (held.partition, held.offset) == place
            self.require(not same, "a job is in work twice", place, mine.process.name, other.process.name)
            both = self.ordered and (held.key, held.partition) == (job.key, job.partition)
            self.require(not both, "two jobs of one key are in work", place, held.offset, job.key)

    def fail(self) -> None:
        """One of them dies, stands still, leaves, or comes."""
        rng = self.world.rng
        alive = [worker for worker in self.workers if not worker.process.dead]
        what, one = rng.random(), rng.choice(alive) if alive else None
        if one is not None and what < 0.3:
            one.process.dead = True
            self.cluster.network.died(one.process, silently=False)
            self.add()
        elif one is not None and what < 0.5:
            one.process.paused_until = self.world.now + round(rng.choice([0.5, 2, 6]) * SECOND)
        elif one is not None and what < 0.6 and one.queue is not None:
            one.process.run(self._leave(one))

    async def _leave(self, worker: QueueWorker) -> None:
        queue, worker.queue = worker.queue, None
        if queue is not None:
            await queue.close()
            self.add()

    # --- the end --------------------------------------------------------------------------------

    def settled(self, members: list[Any]) -> bool:
        """Whether every job has ended, as every member knows."""
        return self.put_all and all(queue_of(each).first_open() == each.replica.end for each in members)

    def compare(self, members: list[Any], dead: list[Any]) -> None:
        """Every acknowledged job was finished or is a dead letter, and is that once."""
        for member in members:
            queue_of(member).check_invariants()
        buried: dict[Place, int] = {}
        for partition in dead:
            found = (
                partition.log.read(partition.log.start, partition.committed, 1 << 26) if partition.committed else None
            )
            data = b"" if found is None else found.data
            for position, length, _, _ in extents(data):
                header = unpack(data, position)
                rows = sparse.rows_of(header, memoryview(data)[position + HEADER_BYTES : position + length])
                for headers in rows.headers:
                    said = dict(headers or [])
                    place = int(said["stentor-dead-partition"]), int(said["stentor-dead-offset"])
                    self.require(place not in buried, "a job is a dead letter twice", place)
                    buried[place] = int(said["stentor-dead-attempts"])
        for place, attempts in buried.items():
            self.require(place not in self.done, "a job was finished, and is dead", place)
            tried = len(self.begun.get(place, ()))
            self.require(attempts == ATTEMPTS, "attempts of a dead job are wrong", place, attempts, tried)
            self.require(tried >= attempts, "an attempt counts that nobody began", place, attempts, tried)
        finished = sum(queue_of(member).finished for member in members[:: max(1, len(members))])
        for place in self.acknowledged:
            self.require(place in buried or place in self.begun, "a job was never handed out", place, finished)
