"""The sync client: the same API without `await`, for scripts, notebooks and threads.

It drives an AsyncClient in a thread of its own, so it also works beside a running event loop. Calls
wait in the caller's thread; Ctrl-C interrupts them.
"""

from __future__ import annotations

import asyncio
import atexit
import queue
import sys
import threading
import warnings
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, Unpack, overload

from stentor import limits
from stentor.client.async_client import REASON_S, AsyncClient, known
from stentor.client.convert import check_limit
from stentor.client.help import explained, explained_function
from stentor.client.history import History
from stentor.client.producer import Producer
from stentor.client.subscription import Subscription
from stentor.client.topic import PlainTopic, Topic
from stentor.client.typed import Codec
from stentor.errors import Closed, StentorError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Mapping
    from datetime import timedelta
    from types import UnionType

    from stentor.client.async_client import Offsets, TopicOffsets
    from stentor.client.deadline import Deadline
    from stentor.client.message import Receipt
    from stentor.client.options import (
        AckLevel,
        Compression,
        Format,
        HeadersLike,
        OnError,
        OnSlow,
        ProducerOptions,
        SubscribeOptions,
        TimestampLike,
        TopicOptions,
    )
    from stentor.client.positions import Place, Stale
    from stentor.client.selectors import Partitioner, Selector
    from stentor.client.starts import Start
    from stentor.client.table import TableTopic
    from stentor.wire.messages import BrokerInfo, BrokerState, ClientInfo, PartitionRecovered, TopicInfo, TopicRoute

T = TypeVar("T")

_GRACE_S = 5.0  # on top of a call's own deadline, for the loop to report it
_open_clients: set[Client] = set()  # held: an application may keep only a producer, whose messages must get out


