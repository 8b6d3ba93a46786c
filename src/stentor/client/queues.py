"""Queues as operators see them: listed, described, looked into, purged. The heads of their partitions are asked."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec

from stentor.errors import InvalidArgument, TopicNotFound
from stentor.wire import messages
from stentor.wire import queue_messages as m

if TYPE_CHECKING:
    from stentor.client.async_client import AsyncClient
    from stentor.client.core import ClientCore
    from stentor.client.deadline import Deadline
    from stentor.client.message import Message

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PEEKED_MAX = 1_000
"""Jobs that are shown at once: an answer must fit a frame."""


class QueuePartitionInfo(msgspec.Struct, frozen=True):
    """A partition of a queue."""

    partition: int
    head: str  # the broker that hands out its jobs
    waiting: int  # jobs that nobody works on, the late ones among them
    held: int  # jobs that consumers have
    tried: int  # of those that wait: which have failed before
    dead: int  # jobs on their way to the dead-letter topic
    consumers: int
    finished: int  # since the queue was made
    died: int  # the same, of dead ones
    dying: int  # of those that wait or are held: dead if the next attempt, or the one under way, fails


class QueueInfo(msgspec.Struct, frozen=True):
    """A queue."""

    name: str
    partitions: list[QueuePartitionInfo]
    settings: messages.TopicSettings

    @property
    def waiting(self) -> int:
        """Jobs that nobody works on."""
        return sum(each.waiting for each in self.partitions)

    @property
    def held(self) -> int:
        """Jobs that consumers have."""
        return sum(each.held for each in self.partitions)

    @property
    def finished(self) -> int:
        """Jobs that were done, since the queue was made."""
        return sum(each.finished for each in self.partitions)

    @property
    def dying(self) -> int:
        """Jobs that are dead if their next attempt, or the one under way, fails."""
        return sum(each.dying for each in self.partitions)

    @property
    def died(self) -> int:
        """Jobs that went to the dead-letter topic, since the queue was made."""
        return sum(each.died for each in self.partitions)


class QueuePeek(msgspec.Struct, frozen=True):
    """A job that is not finished."""

    message: Message
    state: str  # waiting, delayed, held or dead
    attempts: int  # that count: their handlers began
    priority: int
    due: datetime | None  # of one that is delayed
    why: str  # its last failure
    unbegun: int = 0  # consumers that were lost with it before they had begun it


async def _route(core: ClientCore, name: str, deadline: Deadline) -> messages.TopicRoute:
    await core.refresh_routes(deadline)
    route = core.routes.get(name)
    if route is None:
        raise TopicNotFound(
            f"There is no queue {name}.", hint="`stentor queue list` shows the queues there are.", object=name
        )
    if route.settings.kind != "queue":
        raise InvalidArgument(f"Topic {name} is no queue.", hint="`stentor topic list` shows the kinds.", object=name)
    return route


async def _described(
    core: ClientCore, route: messages.TopicRoute, deadline: Deadline, jobs_max: int = 0
) -> list[m.QueueDescribed]:
    asked = (
        core.call_partition(
            m.DescribeQueue(topic_id=route.id, partition=index, jobs_max=jobs_max),
            route.name,
            deadline,
            head_first=True,
        )
        for index in range(len(route.partitions))
    )
    return list(await asyncio.gather(*asked))


def _info(route: messages.TopicRoute, described: list[m.QueueDescribed]) -> QueueInfo:
    partitions = [
        QueuePartitionInfo(
            index,
            each.head,
            each.waiting,
            each.held,
            each.tried,
            each.dead,
            each.consumers,
            each.finished,
            each.died,
            each.dying,
        )
        for index, each in enumerate(described)
    ]
    return QueueInfo(route.name, partitions, route.settings)


async def describe_queue(core: ClientCore, name: str, timeout: float | None) -> QueueInfo:
    """One queue."""
    deadline = core.deadline(timeout)
    route = await _route(core, name, deadline)
    return _info(route, await _described(core, route, deadline))


async def list_queues(core: ClientCore, timeout: float | None) -> list[QueueInfo]:
    """All queues."""
    deadline = core.deadline(timeout)
    await core.refresh_routes(deadline)
    routes = [route for _, route in sorted(core.routes.items()) if route.settings.kind == "queue"]
    return [_info(route, await _described(core, route, deadline)) for route in routes]


async def peek_queue(client: AsyncClient, name: str, limit: Any, timeout: float | None) -> list[QueuePeek]:
    """The first jobs of a queue that are not finished."""
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= PEEKED_MAX:
        raise InvalidArgument(f"limit={limit!r} is not possible.", hint=f"Use 1 to {PEEKED_MAX} jobs.")
    core = client._core  # noqa: SLF001 - a part of the client
    deadline = core.deadline(timeout)
    route = await _route(core, name, deadline)
    found: list[QueuePeek] = []
    for index, described in enumerate(await _described(core, route, deadline, limit)):
        states = {job.offset: job for job in described.jobs[: limit - len(found)]}
        if not states:
            continue
        reading = client.read(name, start=min(states), end=max(states) + 1, partition=index, timeout=deadline.left())
        async for message in reading:
            job = states.get(message.offset)
            if job is not None:
                due = _EPOCH + timedelta(microseconds=job.due_us) if job.due_us else None
                found.append(QueuePeek(message, job.state, job.attempts, job.priority, due, job.why, job.unbegun))
    return found


async def purge_queue(core: ClientCore, name: str, timeout: float | None) -> int:
    """End all jobs that nobody works on; how many there were."""
    deadline = core.deadline(timeout)
    route = await _route(core, name, deadline)
    before = await _described(core, route, deadline)
    await asyncio.gather(
        *(
            core.call_partition(m.PurgeQueue(topic_id=route.id, partition=index), name, deadline, head_first=True)
            for index in range(len(route.partitions))
        )
    )
    return sum(each.waiting for each in before)
