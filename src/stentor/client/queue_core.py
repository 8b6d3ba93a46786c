"""What the sync and the async queue share, in the client's loop: putting jobs, and the consumer behind it."""

from __future__ import annotations

import asyncio
import secrets
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import msgspec

from stentor import limits
from stentor.client.awaited import TaskWaiter
from stentor.client.convert import as_bytes, as_headers, as_timestamp_us, check_limit
from stentor.client.dead_letters import dead_topic
from stentor.client.job import as_delay_ms
from stentor.client.queue_consumer import QueueConsumer
from stentor.client.redrive import redrive
from stentor.core import queue_limits
from stentor.core.names import check_topic_name
from stentor.core.queue_records import PRIORITY_MAX
from stentor.errors import ConditionFailed, InvalidArgument, TopicNotFound
from stentor.wire import batch, messages, queue_rows
from stentor.wire.batch import check_message

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Sequence

    from stentor.client.async_client import AsyncClient
    from stentor.client.core import ClientCore
    from stentor.client.deadline import Deadline
    from stentor.client.lane import Lane
    from stentor.client.queue_run import PlainRun
    from stentor.client.queue_work import QueueRun
    from stentor.wire.batch import Encoded
    from stentor.wire.rows import Headers

_CHUNK: Final = 1_000  # jobs that go into one batch,
_CHUNK_BYTES: Final = 4 * limits.MIB  # unless these are more; terms and keys come on top


class JobReceipt(msgspec.Struct, frozen=True, gc=False):
    """Where a job is."""

    queue: str
    partition: int
    offset: int
    timestamp_us: int
    duplicate: bool = False  # another job had the unique name; this one was not put


class JobOptions(msgspec.Struct, frozen=True):
    """What may be said of a job, checked."""

    delay_us: int = 0
    at_us: int = 0
    priority: int = 0
    ttl_us: int = 0
    unique: bytes = b""
    unique_us: int = 0

    @property
    def headers(self) -> Headers:
        """The headers that say it."""
        return queue_rows.headers_of(
            delay_us=self.delay_us,
            at_us=self.at_us,
            priority=self.priority,
            ttl_us=self.ttl_us,
            unique=self.unique,
            unique_us=self.unique_us,
        )


def job_options(
    delay: float | None, at: datetime | int | None, priority: Any, ttl: float | None, unique: Any, unique_for: float
) -> JobOptions:
    """Judge what is said of a job."""
    if delay is not None and at is not None:
        raise InvalidArgument("A job is due after a delay, or at a time; both were given.", hint="Give one of them.")
    if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority <= PRIORITY_MAX:
        raise InvalidArgument(
            f"priority={priority!r} is not a priority.", hint=f"Use 0, the usual one, to {PRIORITY_MAX}."
        )
    name = as_bytes(unique, "unique name") or b""
    if unique is not None and not 0 < len(name) <= queue_rows.UNIQUE_BYTES_MAX:
        raise InvalidArgument(
            f"A unique name has {len(name)} bytes.", hint=f"Use 1 to {queue_rows.UNIQUE_BYTES_MAX} bytes."
        )
    delay_ms, ttl_ms = as_delay_ms(delay), as_delay_ms(ttl, "ttl")
    if ttl_ms == 0:
        raise InvalidArgument("A job with ttl=0 is dead at once.", hint="Use a number of seconds above zero.")
    return JobOptions(
        delay_us=(delay_ms or 0) * 1_000,
        at_us=as_timestamp_us(at) or 0,
        priority=priority,
        ttl_us=(ttl_ms or 0) * 1_000,
        unique=name,
        unique_us=(as_delay_ms(unique_for, "unique_for") or 0) * 1_000 if name else 0,
    )


async def queue_route(core: ClientCore, name: str, deadline: Deadline) -> messages.TopicRoute:
    """Of a queue, which is made if there is none and the broker makes topics by itself."""
    check_topic_name(name)
    while True:
        try:
            topic = (await core.call(messages.DescribeTopic(name=name), deadline)).topic
        except TopicNotFound:
            settings = messages.TopicChanges(kind="queue")
            made = messages.CreateTopic(name=name, automatic=True, settings=settings)
            topic = (await core.call(made, deadline)).topic
        if topic.settings.kind != "queue":
            raise InvalidArgument(
                f"Topic {name} is no queue.",
                hint=f"Make queues with client.create_topic({name!r}, kind='queue').",
                object=name,
            )
        for _ in range(2):
            route = core.routes.get(name)
            if route is not None and route.id == topic.id:
                return route
            await core.refresh_routes(deadline)
        await asyncio.sleep(limits.PRODUCER_RESEND_S)