class _LoopThread:
    """An event loop in a daemon thread."""

    def __init__(self) -> None:
        try:
            import uvloop

            self.loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        except ImportError:
            self.loop = asyncio.new_event_loop()
        self._stopping = False
        self._posting = threading.Lock()  # what is posted comes before the stop, or not at all
        self._thread = threading.Thread(target=self._run, name="stentor-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.run_until_complete(_end_others())
        self.loop.close()

    def call(self, work: Coroutine[Any, Any, Any], timeout: float | None = None) -> Any:
        """Run a coroutine in the loop and wait for it here; Closed if the loop ends before it."""
        with self._posting:
            if self._stopping:
                work.close()
                raise _closed()
            future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result(timeout)
        except CancelledError:
            raise _closed() from None
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        """End the loop, and every call that still waits for something in it."""
        with self._posting:
            self._stopping = True
            self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(_GRACE_S)


async def _end_others() -> None:
    """Whoever waits for one of these in another thread would wait for ever."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    with suppress(TimeoutError):
        async with asyncio.timeout(_GRACE_S):
            await asyncio.gather(*others, return_exceptions=True)


def _closed() -> Closed:
    return Closed("This client is closed.", hint="Make a new one with stentor.connect().")


def _warn_inside_loop() -> None:
    """Every call of this client would hold up that loop. A notebook's cells are for waiting, though."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    if "ipykernel" not in sys.modules:
        text = (
            "stentor.connect() is called in a running event loop, which its calls hold up; use stentor.connect_async()."
        )
        warnings.warn(text, RuntimeWarning, stacklevel=3)


class _Answer:
    """Waits for one publish. A bare lock: a Future's condition costs more than the rest of the call."""

    __slots__ = ("_lock", "error", "receipt")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self.receipt: Receipt | None = None
        self.error: StentorError | None = None

    def __call__(self, receipt: Receipt | None, error: StentorError | None) -> None:
        self.receipt, self.error = receipt, error
        self._lock.release()

    def wait(self, timeout: float) -> bool:
        return self._lock.acquire(timeout=timeout)


@explained("Client")
class Client:
    """A connection to a Stentor system. Thread-safe. Use as a context manager: leaving it flushes.

    `stentor.connect(url)` makes one, and takes the same arguments.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        name: str | None = None,
        timeout: float = limits.DEFAULT_TIMEOUT_S,
        read_from: Selector | None = None,
    ) -> None:
        self._closed = False
        self._thread = _LoopThread()
        self._timeout = timeout
        try:
            opening = AsyncClient._open(url, name=name, timeout=timeout, read_from=read_from)  # noqa: SLF001
            self._async: AsyncClient = self._thread.call(opening)
        except BaseException:
            self._closed = True
            self._thread.stop()
            raise
        self._core = self._async._core  # noqa: SLF001
        self._core.wait_for = self._thread.call
        self._publishers: dict[tuple[str, str], Producer] = {}
        _open_clients.add(self)

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            self._check()
        except StentorError:
            work.close()
            raise
        return self._thread.call(work)

    def _check(self) -> None:
        if self._core.forked:
            self._core.check_open()
        if self._closed:
            raise _closed()
        self._core.check_caller()

    # --- publishing -----------------------------------------------------------------------------

    def publish(
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
        deadline = self._core.deadline(timeout)
        found = self._ready_publisher(topic, ack)
        publisher = found or self._publisher(topic, ack, deadline)
        answer = _Answer()
        publisher._offer(value, key, headers, timestamp, partition, answer)  # noqa: SLF001
        # Without a deadline of its own the call ends with the producer's, which knows the reason.
        grace_s = 0.0 if timeout is not None else REASON_S if found is None else _GRACE_S
        if not answer.wait(grace_s + (deadline.left() or 0.0)):
            raise self._core.late_publish(deadline.seconds, publisher._refusal())  # noqa: SLF001
        if answer.error is not None:
            raise answer.error
        assert answer.receipt is not None
        return answer.receipt

    def _ready_publisher(self, topic: str, ack: AckLevel) -> Producer | None:
        """The shared producer behind `publish`, found without entering the loop; None if none works."""
        if self._core.forked:
            self._core.check_open()
        self._core.check_caller()
        found = known(self._publishers, topic, ack)
        return None if found is None or self._closed or self._async._stale(found) else found  # noqa: SLF001

    def _publisher(self, topic: str, ack: AckLevel, deadline: Deadline) -> Producer:
        """The same, made if there is none."""
        shared = self._call(self._async._publisher(topic, ack, deadline))  # noqa: SLF001
        found = self._publishers[topic, ack] = Producer(shared._core)  # noqa: SLF001
        return found

    def producer(
        self,
        topic: str,
        *,
        ack: AckLevel = "all",
        compression: Compression | None = None,
        batch_messages: int = limits.PRODUCER_BATCH_MESSAGES,
        batch_bytes: int = limits.PRODUCER_BATCH_BYTES,
        buffer_bytes: int = limits.PRODUCER_BUFFER_BYTES,
        timeout: float | None = None,
        partitioner: Partitioner | None = None,
        identity: str | None = None,
        secret: str | None = None,
        generation: int = 0,
    ) -> Producer:
        """A self-batching sender to a topic: the fast path.

        A producer with an `identity` may be made again after a crash: the same batches, sent again in the same order
        under the same identity and generation, are recognised by the brokers and written once. What is new gets the
        next generation. Only who knows the identity and the `secret` ($STENTOR_PRODUCER_SECRET unless given) may send
        under it; without a secret the identity itself is all there is to know, so choose one that nobody guesses.
        """
        options: ProducerOptions = {
            "ack": ack,
            "compression": compression,
            "batch_messages": batch_messages,
            "batch_bytes": batch_bytes,
            "buffer_bytes": buffer_bytes,
            "timeout": timeout,
            "partitioner": partitioner,
            "identity": identity,
            "secret": secret,
            "generation": generation,
        }
        return Producer(self._call(self._async._producer_core(topic, **options)))  # noqa: SLF001

    # --- reading --------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: str | list[str],
        *,
        start: Start = "latest",
        end: Place | None = None,
        partition: int | Iterable[int] | None = None,
        on_slow: OnSlow = "catch_up",
        max_lag: int | timedelta | None = None,
        stale: Stale = "refuse",
        timeout: float | None = None,
    ) -> Subscription:
        """Messages of one or more topics or patterns, from a position on.

        Partitions that a `start` by partition does not name are read from their beginning.
        """
        inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        options: SubscribeOptions = {
            "start": start,
            "end": end,
            "partition": partition,
            "on_slow": on_slow,
            "max_lag": max_lag,
            "stale": stale,
            "timeout": timeout,
        }
        core = self._call(self._async._subscription_core(topics, inbox.put, **options))  # noqa: SLF001
        return Subscription(core, inbox)

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
    ) -> History:
        """What topics hold between two positions: iterate it, or take it as a table. A read makes no topic.

        A read knows its end. While no broker is certain where the committed messages end, it waits, and raises
        EndUnknown at its deadline. With `stale="allow"` it takes what is known to be committed; `sure` and `ends` of
        what it returns say whether that was all, and up to where it goes.
        """
        check_limit(limit)
        subscription = self.subscribe(topics, start=start, end=end, partition=partition, stale=stale, timeout=timeout)
        return History(subscription, limit)

    @overload
    def topic(self, name: str) -> PlainTopic: ...

    @overload
    def topic(
        self, name: str, type: type[T], *, format: Format = "json", on_error: Literal["raise", "skip"] = "raise"
    ) -> Topic[T]: ...

    @overload
    def topic(
        self, name: str, type: type[T], *, format: Format = "json", on_error: Literal["raw"]
    ) -> Topic[T | bytes | None]: ...

    @overload
    def topic(
        self, name: str, type: UnionType, *, format: Format = "json", on_error: OnError = "raise"
    ) -> Topic[Any]: ...

    def topic(
        self,
        name: str,
        type: Any = None,  # noqa: A002 - the word of the API
        *,
        format: Format = "json",  # noqa: A002 - the same
        on_error: OnError = "raise",
    ) -> PlainTopic | Topic[Any]:
        """A topic by itself. With a type its values are of that type, checked when they are published and read.

        A type is a msgspec Struct, a dataclass or a pydantic model. `Order | None` also admits messages without value.
        """
        return PlainTopic(self, name) if type is None else Topic(self, name, Codec(type, format, on_error))

    def table(self, name: str, schema: Any = None, *, timeout: float | None = None) -> TableTopic:
        """A tabular topic: tables go in, tables come out, each row is a message.

        The schema, a pyarrow.Schema, is registered as the topic's own. It may add nullable columns to the version
        before; any other change is refused. Without a schema it is the newest that the topic has.
        """
        from stentor.client.table import TableTopic, find_schema

        return TableTopic(self, self._call(find_schema(self._core, name, schema, timeout)))

    # --- administration -------------------------------------------------------------------------

    def create_topic(
        self, name: str, *, exist_ok: bool = False, timeout: float | None = None, **settings: Unpack[TopicOptions]
    ) -> TopicInfo:
        """Make a topic. Settings that are not named are the broker's defaults."""
        return self._call(self._async.create_topic(name, exist_ok=exist_ok, timeout=timeout, **settings))  # type: ignore[no-any-return]

    def alter_topic(self, name: str, *, timeout: float | None = None, **changes: Unpack[TopicOptions]) -> TopicInfo:
        """Change settings of a topic."""
        return self._call(self._async.alter_topic(name, timeout=timeout, **changes))  # type: ignore[no-any-return]

    def describe_topic(self, name: str, *, timeout: float | None = None) -> TopicInfo:
        """A topic's settings and partitions."""
        return self._call(self._async.describe_topic(name, timeout=timeout))  # type: ignore[no-any-return]

    def find_topic(self, name: str, *, timeout: float | None = None) -> TopicRoute:
        """A topic's id, settings and chains; it is made on the way if the broker makes topics by itself."""
        return self._call(self._async.find_topic(name, timeout=timeout))  # type: ignore[no-any-return]

    def topics(self, pattern: str | None = None, *, timeout: float | None = None) -> list[TopicInfo]:
        """All topics, or those that match a pattern."""
        return self._call(self._async.topics(pattern, timeout=timeout))  # type: ignore[no-any-return]

    def mark_recorded(self, topic: str, ends: Mapping[int, int], *, timeout: float | None = None) -> None:
        """A recorder has put away all messages below these offsets, by partition; it never moves back.

        Topics with `keep_unrecorded` delete nothing that is not marked, whatever their retention says.
        """
        self._call(self._async.mark_recorded(topic, ends, timeout=timeout))

    def delete_topic(self, name: str, *, timeout: float | None = None) -> None:
        """Delete a topic and all its messages."""
        self._call(self._async.delete_topic(name, timeout=timeout))

    def offsets(
        self, topic: str, at: Place = "latest", *, stale: Stale = "refuse", timeout: float | None = None
    ) -> Offsets:
        """The offset of a position in each partition.

        EndUnknown at the deadline, if no broker is certain where the committed messages end. With `stale="allow"`
        it is what is known to be committed, and `sure` of the answer says whether that was all.
        """
        return self._call(self._async.offsets(topic, at, stale=stale, timeout=timeout))  # type: ignore[no-any-return]

    def find_offsets(
        self, topics: list[str], at: Place = "latest", *, stale: Stale = "refuse", timeout: float | None = None
    ) -> dict[str, TopicOffsets]:
        """The offset of a position in each partition of topics or patterns, with the topics' ids."""
        return self._call(self._async.find_offsets(topics, at, stale=stale, timeout=timeout))  # type: ignore[no-any-return]

    def brokers(self, *, timeout: float | None = None) -> list[BrokerState]:
        """All brokers of the cluster, as the one that is asked sees them."""
        return self._call(self._async.brokers(timeout=timeout))  # type: ignore[no-any-return]

    def drain_broker(self, broker: str, *, draining: bool = True, timeout: float | None = None) -> None:
        """Move all replicas away from a broker, without stopping writes; or let it take some again."""
        self._call(self._async.drain_broker(broker, draining=draining, timeout=timeout))

    def forget_broker(self, broker: str, *, timeout: float | None = None) -> None:
        """Take a broker that is gone for good off the list."""
        self._call(self._async.forget_broker(broker, timeout=timeout))

    def recover_partition(
        self, topic: str, partition: int, broker: str | None = None, *, timeout: float | None = None
    ) -> PartitionRecovered:
        """Let a broker's copy lead although it may lack committed messages; says what was lost.

        Without a broker: the one whose copy is furthest; all brokers must be there to find out.
        """
        return self._call(  # type: ignore[no-any-return]
            self._async.recover_partition(topic, partition, broker, timeout=timeout)
        )

    def clients(self, *, timeout: float | None = None) -> list[ClientInfo]:
        """Who is connected to the broker."""
        return self._call(self._async.clients(timeout=timeout))  # type: ignore[no-any-return]

    def statistics(self, *, timeout: float | None = None) -> dict[str, Any]:
        """The broker's statistics."""
        return self._call(self._async.statistics(timeout=timeout))  # type: ignore[no-any-return]

    def broker(self, *, timeout: float | None = None) -> BrokerInfo:
        """The broker this client is connected to."""
        return self._call(self._async.broker(timeout=timeout))  # type: ignore[no-any-return]

    # --- life -----------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """What operators see."""
        return self._async.name

    def close(self) -> None:
        """Flush what is under way and disconnect. Safe to call twice."""
        if self._closed or self._core.forked:
            return
        self._core.check_caller()
        self._closed = True
        _open_clients.discard(self)
        try:
            self._thread.call(self._async.close(), limits.SHUTDOWN_S + self._timeout)
        except TimeoutError as error:
            if isinstance(error, StentorError):
                raise
            raise self._core.late("close", limits.SHUTDOWN_S + self._timeout) from error
        finally:
            self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
            return
        # The error that ended the block is the one to see.
        with suppress(StentorError):
            self.close()

    def __repr__(self) -> str:
        return f"<stentor.Client {self.name!r} {'closed' if self._closed else ','.join(self._core.addresses)}>"


@explained_function("connect")
def connect(
    url: str | None = None,
    *,
    name: str | None = None,
    timeout: float = limits.DEFAULT_TIMEOUT_S,
    read_from: Selector | None = None,
) -> Client:
    """Connect to a Stentor system. Use as a context manager: leaving it flushes and disconnects.

    In `async` code use `connect_async`: calls of this client hold up the loop that they are made in.
    """
    _warn_inside_loop()
    return Client(url, name=name, timeout=timeout, read_from=read_from)


@atexit.register
def _close_at_exit() -> None:
    """A script that forgot to close still gets its messages out, and never hangs."""
    for client in list(_open_clients):
        with suppress(Exception):  # the interpreter is going down
            client.close()
