"""Taskiq on Stentor: a broker, and a result backend.

    broker = TaskiqBroker("stentor://localhost:7440").with_result_backend(TableResults("stentor://localhost:7440"))

    @broker.task
    async def resize(name: str) -> int: ...

Run `taskiq worker module:broker`. A task is a job of a queue, acknowledged when Taskiq says so: by default when its
result is saved. The labels `delay` (seconds) and `priority` (0 to 9, the highest first) are the queue's.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from stentor.client.job import lost
from stentor.errors import Closed, InvalidArgument, LeaseLost
from stentor.integrations.packages import need

need("taskiq", "stentor.integrations.taskiq", "pip install 'taskiq>=0.12'")

from taskiq import (  # noqa: E402
    AckableMessage,
    AsyncBroker,
    AsyncResultBackend,
    BrokerMessage,
    TaskiqMessage,
    TaskiqMiddleware,
    TaskiqResult,
)
from taskiq.depends.progress_tracker import TaskProgress  # noqa: E402
from taskiq.serializers import JSONSerializer  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from taskiq.abc.serializer import TaskiqSerializer

    from stentor.client.async_client import AsyncClient
    from stentor.client.job import Job
    from stentor.client.queue import AsyncQueue
    from stentor.client.queue_consumer import QueueConsumer
    from stentor.client.table import AsyncTable

logger = logging.getLogger(__name__)

_PREFETCH = 200  # twice the tasks that a Taskiq worker runs at once unless told otherwise
_RESULT_TTL_S = 3_600.0  # an hour, for whoever asked to come and look
_PROGRESS = "progress/"


class TaskiqBroker(AsyncBroker):
    """Sends tasks to a queue, and takes them from it."""

    def __init__(
        self,
        url: str | None = None,
        *,
        queue: str = "taskiq",
        prefetch: int = _PREFETCH,
        settings: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._url = url
        self._queue_name = queue
        self._prefetch = prefetch
        self._settings = settings or {}
        self._client: AsyncClient | None = None
        self._queue: AsyncQueue | None = None
        self._held: dict[str, deque[Job]] = {}  # by task: what Taskiq was handed, and has not begun
        self.add_middlewares(_Beginning(self._begin))

    async def startup(self) -> None:
        """Connect, and make the queue if there is none."""
        if self._client is None:
            self._client = await _connect(self._url)
            if self._settings:
                await self._client.create_topic(self._queue_name, kind="queue", exist_ok=True, **self._settings)
            self._queue = await self._client.queue(self._queue_name, prefetch=self._prefetch)
        await super().startup()

    async def shutdown(self) -> None:
        """Give back what was not begun, and disconnect."""
        await super().shutdown()
        client, self._client, self._queue = self._client, None, None
        self._held.clear()
        if client is not None:
            await client.close()

    def _started(self) -> AsyncQueue:
        if self._queue is None:
            raise InvalidArgument("This Taskiq broker was not started.", hint="Call `await broker.startup()` first.")
        return self._queue

    async def kick(self, message: BrokerMessage) -> None:
        """Put a task into the queue, and wait until it is committed."""
        delay, priority = message.labels.get("delay"), message.labels.get("priority")
        await self._started().put(
            message.message,
            delay=None if delay is None else float(delay),
            priority=0 if priority is None else int(priority),
        )

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """The tasks of the queue, each to be acknowledged. Taskiq holds more of them than it works on."""
        queue = self._started()
        while True:
            try:
                consumer = await queue._core.consume()  # noqa: SLF001 - below its face
                asked = time.time_ns()
                jobs = consumer.begin(await consumer.draw(1))
            except Closed:
                return
            for job in jobs:
                if consumer.core.tracing is not None:
                    consumer.core.tracing.received(job, asked)
                task = self._name(job)
                if task is None:  # Taskiq drops it: nothing of it ever begins
                    job.begun = True
                else:
                    self._held.setdefault(task, deque()).append(job)
                yield AckableMessage(data=job.value or b"", ack=partial(self._ack, queue, job, task))

    def _name(self, job: Job) -> str | None:
        """Return the id of the task that a job is; None if it is none."""
        try:
            return str(self.formatter.loads(job.value or b"").task_id)
        except Exception:  # noqa: BLE001 - any formatter, any bytes; the receiver logs it
            return None

    def _let_go(self, task: str) -> Job | None:
        """Take out the first job of a task. Several jobs are one task if it was sent twice under one id."""
        jobs = self._held.get(task)
        if not jobs:
            return None
        job = jobs.popleft()
        if not jobs:
            del self._held[task]
        return job

    async def _begin(self, task: str) -> None:
        """The work on a task begins, and its attempt counts. LeaseLost if another worker has it by now."""
        job = self._let_go(task)
        if job is None:  # it came another way, as in tests
            return
        consumer: QueueConsumer = await self._started()._core.consume()  # noqa: SLF001 - below its face
        if not (consumer.begins(job) or await consumer.begins_surely(job)):
            raise lost(job)

    async def _ack(self, queue: AsyncQueue, job: Job, task: str | None) -> None:
        if not job.begun and task is not None:  # Taskiq knows no such task
            self._let_go(task)
        try:
            await queue.ack(job, wait=False)
        except LeaseLost as error:
            logger.warning("%s", error)


class _Beginning(TaskiqMiddleware):
    """Says that the work on a task begins: what a worker only holds is no attempt."""

    def __init__(self, begin: Callable[[str], Awaitable[None]]) -> None:
        super().__init__()
        self._begin = begin

    async def pre_execute(self, message: TaskiqMessage) -> TaskiqMessage:
        """Let the task begin."""
        await self._begin(message.task_id)
        return message


class TableResults(AsyncResultBackend[Any]):
    """Keeps results in a table, each for `ttl` seconds. Every process that uses it holds a copy of all of them."""

    def __init__(
        self,
        url: str | None = None,
        *,
        table: str = "taskiq.results",
        ttl: float = _RESULT_TTL_S,
        serializer: TaskiqSerializer | None = None,
    ) -> None:
        self._url = url
        self._table_name = table
        self._ttl = ttl
        self._serializer = serializer or JSONSerializer()
        self._client: AsyncClient | None = None
        self._table: AsyncTable | None = None

    async def startup(self) -> None:
        """Connect, and make the table if there is none."""
        if self._client is None:
            self._client = await _connect(self._url)
            await self._client.create_topic(self._table_name, kind="table", exist_ok=True)
            self._table = await self._client.table(self._table_name)

    async def shutdown(self) -> None:
        """Disconnect."""
        client, self._client, self._table = self._client, None, None
        if client is not None:
            await client.close()

    def _started(self) -> AsyncTable:
        if self._table is None:
            raise InvalidArgument("These results were not started.", hint="Call `await broker.startup()` first.")
        return self._table

    async def set_result(self, task_id: str, result: TaskiqResult[Any]) -> None:
        """Keep a result."""
        data = self._serializer.dumpb(result.model_dump(mode="json"))
        await self._started().put(task_id, data, ttl=self._ttl)

    async def is_result_ready(self, task_id: str) -> bool:
        """Whether it is there."""
        return task_id in self._started()

    async def get_result(self, task_id: str, with_logs: bool = False) -> TaskiqResult[Any]:
        """A result that is there."""
        del with_logs  # Taskiq collects none any more
        return TaskiqResult[Any].model_validate(self._serializer.loadb(self._started()[task_id]))

    async def set_progress(self, task_id: str, progress: TaskProgress[Any]) -> None:
        """Keep how far a task is."""
        data = self._serializer.dumpb(progress.model_dump(mode="json"))
        await self._started().put(_PROGRESS + task_id, data, ttl=self._ttl)

    async def get_progress(self, task_id: str) -> TaskProgress[Any] | None:
        """How far a task is, if it said so."""
        data = self._started().get(_PROGRESS + task_id)
        return None if data is None else TaskProgress[Any].model_validate(self._serializer.loadb(data))


async def _connect(url: str | None) -> AsyncClient:
    from stentor.client.async_client import connect_async

    return await connect_async(url)
