"""The async client: the whole API, awaited. The sync client drives one of these in a thread."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, overload

from stentor import limits
from stentor.client.admin import AsyncAdmin
from stentor.client.awaited import TaskWaiter
from stentor.client.convert import as_seconds, check_limit, check_topics
from stentor.client.core import ClientCore
from stentor.client.faces import async_producer, async_subscription, tracing_of
from stentor.client.help import explained, explained_function
from stentor.client.history import AsyncHistory
from stentor.client.inbox import AsyncInbox
from stentor.client.opening import Opening, OpeningRead
from stentor.client.producer_core import ProducerCore, parse_ack
from stentor.client.requesting import AsyncRequesting
from stentor.client.subscription_core import SubscriptionCore
from stentor.client.topic import AsyncPlainTopic, AsyncTopic
from stentor.client.typed import Codec
from stentor.client.url import checked_name, parse_url
from stentor.core import queue_limits
from stentor.core.names import check_topic_name
from stentor.errors import DeadlineExceeded, InvalidArgument, StentorError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from types import UnionType

    from stentor.client.deadline import Deadline
    from stentor.client.group import AsyncGroup
    from stentor.client.message import Receipt
    from stentor.client.names import AsyncNames
    from stentor.client.options import (
        AckLevel,
        Format,
        GroupOptions,
        HeadersLike,
        OnError,
        ProducerOptions,
        StreamOptions,
        SubscribeOptions,
        TimestampLike,
    )
    from stentor.client.positions import Place, Stale
    from stentor.client.producer import AsyncProducer, Producer
    from stentor.client.queue import AsyncQueue
    from stentor.client.selectors import Selector
    from stentor.client.starts import Start
    from stentor.client.subscription import AsyncSubscription
    from stentor.client.table import AsyncTable
    from stentor.client.tabular import AsyncTabularTopic
    from stentor.client.typed_table import AsyncTypedTable

T = TypeVar("T")
P = TypeVar("P", "AsyncProducer", "Producer")


@explained("Client", asynchronous=True)
class AsyncClient(AsyncAdmin, AsyncRequesting):
    """A connection to a Stentor system, for one event loop. Use as a context manager: leaving it flushes.

    `async with stentor.connect_async(url) as client` makes one. Every call that waits is awaited.
    """

    def __init__(self, core: ClientCore) -> None:
        self._core = core
        self._publishers: OrderedDict[tuple[str, str], AsyncProducer] = OrderedDict()
        self._making = asyncio.Lock()
        self._names: list[AsyncNames] = []
        core.client = self

    @classmethod
    async def _open(
        cls,
        url: str | None,
        *,
        name: str | None,
        timeout: float,
        read_from: Selector | None = None,
        tracing: Any = False,
    ) -> AsyncClient:
        """Connect; `connect_async` is for everyone else."""
        if as_seconds(timeout) <= 0:
            raise InvalidArgument(f"timeout={timeout} must be above zero.")
        named = checked_name(name)
        spans = tracing_of(tracing, named)
        core = ClientCore(parse_url(url), name=named, timeout=timeout, read_from=read_from, tracing=spans)
        try:
            await core.home.start()
        except BaseException:
            await core.links.close()
            raise
        return cls(core)

    # --- publishing -----------------------------------------------------------------------------

    async def publish(
        self,
        topic: str,
        value: bytes | str | None,
        *,
        key: bytes | str | None = None,
        headers: HeadersLike | None = None,
        timestamp: TimestampLike | None = None,
        partition: int | None = None,
        ack: AckLevel = "all",
        timeout: float | None = None,
    ) -> Receipt:
        """Publish one message and wait until it is acknowledged; by default, until it is committed."""
        self._core.check_loop()
        deadline = self._core.deadline(timeout)
        found = self._ready_publisher(topic, ack)
        publisher = found or await self._publisher(topic, ack, deadline)
        waiter = TaskWaiter(publisher._core, deadline)  # noqa: SLF001 - two halves of one thing
        publisher._offer(value, key, headers, timestamp, partition, waiter)  # noqa: SLF001
        return await waiter.acknowledged()

    def _ready_publisher(self, topic: str, ack: AckLevel) -> AsyncProducer | None:
        """The shared producer behind `publish`, if there is one that works."""
        found = known(self._publishers, topic, ack)
        return None if found is None or self._stale(found) else found

    async def _publisher(self, topic: str, ack: AckLevel, deadline: Deadline) -> AsyncProducer:
        """The same, made if there is none."""
        try:
            # Many publishes may start at once; one producer serves them all.
            async with deadline.bound(), self._making:
                found = self._publishers.get((topic, ack))
                if found is None or self._stale(found):
                    found = await self._replace(found, topic, ack, deadline)
                return found
        except TimeoutError as error:
            if isinstance(error, StentorError):
                raise
            raise self._core.late("publish", deadline.seconds) from error

    async def _replace(
        self, stale: AsyncProducer | None, topic: str, ack: AckLevel, deadline: Deadline
    ) -> AsyncProducer:
        """Make the shared producer of a topic; the oldest one goes if there are many."""
        if len(self._publishers) >= limits.PUBLISHERS_MAX:
            oldest = self._publishers.popitem(last=False)[1]
            await asyncio.shield(oldest.close())  # other publishes wait for it, this one's deadline is none of theirs
        if stale is not None:
            stale._core.discard()  # noqa: SLF001 - its topic is gone
        route = await self._core.topic(topic, deadline)
        made = async_producer(ProducerCore(self._core, route, ack=ack, awaited=True))
        self._publishers[topic, ack] = made
        return made

    def _stale(self, producer: AsyncProducer | Producer) -> bool:
        """The topic was deleted, or made anew under another id."""
        route = self._core.routes.get(producer.topic)
        core = producer._core  # noqa: SLF001 - two halves of one thing
        return core.closing or (self._core.link is not None and (route is None or route.id != core.topic_id))

    async def _producer_core(self, topic: str, **options: Unpack[ProducerOptions]) -> ProducerCore:
        return ProducerCore(self._core, await self._core.topic(topic, options.get("timeout")), **options)

    def producer(self, topic: str, **options: Unpack[ProducerOptions]) -> Opening[AsyncProducer]:
        """A self-batching sender to a topic: the fast path. Enter it with `async with`, or await it.

        A producer with an `identity` may be made again after a crash: the same batches, sent again in the same order
        under the same identity and generation, are recognised by the brokers and written once. What is new gets the
        next generation. Only who knows the identity and the `secret` ($STENTOR_PRODUCER_SECRET unless given) may send
        under it. It must be the same one whenever the producer is opened again.
        """
        return Opening(self._make_producer(topic, options))

    async def _make_producer(self, topic: str, options: ProducerOptions) -> AsyncProducer:
        return async_producer(await self._producer_core(topic, **options))

    # --- reading --------------------------------------------------------------------------------

    async def _subscription_core(
        self,
        topics: str | list[str],
        put: Callable[[Any], None],
        *,
        timeout: float | None = None,
        **options: Unpack[StreamOptions],
    ) -> SubscriptionCore:
        deadline = self._core.deadline(timeout)
        check_topics(topics)
        subscription = SubscriptionCore(self._core, topics, put=put, **options)
        try:
            await subscription.open(deadline)
        except DeadlineExceeded as error:
            refusals = (self._core.refusals.get(topic) for topic in subscription.patterns)
            raise self._core.late("subscribe", deadline.seconds, next(filter(None, refusals), None)) from error
        return subscription

    def subscribe(self, topics: str | list[str], **options: Unpack[SubscribeOptions]) -> Opening[AsyncSubscription]:
        """Messages of one or more topics or patterns, from a position on. Enter it with `async with`, or await it.

        Partitions that a `start` by partition does not name are read from their beginning.
        """
        return Opening(self._subscribe(topics, options))

    async def _subscribe(self, topics: str | list[str], options: SubscribeOptions) -> AsyncSubscription:
        inbox = AsyncInbox()
        return async_subscription(await self._subscription_core(topics, inbox.put, **options), inbox)

    def group(self, name: str, topics: str | list[str], **options: Unpack[GroupOptions]) -> Opening[AsyncGroup]:
        """Join a consumer group: its members share the partitions of the topics, and go on where the group stopped.
        Enter it with `async with`, or await it.

        Every message is handed out at least once. `start` counts for what is there when the group begins; topics and
        partitions that come later are read from their beginning.
        """
        from stentor.client.group import open_group

        return Opening(open_group(self._core, name, topics, options))

    def queue(
        self,
        name: str,
        *,
        prefetch: int = queue_limits.QUEUE_PREFETCH,
        limit: float | None = None,
        timeout: float | None = None,
    ) -> Opening[AsyncQueue]:
        """A work queue: put jobs into it, or take jobs from it; each is handed to one consumer, and acknowledged.
        Enter it with `async with`, or await it.

        It is made if there is none. `create_topic(name, kind="queue")` makes one with other settings.
        """
        from stentor.client.queue import open_queue

        return Opening(open_queue(self, name, prefetch, limit, timeout))

    def read(
        self,
        topics: str | list[str],
        *,
        start: Start = "earliest",
        end: Place = "now",
        partition: int | Iterable[int] | None = None,
        limit: int | None = None,
        stale: Stale = "refuse",
        timeout: float | None = None,
    ) -> OpeningRead:
        """What topics hold between two positions: iterate it, or take it as a table. A read makes no topic.
        Iterate it at once, enter it with `async with`, or await it.

        A read knows its end. While no broker is certain where the committed messages end, it waits, and raises
        EndUnknown at its deadline. With `stale="allow"` it takes what is known to be committed; `sure` and `ends` of
        what it returns say whether that was all, and up to where it goes.
        """
        options: SubscribeOptions = {
            "start": start,
            "end": end,
            "partition": partition,
            "stale": stale,
            "timeout": timeout,
        }
        return OpeningRead(self._read(topics, limit, options))

    async def _read(self, topics: str | list[str], limit: int | None, options: SubscribeOptions) -> AsyncHistory:
        check_limit(limit)
        return AsyncHistory(await self._subscribe(topics, options), limit)

    @overload
    def topic(self, name: str) -> AsyncPlainTopic: ...

    @overload
    def topic(
        self, name: str, type: type[T], *, format: Format = "json", on_error: Literal["raise", "skip"] = "raise"
    ) -> AsyncTopic[T]: ...

    @overload
    def topic(
        self, name: str, type: type[T], *, format: Format = "json", on_error: Literal["raw"]
    ) -> AsyncTopic[T | bytes | None]: ...

    @overload
    def topic(
        self, name: str, type: UnionType, *, format: Format = "json", on_error: OnError = "raise"
    ) -> AsyncTopic[Any]: ...

    def topic(
        self,
        name: str,
        type: Any = None,  # noqa: A002 - the word of the API
        *,
        format: Format = "json",  # noqa: A002 - the same
        on_error: OnError = "raise",
    ) -> AsyncPlainTopic | AsyncTopic[Any]:
        """A topic by itself. With a type its values are of that type, checked when they are published and read.

        A type is a msgspec Struct, a dataclass or a pydantic model. `Order | None` also admits messages without value.
        """
        return AsyncPlainTopic(self, name) if type is None else AsyncTopic(self, name, Codec(type, format, on_error))

    async def tabular(self, name: str, schema: Any = None, *, timeout: float | None = None) -> AsyncTabularTopic:
        """A tabular topic: tables go in, tables come out, each row is a message.

        The schema, a pyarrow.Schema, is registered as the topic's own. It may add nullable columns to the version
        before; any other change is refused. Without a schema it is the newest that the topic has.
        """
        from stentor.client.tabular import AsyncTabularTopic, find_schema

        return AsyncTabularTopic(self, await find_schema(self._core, name, schema, timeout))

    @overload
    def table(self, name: str, *, subtree: str = "", timeout: float | None = None) -> Opening[AsyncTable]: ...

    @overload
    def table(
        self,
        name: str,
        *,
        type: type[T],
        format: Format = "json",
        subtree: str = "",
        timeout: float | None = None,
    ) -> Opening[AsyncTypedTable[T]]: ...

    @overload
    def table(
        self,
        name: str,
        *,
        type: UnionType,
        format: Format = "json",
        subtree: str = "",
        timeout: float | None = None,
    ) -> Opening[AsyncTypedTable[Any]]: ...

    def table(
        self,
        name: str,
        *,
        type: Any = None,  # noqa: A002 - the word of the API
        format: Format = "json",  # noqa: A002 - the same
        subtree: str = "",
        timeout: float | None = None,
    ) -> Opening[Any]:
        """A copy of a table, kept up to date, and the way to change it. Enter it with `async with`, or await it.

        Make tables with `create_topic(name, kind="table")`. With a type the values of the table are of that type:
        checked when they are put, and decoded when they are read. With a subtree it is a copy of those keys alone.
        """
        return Opening(_open_table(self, name, type, format, subtree, timeout))

    @property
    def names(self) -> AsyncNames:
        """Where services are: register and resolve names."""
        from stentor.client.names import AsyncNames, NamesCore

        if not self._names:
            self._names.append(AsyncNames(self, NamesCore(self)))
        return self._names[0]  # the same for all threads of a sync client

    # --- life -----------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """What operators see."""
        return self._core.name

    async def close(self, timeout: float | None = None) -> None:
        """Flush what is under way and disconnect, within the time if one is given. Safe to call twice.

        PublishError if messages of a producer were not acknowledged; DeadlineExceeded if something else took longer.
        """
        await self._core.close(timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        if kind is None:
            await self.close()
            return
        # The error that ended the block is the one to see.
        with suppress(StentorError):
            await self.close()

    def __repr__(self) -> str:
        state = "closed" if self._core.closed else ",".join(self._core.addresses)
        return f"<stentor.AsyncClient {self.name!r} {state}>"


async def _open_table(
    client: AsyncClient, name: str, kind: Any, encoding: Format, subtree: str, timeout: float | None
) -> Any:
    """A copy of a table, for async code."""
    from stentor.client.table import AsyncTable
    from stentor.client.table_copy import TableCopy
    from stentor.client.typed_table import AsyncTypedTable, ValueCodec

    core = client._core  # noqa: SLF001 - a part of the client
    codec: ValueCodec[Any] | None = None if kind is None else ValueCodec(name, kind, encoding)
    copy = TableCopy(core, name, subtree)
    await copy.open(core.deadline(timeout))
    table = AsyncTable(client, copy)
    return table if codec is None else AsyncTypedTable(table, codec)


class Connecting:
    """What connect_async returns: await it, or use it with `async with`."""

    def __init__(self, url: str | None, **options: Any) -> None:
        self._url = url
        self._options = options
        self._client: AsyncClient | None = None

    async def _open(self) -> AsyncClient:
        return await AsyncClient._open(self._url, **self._options)  # noqa: SLF001

    def __await__(self) -> Generator[Any, None, AsyncClient]:
        return self._open().__await__()

    async def __aenter__(self) -> AsyncClient:
        self._client = await self._open()
        return self._client

    async def __aexit__(self, *error: object) -> None:
        if self._client is not None:
            await self._client.__aexit__(*error)


@explained_function("connect", asynchronous=True)
def connect_async(
    url: str | None = None,
    *,
    name: str | None = None,
    timeout: float = limits.DEFAULT_TIMEOUT_S,
    read_from: Selector | None = None,
    tracing: Any = False,
) -> Connecting:
    """Connect to a Stentor system. Use as a context manager: leaving it flushes and disconnects.

    This is for `async` code. Enter it with `async with`, or await it.
    """
    return Connecting(url, name=name, timeout=timeout, read_from=read_from, tracing=tracing)


def known(publishers: dict[tuple[str, str], P], topic: str, ack: AckLevel) -> P | None:
    """The shared producer of a topic and an ack level, if there is one."""
    try:
        found = publishers.get((topic, ack))
    except TypeError:  # what cannot be looked up is neither a name nor a level
        found = None
    if found is None:
        check_topic_name(topic)
        parse_ack(ack)
    return found
