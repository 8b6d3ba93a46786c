"""Taskiq on Stentor: a broker, and a result backend.

    broker = TaskiqBroker("stentor://localhost:7440").with_result_backend(TableResults("stentor://localhost:7440"))

    @broker.task
    async def resize(name: str) -> int: ...

Run `taskiq worker module:broker`. A task is a job of a queue, acknowledged when Taskiq says so: by default when its
result is saved. The labels `delay` (seconds) and `priority` (0 to 9, the highest first) are the queue's.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from stentor.errors import Closed, InvalidArgument, LeaseLost
from stentor.integrations.packages import need

need("taskiq", "stentor.integrations.taskiq", "pip install 'taskiq>=0.12'")

from taskiq import AckableMessage, AsyncBroker, AsyncResultBackend, BrokerMessage, TaskiqResult  # noqa: E402
from taskiq.depends.progress_tracker import TaskProgress  # noqa: E402
from taskiq.serializers import JSONSerializer  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from taskiq.abc.serializer import TaskiqSerializer

    from stentor.client.async_client import AsyncClient
    from stentor.client.job import Job
    from stentor.client.queue import AsyncQueue
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
        """The tasks of the queue, each to be acknowledged."""
        queue = self._started()
        while True:
            try:
                job = await queue.get()
            except Closed:
                return
            yield AckableMessage(data=job.value or b"", ack=partial(self._ack, queue, job))

    @staticmethod
    async def _ack(queue: AsyncQueue, job: Job) -> None:
        try:
            await queue.ack(job, wait=False)
        except LeaseLost as error:
            logger.warning("%s", error)


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
