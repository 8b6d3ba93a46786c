"""The async client: the whole API, awaited. The sync client drives one of these in a thread."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, overload

import msgspec

from stentor import limits
from stentor.client import routes
from stentor.client.convert import allows_stale, as_seconds, check_limit, check_topics
from stentor.client.core import ClientCore, default_name, parse_url
from stentor.client.help import explained, explained_function
from stentor.client.history import AsyncHistory
from stentor.client.opening import Opening, OpeningRead
from stentor.client.positions import check_position, find_request
from stentor.client.producer import AsyncProducer, Producer
from stentor.client.producer_core import ProducerCore, parse_ack
from stentor.client.recorded import mark_recorded
from stentor.client.recovery import best_copy
from stentor.client.subscription import AsyncInbox, AsyncSubscription
from stentor.client.subscription_core import SubscriptionCore
from stentor.client.topic import AsyncPlainTopic, AsyncTopic
from stentor.client.typed import Codec
from stentor.core.names import check_topic_name
from stentor.errors import DeadlineExceeded, InvalidArgument, StentorError
from stentor.wire import messages

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping
    from types import UnionType

    from stentor.client.deadline import Deadline
    from stentor.client.message import Receipt
    from stentor.client.options import (
        AckLevel,
        Format,
        HeadersLike,
        OnError,
        ProducerOptions,
        StreamOptions,
        SubscribeOptions,
        TimestampLike,
        TopicOptions,
    )
    from stentor.client.positions import Place, Stale
    from stentor.client.selectors import Selector
    from stentor.client.starts import Start
    from stentor.client.table import AsyncTableTopic
    from stentor.wire.messages import BrokerInfo, BrokerState, ClientInfo, PartitionRecovered, TopicInfo, TopicRoute

_PUBLISHERS_MAX = 1_000
REASON_S = 1.0  # on top of the deadline of a publish whose producer was just made, for that to say what is wrong

T = TypeVar("T")
P = TypeVar("P", "AsyncProducer", "Producer")


class TopicOffsets(msgspec.Struct, frozen=True):
    """An offset in each partition of a topic; the id tells a topic from a later one of the same name."""

    id: int
    offsets: dict[int, int]
    sure: bool = True  # False only with stale="allow": more may be committed


class Offsets(dict[int, int]):
    """The offset of a position in each partition. `sure` is False only with `stale="allow"`, if some broker was not
    certain where its messages end: then everything before these offsets is committed, and more may be.
    """

    def __init__(self, offsets: dict[int, int], *, sure: bool = True) -> None:
        super().__init__(offsets)
        self.sure = sure


@explained("Client", asynchronous=True)
class AsyncClient:
    """A connection to a Stentor system, for one event loop. Use as a context manager: leaving it flushes.

    `async with stentor.connect_async(url) as client` makes one. Every call that waits is awaited.
    """

    def __init__(self, core: ClientCore) -> None:
        self._core = core
        self._publishers: dict[tuple[str, str], AsyncProducer] = {}
        self._making = asyncio.Lock()
        core.alert = self._alert

    @classmethod
    async def _open(
        cls, url: str | None, *, name: str | None, timeout: float, read_from: Selector | None = None
    ) -> AsyncClient:
        """Connect; `connect_async` is for everyone else."""
        if as_seconds(timeout) <= 0:
            raise InvalidArgument(f"timeout={timeout} must be above zero.")
        label = default_name() if name is None else name
        if not isinstance(label, str):
            raise InvalidArgument(f"A client's name is text, not {type(label).__name__}.")
        if len(label) > limits.CLIENT_NAME_CHARACTERS_MAX:
            raise InvalidArgument(
                f"The client's name has {len(label)} characters; the limit is {limits.CLIENT_NAME_CHARACTERS_MAX}."
            )
        core = ClientCore(parse_url(url), name=label, timeout=timeout, read_from=read_from)
        try:
            await core.start()
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
        """Publish one message and wait until it is acknowledged at the level `ack`."""
        self._core.check_loop()
        deadline = self._core.deadline(timeout)
        found = self._ready_publisher(topic, ack)
        publisher = found or await self._publisher(topic, ack, deadline)
        done: asyncio.Future[Receipt] = self._core.loop.create_future()
        publisher._offer(value, key, headers, timestamp, partition, _resolve(done))  # noqa: SLF001
        if timeout is None and found is not None:
            return await done  # the producer gives up by itself at the client's own deadline, and knows the reason
        grace_s = REASON_S if timeout is None else 0.0
        try:
            async with asyncio.timeout(grace_s + (deadline.left() or 0.0)):
                return await done
        except TimeoutError as error:
            if isinstance(error, StentorError):
                raise
            refusal = publisher._refusal()  # noqa: SLF001
            raise self._core.late_publish(deadline.seconds, refusal) from error

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
        if len(self._publishers) >= _PUBLISHERS_MAX:
            oldest = self._publishers.pop(next(iter(self._publishers)))
            await asyncio.shield(oldest.close())  # other publishes wait for it, this one's deadline is none of theirs
        if stale is not None:
            stale._core.discard()  # noqa: SLF001 - its topic is gone
        route = await self._core.topic(topic, deadline)
        made = AsyncProducer(ProducerCore(self._core, route, ack=ack, keep_failures=False))
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
        under the same identity and generation, are recognised by the brokers and written once.
        """
        return Opening(self._make_producer(topic, options))

    async def _make_producer(self, topic: str, options: ProducerOptions) -> AsyncProducer:
        return AsyncProducer(await self._producer_core(topic, **options))

    async def _alert(self, topic: str, text: str) -> None:
        # An alert that cannot be sent must not hide what it was about.
        with suppress(StentorError):
            await self.publish(topic, text, timeout=5.0)

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
        return AsyncSubscription(await self._subscription_core(topics, inbox.put, **options), inbox)

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
        """What topics hold between two positions: iterate it, enter it, or await it. A read makes no topic.

        While no broker is certain where the committed messages end, it waits, and raises EndUnknown at its deadline.
        With `stale="allow"`, `sure` and `ends` of what it returns say whether it was all, and up to where it goes.
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

    async def table(self, name: str, schema: Any = None, *, timeout: float | None = None) -> AsyncTableTopic:
        """A tabular topic: tables go in, tables come out, each row is a message.

        The schema, a pyarrow.Schema, is registered as the topic's own. It may add nullable columns to the version
        before; any other change is refused. Without a schema it is the newest that the topic has.
        """
        from stentor.client.table import AsyncTableTopic, find_schema

        return AsyncTableTopic(self, await find_schema(self._core, name, schema, timeout))

    # --- administration -------------------------------------------------------------------------

    async def create_topic(
        self, name: str, *, exist_ok: bool = False, timeout: float | None = None, **settings: Unpack[TopicOptions]
    ) -> TopicInfo:
        """Make a topic. Settings that are not named are the broker's defaults."""
        request = messages.CreateTopic(name=name, settings=messages.topic_changes(dict(settings)), exist_ok=exist_ok)
        described = await self._core.call(request, timeout)
        return described.topic  # type: ignore[no-any-return]

    async def alter_topic(
        self, name: str, *, timeout: float | None = None, **changes: Unpack[TopicOptions]
    ) -> TopicInfo:
        """Change settings of a topic."""
        request = messages.AlterTopic(name=name, changes=messages.topic_changes(dict(changes)))
        described = await self._core.call(request, timeout)
        return described.topic  # type: ignore[no-any-return]

    async def describe_topic(self, name: str, *, timeout: float | None = None) -> TopicInfo:
        """A topic's settings and partitions."""
        request, deadline = messages.DescribeTopic(name=name), self._core.deadline(timeout)
        described = await self._core.call(request, deadline)
        return (await self._completed([described.topic], request, deadline))[0]

    async def _completed(self, topics: list[TopicInfo], request: Any, deadline: Deadline) -> list[TopicInfo]:
        """What each partition's own head says of it; one broker knows only where the others' are."""
        heads = {partition.chain[0] for topic in topics for partition in topic.partitions if partition.chain}
        answers = await self._core.ask_others(request, heads, deadline.left_of(limits.LINK_OPEN_S))
        if not answers:
            return topics
        known = {
            (topic.id, partition.partition): partition
            for broker, answer in answers.items()
            for topic in (answer.topics if isinstance(answer, messages.TopicList) else [answer.topic])
            for partition in topic.partitions
            if partition.chain and partition.chain[0] == broker
        }
        return [
            msgspec.structs.replace(topic, partitions=[known.get((topic.id, p.partition), p) for p in topic.partitions])
            for topic in topics
        ]

    async def brokers(self, *, timeout: float | None = None) -> list[BrokerState]:
        """All brokers of the cluster, as the one that is asked sees them."""
        found = await self._core.call(messages.ListBrokers(), timeout)
        return found.brokers  # type: ignore[no-any-return]

    async def drain_broker(self, broker: str, *, draining: bool = True, timeout: float | None = None) -> None:
        """Move all replicas away from a broker, without stopping writes; or let it take some again."""
        await self._core.call(messages.DrainBroker(broker=broker, draining=draining), timeout)

    async def forget_broker(self, broker: str, *, timeout: float | None = None) -> None:
        """Take a broker that is gone for good off the list."""
        await self._core.call(messages.ForgetBroker(broker=broker), timeout)

    async def recover_partition(
        self, topic: str, partition: int, broker: str | None = None, *, timeout: float | None = None
    ) -> PartitionRecovered:
        """Let a broker's copy lead although it may lack committed messages; says what was lost.

        Without a broker: the one whose copy is furthest; all brokers must be there to find out.
        """
        deadline = self._core.deadline(timeout)
        if broker is None:
            broker = await best_copy(self._core, topic, partition, deadline)
        request = messages.RecoverPartition(topic=topic, partition=partition)
        return await self._core.ask_one(request, broker, deadline)  # type: ignore[no-any-return]

    async def find_topic(self, name: str, *, timeout: float | None = None) -> TopicRoute:
        """A topic's id, settings and chains; it is made on the way if the broker makes topics by itself."""
        return await self._core.topic(name, timeout)

    async def topics(self, pattern: str | None = None, *, timeout: float | None = None) -> list[TopicInfo]:
        """All topics, or those that match a pattern."""
        request, deadline = messages.ListTopics(pattern=pattern or ">"), self._core.deadline(timeout)
        found = await self._core.call(request, deadline)
        return await self._completed(found.topics, request, deadline)

    async def mark_recorded(self, topic: str, ends: Mapping[int, int], *, timeout: float | None = None) -> None:
        """A recorder has put away all messages below these offsets, by partition; it never moves back.

        Topics with `keep_unrecorded` delete nothing that is not marked, whatever their retention says.
        """
        await mark_recorded(self._core, topic, ends, timeout)

    async def delete_topic(self, name: str, *, timeout: float | None = None) -> None:
        """Delete a topic and all its messages."""
        await self._core.call(messages.DeleteTopic(name=name), timeout)

    async def offsets(
        self, topic: str, at: Place = "latest", *, stale: Stale = "refuse", timeout: float | None = None
    ) -> Offsets:
        """The offset of a position in each partition.

        EndUnknown at the deadline, if no broker is certain where the committed messages end. With `stale="allow"`
        it is what is known to be committed, and `sure` of the answer says whether that was all.
        """
        found = (await self.find_offsets([topic], at, stale=stale, timeout=timeout))[topic]
        return Offsets(found.offsets, sure=found.sure)

    async def find_offsets(
        self, topics: list[str], at: Place = "latest", *, stale: Stale = "refuse", timeout: float | None = None
    ) -> dict[str, TopicOffsets]:
        """The offset of a position in each partition of topics or patterns, all asked at once.

        A topic that is named and does not exist is an error; a pattern that matches none is not.
        """
        check_position(at, "at")
        may_be_stale = allows_stale(stale)
        deadline = self._core.deadline(timeout)
        found_routes, now_us = await routes.existing(self._core, topics, deadline), _now_us()

        async def find(route: messages.TopicRoute, partition: int) -> tuple[int, bool]:
            wish = find_request(at, route.id, partition, now_us, stale=may_be_stale)
            if isinstance(wish, int):
                return wish, True
            found = await self._core.find_offset(wish, route.name, deadline)
            return found.offset, found.sure

        found = {}
        for route in found_routes:
            answers = await asyncio.gather(*(find(route, index) for index in range(len(route.partitions))))
            offsets = {index: offset for index, (offset, _) in enumerate(answers)}
            found[route.name] = TopicOffsets(route.id, offsets, all(sure for _, sure in answers))
        return found

    async def clients(self, *, timeout: float | None = None) -> list[ClientInfo]:
        """Who is connected to the broker."""
        found = await self._core.call(messages.ListClients(), timeout)
        return found.clients  # type: ignore[no-any-return]

    async def statistics(self, *, timeout: float | None = None) -> dict[str, Any]:
        """The broker's statistics."""
        found = await self._core.call(messages.GetStatistics(), timeout)
        return found.statistics  # type: ignore[no-any-return]

    async def broker(self, *, timeout: float | None = None) -> BrokerInfo:
        """The broker this client is connected to."""
        link = await self._core.link_within(timeout, "broker")
        assert link.broker is not None
        return link.broker

    # --- life -----------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """What operators see."""
        return self._core.name

    async def close(self) -> None:
        """Flush what is under way and disconnect."""
        await self._core.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Connecting:
    """What connect_async returns: await it, or use it with `async with`."""

    def __init__(self, url: str | None, name: str | None, timeout: float, read_from: Selector | None) -> None:
        self._arguments = (url, name, timeout, read_from)
        self._client: AsyncClient | None = None

    async def _open(self) -> AsyncClient:
        url, name, timeout, read_from = self._arguments
        return await AsyncClient._open(url, name=name, timeout=timeout, read_from=read_from)  # noqa: SLF001

    def __await__(self) -> Generator[Any, None, AsyncClient]:
        return self._open().__await__()

    async def __aenter__(self) -> AsyncClient:
        self._client = await self._open()
        return self._client

    async def __aexit__(self, *_: object) -> None:
        if self._client is not None:
            await self._client.close()


@explained_function("connect", asynchronous=True)
def connect_async(
    url: str | None = None,
    *,
    name: str | None = None,
    timeout: float = limits.DEFAULT_TIMEOUT_S,
    read_from: Selector | None = None,
) -> Connecting:
    """Connect to a Stentor system from `async` code. Enter it with `async with`, or await it."""
    return Connecting(url, name, timeout, read_from)


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


def _resolve(done: asyncio.Future[Receipt]) -> Callable[[Receipt | None, StentorError | None], None]:
    def resolve(receipt: Receipt | None, error: StentorError | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        elif receipt is not None:
            done.set_result(receipt)

    return resolve


def _now_us() -> int:
    import time

    return time.time_ns() // 1000