def _chunks(indexes: list[int], data: list[bytes | None]) -> Iterator[list[int]]:
    """What goes into one batch each."""
    part: list[int] = []
    size = 0
    for index in indexes:
        value_bytes = len(data[index] or b"")
        if part and (len(part) == _CHUNK or size + value_bytes > _CHUNK_BYTES):
            yield part
            part, size = [], 0
        part.append(index)
        size += value_bytes
    yield part


class QueueCore:
    """One queue, as one object of an application uses it."""

    def __init__(self, client: AsyncClient, route: messages.TopicRoute, prefetch: int, limit_s: float | None) -> None:
        self.client = client
        self.core = client._core  # noqa: SLF001 - a part of the client
        self.route = route
        self.name = route.name
        self.prefetch = prefetch
        self.limit_s = limit_s
        self.consumer: QueueConsumer | None = None
        self.runs: set[QueueRun | PlainRun] = set()  # under way
        self.rests = False  # the last run was stopped, and its consumer holds nothing until somebody asks for jobs
        self._turn = secrets.randbelow(len(route.partitions))  # which partition the next job without a key goes to
        self.closed = False

    async def consume(self) -> QueueConsumer:
        """The consumer, which begins when somebody asks for jobs."""
        self.core.check_open()
        if self.consumer is None:
            made = QueueConsumer(self.client, self.route, prefetch=self.prefetch, limit_s=self.limit_s)
            made.start()
            self.consumer = made
        if self.rests:
            self.rests = False
            self.consumer.hold_at_most(self.prefetch)
        return self.consumer

    def rest(self) -> None:
        """A run was stopped. If nobody else wants jobs, what was not begun goes back at once: others may have it."""
        consumer = self.consumer
        if consumer is None or consumer.closed or not all(run.stopping for run in self.runs):
            return
        self.rests = not consumer.is_waited_for
        consumer.hold_at_most(0 if self.rests else self.prefetch)

    @property
    def dead_letters(self) -> str:
        """The topic that dead jobs go to."""
        return dead_topic(self.name, self.route.settings.dead_letter_topic)

    async def close(self) -> None:
        """Settle what is finished, give back the rest, and leave."""
        self.closed = True
        if self.consumer is not None:
            await self.consumer.close()

    # --- putting --------------------------------------------------------------------------------

    def put(
        self, value: Any, key: Any, headers: Any, options: JobOptions, timeout: float | None
    ) -> Coroutine[Any, Any, JobReceipt]:
        """Put one job, until it is committed. Any thread may call it; what it returns is for the client's loop."""
        tracing = self.core.tracing
        if tracing is None or not options.headers:  # what has no terms is published, with a span of its own
            return self._put(value, key, headers, options, timeout)
        return tracing.sent(self.name, headers, lambda named: self._put(value, key, named, options, timeout))

    async def _put(self, value: Any, key: Any, headers: Any, options: JobOptions, timeout: float | None) -> JobReceipt:
        terms = options.headers
        if not terms:
            receipt = await self.client.publish(self.name, value, key=key, headers=headers, timeout=timeout)
            return JobReceipt(self.name, receipt.partition, receipt.offset, receipt.timestamp_us)
        deadline = self.core.deadline(timeout)
        data, name = as_bytes(value, "value"), as_bytes(key, "key")
        check_message(name, data)
        named = [*(as_headers(headers) or ()), *terms]
        now_us = time.time_ns() // 1000
        encoded = queue_rows.with_terms(batch.encode([now_us], [name], [data], [named]), unique=bool(options.unique))
        lane = await self._lane(options.unique or name, deadline)
        try:
            offset = await self._send(lane, encoded, deadline)
        except ConditionFailed:
            return JobReceipt(self.name, lane.partition, -1, now_us, duplicate=True)
        return JobReceipt(self.name, lane.partition, offset, now_us)

    async def _lane(self, by: bytes | None, deadline: Deadline) -> Lane:
        publisher = await self.client._publisher(self.name, "all", deadline)  # noqa: SLF001 - as `publish` does
        lanes = publisher._core.lanes  # noqa: SLF001 - the same
        if by is not None:
            return lanes[crc32(by) % len(lanes)]
        self._turn += 1
        return lanes[self._turn % len(lanes)]

    async def _send(self, lane: Lane, encoded: Encoded, deadline: Deadline) -> int:
        waiter = TaskWaiter(lane.producer, deadline)
        lane.add_encoded(encoded, [(0, waiter, encoded.first_timestamp_us)])
        lane.awake = True
        lane.pump()
        return (await waiter.acknowledged()).offset

    def put_many(
        self, values: Sequence[Any], keys: Sequence[Any] | None, options: JobOptions, timeout: float | None
    ) -> Coroutine[Any, Any, int]:
        """Put many jobs, until all of them are committed; how many. As with `put`, any thread may call it."""
        tracing = self.core.tracing
        if tracing is None:
            return self._put_many(values, keys, options, timeout, None)

        def put(headers: Any) -> Coroutine[Any, Any, int]:
            return self._put_many(values, keys, options, timeout, headers)

        return tracing.sent(self.name, None, put, len(values))

    async def _put_many(
        self,
        values: Sequence[Any],
        keys: Sequence[Any] | None,
        options: JobOptions,
        timeout: float | None,
        headers: Headers | None,
    ) -> int:
        if keys is not None and len(keys) != len(values):
            raise InvalidArgument(f"{len(values)} values came with {len(keys)} keys.")
        deadline = self.core.deadline(timeout)
        data = [as_bytes(value, "value") for value in values]
        names = [as_bytes(key, "key") for key in keys or [None] * len(data)]
        for name, value in zip(names, data, strict=True):
            check_message(name, value)
        by_lane: dict[Lane, list[int]] = {}
        turn = await self._lane(None, deadline)
        for index, name in enumerate(names):
            if index % _CHUNK == _CHUNK - 1:
                turn = await self._lane(None, deadline)
            by_lane.setdefault(turn if name is None else await self._lane(name, deadline), []).append(index)
        sending = []
        for lane, indexes in by_lane.items():
            for part in _chunks(indexes, data):
                sending.append(self._send(lane, self._batch(data, names, part, options, headers), deadline))  # noqa: PERF401
        await asyncio.gather(*sending)
        return len(data)

    @staticmethod
    def _batch(
        data: list[bytes | None],
        names: list[bytes | None],
        part: list[int],
        options: JobOptions,
        headers: Headers | None,
    ) -> Encoded:
        now_us = time.time_ns() // 1000
        terms = options.headers
        named = [*(headers or ()), *terms]
        encoded = batch.encode(
            [now_us] * len(part),
            [names[index] for index in part],
            [data[index] for index in part],
            [named] * len(part) if named else None,
        )
        return queue_rows.with_terms(encoded, unique=False) if terms else encoded

    async def redrive(self, limit: int | None, timeout: float | None) -> int:
        """Put dead letters back, and before that aside what waits for it."""
        check_limit(limit)
        undertaker = QueueConsumer(self.client, self.route, prefetch=1, limit_s=None)
        undertaker.hold_at_most(0)
        undertaker.start()
        try:
            await undertaker.bury_all()
        finally:
            await undertaker.close()
        return await redrive(self.client, self.name, self.dead_letters, limit, timeout)


def check_prefetch(prefetch: object) -> int:
    """How many jobs a consumer may hold."""
    if (
        isinstance(prefetch, bool)
        or not isinstance(prefetch, int)
        or not 1 <= prefetch <= queue_limits.QUEUE_PREFETCH_MAX
    ):
        raise InvalidArgument(
            f"prefetch={prefetch!r} is not possible.", hint=f"Use 1 to {queue_limits.QUEUE_PREFETCH_MAX} jobs."
        )
    return prefetch


def check_work_limit(limit: object) -> float | None:
    """How long the work on a job may take."""
    if limit is None:
        return None
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not limit > 0:
        raise InvalidArgument(f"limit={limit!r} is not a time.", hint="Use a number of seconds above zero, or None.")
    return float(limit)


async def open_queue_core(
    client: AsyncClient, name: str, prefetch: int, limit: float | None, timeout: float | None
) -> QueueCore:
    """A queue, by its name."""
    checked, limit_s = check_prefetch(prefetch), check_work_limit(limit)
    core = client._core  # noqa: SLF001 - a part of the client
    return QueueCore(client, await queue_route(core, name, core.deadline(timeout)), checked, limit_s)
